"""What a served policy meets: columns of decision logs, and how far what it sees lies from its training data.

Numpy only: an exported policy carries the shares of its training columns, and whoever serves it compares.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.schema import fact, read_facts
from rl_training.core.types import Array, Facts, State

OWN_COLUMNS = (
    *("decision", "session", "episode", "step", "at", "novelty", "flagged", "policy"),
    *("inputs", "served_as", "latency_ms"),
)
RECOMMENDED = "recommended_"
"""Before the name of an action: what the policy proposed; the bare name holds what was done."""


def is_decision_log(names: Collection[str]) -> bool:
    return {*OWN_COLUMNS} <= {*names}


def written_by_serve(name: str) -> bool:
    """Whether a column of a decision log is neither observed nor done."""
    return name in OWN_COLUMNS or name.startswith(RECOMMENDED)


LEAST_SHARE = 1e-4
"""What an empty bin counts as, so that one row in it is not infinitely surprising."""
DECILES = np.linspace(0.1, 0.9, 9)
NOTICEABLE, LARGE = 0.1, 0.25
"""The usual reading of the index: below the first nothing happened, beyond the second something did."""


@dataclass(frozen=True)
class ColumnShares:
    """Where the numbers of a column lay: `shares[i]` of them in `(edges[i - 1], edges[i]]`."""

    edges: tuple[float, ...] = fact(longest=len(DECILES))
    shares: tuple[float, ...] = fact(longest=len(DECILES) + 1)

    def __post_init__(self) -> None:
        sound = len(self.shares) == len(self.edges) + 1 and all(0.0 <= each <= 1.0 for each in self.shares)
        if not sound or list(self.edges) != sorted(set(self.edges)):
            raise UserError("the shares of a training column must be one more than its rising edges")

    @classmethod
    def of(cls, values: Array) -> ColumnShares:
        """Of the finite numbers of a column; numbers that repeat share an edge."""
        known = values[np.isfinite(values)].astype(np.float64)
        edges = np.unique(np.quantile(known, DECILES, method="inverted_cdf")) if len(known) else np.empty(0)
        shares = shares_of(known, edges.tolist())
        return cls(tuple(edges.tolist()), tuple(shares.tolist()))

    def instability(self, values: Array) -> float | None:
        """Population stability index, sum of (a - e) ln(a / e) over the bins; none of nothing."""
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        expected = np.maximum(self.shares, LEAST_SHARE)
        actual = np.maximum(shares_of(known, self.edges), LEAST_SHARE)
        return float(((actual - expected) * np.log(actual / expected)).sum())


def shares_of(values: Array, edges: Sequence[float]) -> Array:
    """The share of the values in each bin, right edges belonging to it."""
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    return counts / max(1, len(values))


def describe_columns(values: Array, names: Sequence[str]) -> list[State]:
    """What is stored with a policy of the columns that it observes, `[rows, columns]`."""
    columns = ((name, ColumnShares.of(column)) for name, column in zip(names, values.T, strict=True))
    return [{"name": name, "edges": list(each.edges), "shares": list(each.shares)} for name, each in columns]


def training_columns(data: Facts | None) -> dict[str, ColumnShares]:
    """What a policy's file says of its training data, by name; nothing of a file from before this."""
    found = {}
    for stored in (data or {}).get("observed") or ():
        try:
            found[str(stored["name"])] = read_facts(ColumnShares, stored, others=True)
        except (UserError, TypeError, KeyError) as problem:
            raise UserError(
                f"the policy's training columns make no sense: {problem}; export it again"
            ) from None
    return found
