"""What a dataset knows about itself beside its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_training.config.limits import MAX_WIDTH
from rl_training.core.errors import DataError, UserError
from rl_training.core.facts import fact, read_facts
from rl_training.core.feature_names import FeatureNames
from rl_training.core.json_text import parse_json
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import Spaces


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
        return {"minimum": self.minimum, "maximum": self.maximum, "source": self.source}

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
    units: Mapping[str, str] = field(default_factory=dict)
    """unit of a named observation or action"""
    rewards_known: bool = True
    """False where the log has no reward: the stored ones are zeros that stand in for it"""
    content_key: str | None = None
    """fingerprint of the files that the rows were read from, where one was taken (data kept on disk)"""

    def name_of(self, kind: str, index: int) -> str:
        """What one observed or acted number is called: `T_tank (°C)`, or `observation 3`."""
        return self.features.name_of(kind, index)

    @property
    def features(self) -> FeatureNames:
        """Names and units, as they travel with a policy."""
        return FeatureNames(self.observation_names or (), self.action_names or (), self.units)

    def to_dict(self) -> State:
        """What a file stores: everything but the name of the file it was read from."""
        stored: State = {}
        if self.env_id is not None:
            stored["env_id"] = self.env_id
        if self.spaces is not None:
            stored |= self.spaces.to_dict()
        if self.reference is not None:
            stored["reference_min_return"] = self.reference.minimum
            stored["reference_max_return"] = self.reference.maximum
            stored["reference_source"] = self.reference.source
        for key, names in (
            ("observation_names", self.observation_names),
            ("action_names", self.action_names),
        ):
            if names is not None:
                stored[key] = json.dumps(names)
        if self.units:
            stored["units"] = json.dumps(dict(self.units))
        if not self.rewards_known:
            stored["rewards_known"] = False
        return stored

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
        if facts.obs_dim is not None and low is not None and high is not None:
            spaces = Spaces(facts.obs_dim, low, high)
        if facts.reference_min_return is not None and facts.reference_max_return is not None:
            reference = ReferenceReturns(
                facts.reference_min_return, facts.reference_max_return, facts.reference_source or source
            )
        return cls(
            source,
            spaces,
            facts.env_id,
            reference,
            observation_names=_names(facts.observation_names),
            action_names=_names(facts.action_names),
            units=dict(read_facts(UnitsFacts, {"units": parse_json(facts.units)}).units),
            rewards_known=facts.rewards_known,
        )


@dataclass(frozen=True)
class DataFacts:
    """What a data file may say about itself; names and units are JSON, for formats without lists."""

    env_id: str | None = None
    obs_dim: int | None = fact(None, least=1)
    action_low: tuple[float, ...] | float | None = fact(None, longest=MAX_WIDTH)
    action_high: tuple[float, ...] | float | None = fact(None, longest=MAX_WIDTH)
    reference_min_return: float | None = None
    reference_max_return: float | None = None
    reference_source: str | None = None
    observation_names: str | None = None
    action_names: str | None = None
    units: str = "{}"
    rewards_known: bool = True


@dataclass(frozen=True)
class UnitsFacts:
    """Unit of a name."""

    units: Mapping[str, str]


@dataclass(frozen=True)
class NamesFacts:
    """One name per number."""

    names: tuple[str, ...]


def plain(stored: object) -> object:
    """Text that a format gives as bytes, as text."""
    if not isinstance(stored, Mapping):
        return stored
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in stored.items()}


def as_tuple(bounds: tuple[float, ...] | float | None) -> tuple[float, ...] | None:
    """A single bound may be stored as a number."""
    return (bounds,) if isinstance(bounds, int | float) else bounds


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else read_facts(NamesFacts, {"names": parse_json(text)}).names
