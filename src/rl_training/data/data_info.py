"""What a dataset knows about itself beside its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_training.core.errors import DataError, UserError
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
    def from_dict(cls, source: str, stored: State) -> DataInfo:
        """Read what `to_dict` wrote; keys that a foreign file does not have are left out."""
        try:
            return cls._from_dict(source, stored)
        except (TypeError, ValueError, UserError) as problem:
            raise DataError(f"{source}: what it says about itself cannot be read ({problem})") from None

    @classmethod
    def _from_dict(cls, source: str, stored: State) -> DataInfo:
        spaces = (
            Spaces.from_dict(stored) if {"obs_dim", "action_low", "action_high"} <= stored.keys() else None
        )
        reference = None
        if {"reference_min_return", "reference_max_return"} <= stored.keys():
            reference = ReferenceReturns(
                float(stored["reference_min_return"]),
                float(stored["reference_max_return"]),
                str(stored.get("reference_source", source)),
            )
        env_id = stored.get("env_id")
        return cls(
            source,
            spaces,
            None if env_id is None else str(env_id),
            reference,
            observation_names=_names(stored.get("observation_names")),
            action_names=_names(stored.get("action_names")),
            units={str(k): str(v) for k, v in parse_json(stored.get("units", "{}")).items()},
            rewards_known=bool(stored.get("rewards_known", True)),
        )


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(str(name) for name in parse_json(text))
