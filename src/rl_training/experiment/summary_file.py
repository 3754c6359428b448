"""`summary.json`: what a run directory says of a run that has ended, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.core.facts import FactsProblem, read_facts
from rl_training.core.json_text import parse_json
from rl_training.core.plain import Facts, State

SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class TimingFacts:
    """When the run began and ended."""

    started: str | None = None
    finished: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class SummaryFacts:
    """Every entry of a summary; a run of an earlier version lacks some."""

    format_version: int | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    stop_reason: str | None = None
    metrics: Facts | None = None
    timing: TimingFacts | None = None
    config_hash: str | None = None
    versions: Mapping[str, str] | None = None
    checkpoint: str | None = None
    dataset: Facts | None = None
    parent: Facts | None = None


def read_summary(run_dir: Path) -> State | None:
    """The summary as it was written, or None where the run has not ended."""
    path = run_dir / SUMMARY_FILE
    try:
        summary = parse_json(path.read_bytes())
        read_facts(SummaryFacts, summary)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except FactsProblem as problem:
        raise UserError(
            f"{path} is not the summary of a run: {problem}; delete it to have the run read as unfinished"
        ) from None
    except ValueError as problem:
        raise UserError(
            f"{path} is not valid JSON ({problem}): delete it to have the run read as unfinished"
        ) from None
    return dict(summary)
