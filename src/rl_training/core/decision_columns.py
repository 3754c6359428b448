"""The columns that every decision log has: `serve` writes them, and `data inspect` knows them again."""

from __future__ import annotations

from collections.abc import Collection

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
