"""Which metric runs are judged by, and whether it may be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_training.core.errors import UserError
from rl_training.report.run_reader import JUDGED, RETURN, SCORE, SCORE_REFERENCE, RunRecord
from rl_training.report.task_keys import task_key


def task_metric(runs: Sequence[RunRecord], common: str) -> str:
    """The metric of the whole report, unless the runs of this task were never tried out but judged."""
    judged = any(run.series(JUDGED) for run in runs) and not any(run.series(common) for run in runs)
    if judged:
        check_metric(runs, JUDGED)
    return JUDGED if judged else common


def common_metric(runs: Iterable[RunRecord]) -> str:
    """The normalised score if every measured run has it, else the return, else the value by the log."""
    runs = list(runs)
    measured = [run for run in runs if run.series(RETURN) or not run.series(JUDGED)]
    if measured and all(run.series(SCORE) for run in measured):
        return SCORE
    judged = not any(run.series(RETURN) for run in runs) and any(run.series(JUDGED) for run in runs)
    return JUDGED if judged else RETURN


def check_metric(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse a metric that no run has, and scores that are relative to different references."""
    if not any(run.series(metric) for run in runs):
        known = sorted(
            {name for run in runs for row in run.rows if row.get("kind") == "eval" for name in row}
        )
        names = ", ".join(name for name in known if name not in ("step", "kind", "time")) or "none"
        raise UserError(
            f"metric {metric!r} is in no evaluation of these {len(runs)} runs; they have: {names}"
        )
    if metric == JUDGED:
        _check_same_discount(runs)
    if metric != SCORE:
        return
    references: dict[str, set[str]] = {}
    for run in runs:
        found = {str(row[SCORE_REFERENCE]) for row in run.rows if row.get(SCORE_REFERENCE) is not None}
        references.setdefault(task_key(run), set()).update(found)
    for several in references.values():
        if len(several) > 1:
            raise UserError(
                f"normalised scores relative to different references ({', '.join(sorted(several))}) "
                f"cannot be compared: use --metric {RETURN}"
            )


def _check_same_discount(runs: Sequence[RunRecord]) -> None:
    found = {run.settings.get("judge_gamma") for run in runs if run.series(JUDGED)}
    if len(found) > 1:
        told = ", ".join(sorted(map(str, found)))
        raise UserError(
            f"values estimated with different judge_gamma ({told}) cannot be compared: judge the policies "
            "together with `rl-training judge`"
        )
