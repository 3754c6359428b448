"""What a dataset knows about itself beside its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from rl_training.core.errors import DataError, UserError
from rl_training.core.files import parse_json
from rl_training.core.schema import MAX_WIDTH, fact, read_facts
from rl_training.core.signals import Signals
from rl_training.core.spaces import Choice, FeatureNames, Spaces, choices_from, levels_of
from rl_training.core.types import Facts, State


@dataclass(frozen=True)
class ReferenceReturns:
    """Two returns that fix the scale of normalised scores, and where they come from."""

    minimum: float
    maximum: float
    source: str

    def normalized_score(self, mean_return: float) -> float:
        """0 at the minimum reference (usually random actions), 100 at the maximum (usually an expert)."""
        return 100.0 * (mean_return - self.minimum) / (self.maximum - self.minimum)

    def score_metrics(self, mean_return: float) -> State:
        """What an evaluation reports: the score and the reference it is relative to."""
        return {
            "eval_normalized_score": self.normalized_score(mean_return),
            "eval_normalized_score_reference": self.source,
        }

    def to_dict(self) -> State:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Facts) -> ReferenceReturns:
        return cls(float(values["minimum"]), float(values["maximum"]), str(values["source"]))


@dataclass(frozen=True)
class DataInfo:
    """Where rows come from and what their numbers mean; carried through loading, conversion and mixing."""

    source: str = "data in memory"
    spaces: Spaces | None = None
    env_id: str | None = None
    reference: ReferenceReturns | None = None
    observation_names: tuple[str, ...] | None = None
    """one name per observed number, where the log names them"""
    action_names: tuple[str, ...] | None = None
    choices: tuple[Choice | None, ...] = ()
    """per action, where any of them is a choice"""
    operator_names: tuple[str, ...] = ()
    """by their numbers in the column `operators`"""
    cost_names: tuple[str, ...] = ()
    """by their place in the column `costs`, where they were named"""
    units: Mapping[str, str] = field(default_factory=dict)
    """unit of a named observation or action"""
    signals: Signals | None = None
    """what a policy is asked with, where that is more than the observed numbers"""
    masked: bool = False
    """whether the last observed numbers say which levels of choices may be taken"""
    rewards_known: bool = True
    """False where the log has no reward: the stored ones are zeros that stand in for it"""
    content_key: str | None = None
    """fingerprint of the files that the rows were read from, where one was taken (data kept on disk)"""

    def __post_init__(self) -> None:
        if self.spaces is not None and self.spaces.choices:
            object.__setattr__(self, "choices", self.spaces.choices)
            object.__setattr__(self, "masked", self.spaces.masked)

    def name_of(self, kind: str, index: int) -> str:
        """What one observed or acted number is called: `T_tank (°C)`, or `observation 3`."""
        return self.features.name_of(kind, index)

    def named_costs(self, count: int) -> tuple[str, ...]:
        """Names of so many costs: those that were given, else `cost`, or `cost_0 …`."""
        if not self.cost_names:
            return ("cost",) if count == 1 else tuple(f"cost_{index}" for index in range(count))
        if len(self.cost_names) != count:
            listed = ", ".join(self.cost_names)
            raise DataError(
                f"{self.source}: cost_names must have {count} names, one per cost, got {len(self.cost_names)}"
                f" ({listed})"
            )
        return self.cost_names

    def operator_name(self, number: int) -> str:
        """What one who acted is called."""
        known = number < len(self.operator_names)
        return self.operator_names[number] if known else f"operator {number}"

    @property
    def features(self) -> FeatureNames:
        """Names and units, as they travel with a policy."""
        return FeatureNames(self.observation_names or (), self.action_names or (), self.units)

    @property
    def seen_features(self) -> FeatureNames:
        """The same of what is seen, where observations are signals made of it."""
        names = self.observation_names if self.signals is None else self.signals.program.columns
        return FeatureNames(names or (), self.action_names or (), self.units)

    def to_dict(self) -> State:
        """What a file stores: everything but the name of the file it was read from."""
        stored: State = {"env_id": self.env_id}
        texts: State = {"observation_names": self.observation_names, "action_names": self.action_names}
        texts["operator_names"] = self.operator_names or None
        texts["cost_names"] = self.cost_names or None
        texts["units"] = dict(self.units) or None
        texts["signals"] = None if self.signals is None else self.signals.to_dict()
        if self.spaces is not None:
            stored |= self.spaces.to_dict()
        texts["action_levels"] = levels_of(self.choices) if self.choices else None
        if (reference := self.reference) is not None:
            stored |= {"reference_min_return": reference.minimum, "reference_max_return": reference.maximum}
            stored["reference_source"] = reference.source
        stored |= {key: json.dumps(value) for key, value in texts.items() if value is not None}
        stored["rewards_known"] = None if self.rewards_known else False
        stored["masked"] = self.masked or None
        return {key: value for key, value in stored.items() if value is not None}

    @classmethod
    def from_dict(cls, source: str, stored: object) -> DataInfo:
        """Read what `to_dict` wrote; keys that a foreign file does not have are left out."""
        try:
            return cls._from_facts(source, read_facts(DataFacts, plain(stored)))
        except (TypeError, ValueError, OverflowError, UserError) as problem:
            text = " ".join(str(problem).split())
            raise DataError(f"{source}: what it says about itself cannot be read ({text})") from None

    @classmethod
    def _from_facts(cls, source: str, facts: DataFacts) -> DataInfo:
        spaces, reference = None, None
        low, high = as_tuple(facts.action_low), as_tuple(facts.action_high)
        levels = parse_json(facts.action_levels)
        if facts.obs_dim is not None and low is not None and high is not None:
            sizes = {"obs_dim": facts.obs_dim, "action_low": low, "action_high": high}
            spaces = Spaces.from_dict({**sizes, "action_levels": levels, "masked": facts.masked})
        if facts.reference_min_return is not None and facts.reference_max_return is not None:
            reference = ReferenceReturns(
                facts.reference_min_return, facts.reference_max_return, facts.reference_source or source
            )
        texts = {name: getattr(facts, name) for name in FeatureFacts.__dataclass_fields__}
        parsed = {name: None if text is None else parse_json(text) for name, text in texts.items()}
        features = read_facts(FeatureFacts, parsed)
        return cls(
            source,
            spaces,
            facts.env_id,
            reference,
            observation_names=features.observation_names,
            action_names=features.action_names,
            choices=choices_from(levels),
            operator_names=features.operator_names,
            cost_names=features.cost_names,
            units=dict(features.units),
            signals=None if facts.signals is None else Signals.from_dict(parse_json(facts.signals)),
            rewards_known=facts.rewards_known,
            masked=facts.masked,
        )


@dataclass(frozen=True)
class DataFacts:
    """What a data file may say about itself; lists and mappings are JSON, for formats without them."""

    env_id: str | None = None
    obs_dim: int | None = fact(None, least=1)
    action_low: tuple[float, ...] | float | None = fact(None, longest=MAX_WIDTH)
    action_high: tuple[float, ...] | float | None = fact(None, longest=MAX_WIDTH)
    action_levels: str = "[]"
    reference_min_return: float | None = None
    reference_max_return: float | None = None
    reference_source: str | None = None
    observation_names: str | None = None
    action_names: str | None = None
    operator_names: str = "[]"
    cost_names: str = "[]"
    units: str = "{}"
    signals: str | None = None
    rewards_known: bool = True
    masked: bool = False


INFO_KEYS = tuple(DataFacts.__dataclass_fields__)
"""What files written here store beside their columns."""


@dataclass(frozen=True)
class FeatureFacts:
    """Names of numbers, and units of names, as the JSON in `DataFacts` must be."""

    observation_names: tuple[str, ...] | None
    action_names: tuple[str, ...] | None
    operator_names: tuple[str, ...]
    cost_names: tuple[str, ...]
    units: Mapping[str, str]


def plain(stored: object) -> object:
    """Text that a format gives as bytes, as text."""
    if not isinstance(stored, Mapping):
        return stored
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in stored.items()}


def as_tuple(bounds: tuple[float, ...] | float | None) -> tuple[float, ...] | None:
    """A single bound may be stored as a number."""
    return (bounds,) if isinstance(bounds, int | float) else bounds


Bounds = tuple[float, float]

LOCOMOTION: dict[str, Bounds] = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}
ADROIT: dict[str, Bounds] = {
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
}
MAZE2D: dict[str, Bounds] = {
    "maze2d-open-v0": (0.01, 20.66),
    "maze2d-umaze-v1": (23.85, 161.86),
    "maze2d-medium-v1": (13.13, 277.39),
    "maze2d-large-v1": (6.7, 273.99),
    "maze2d-open-dense-v0": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense-v1": (68.537689, 193.66285642381482),
    "maze2d-medium-dense-v1": (44.264742, 297.4552547777125),
    "maze2d-large-dense-v1": (30.569041, 303.4857382709002),
}
ANTMAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
QUALITIES = ("random", "medium", "expert", "medium-replay", "medium-expert")


def _published() -> dict[str, Bounds]:
    """Environment id -> (minimum, maximum) for every environment that the published values belong to."""
    values = dict(MAZE2D)
    for name, bounds in LOCOMOTION.items():
        values[f"{name}-v2"] = bounds  # the Gym environment that D4RL's tasks wrap
        for version in (0, 1, 2):
            qualities = QUALITIES if version == 0 else (*QUALITIES, "full-replay")
            values |= {f"{name.lower()}-{quality}-v{version}": bounds for quality in qualities}
    for name, bounds in ADROIT.items():
        for source in ("human", "cloned", "expert"):
            values |= {f"{name}-{source}-v{version}": bounds for version in (0, 1)}
    values |= {f"antmaze-{maze}-v{version}": (0.0, 1.0) for maze in ANTMAZES for version in (0, 2)}
    values |= {f"kitchen-{part}-v0": (0.0, 4.0) for part in ("complete", "partial", "mixed")}
    return values


PUBLISHED = _published()


def published_reference(env_id: str | None) -> ReferenceReturns | None:
    """The published reference of exactly this environment, if there is one."""
    if env_id is None or env_id not in PUBLISHED:
        return None
    return ReferenceReturns(*PUBLISHED[env_id], f"D4RL {env_id}")


def reference_returns(
    env_id: str | None,
    *,
    configured: tuple[float | None, float | None] = (None, None),
    carried: ReferenceReturns | None = None,
    carried_env_id: str | None = None,
) -> ReferenceReturns | None:
    """The reference for scores in `env_id`: the user's, else the data's own, else the published one.

    References that the data carries were measured in the data's environment and count only there.
    """
    minimum, maximum = configured
    if minimum is not None and maximum is not None:
        return ReferenceReturns(minimum, maximum, "configuration")
    plain_id = None if env_id is None else env_id.rpartition(":")[2]  # without `package:` in front
    if carried is not None and carried_env_id in (None, plain_id):
        return carried
    return published_reference(plain_id)
