"""A policy with a dial under judgement: its positions as policies of their own, and where to leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_training.core.errors import UserError
from rl_training.judging.policies import Predicts
from rl_training.judging.verdict import DialCurve, DialPosition, Judgement
from rl_training.policies.acting import ActingPolicy

DIAL = "dial"


def has_dial(policy: Predicts) -> bool:
    return isinstance(policy, ActingPolicy) and any(each.name == DIAL for each in policy.inputs)


def at_positions(name: str, policy: Predicts, dials: Sequence[float]) -> dict[str, Predicts]:
    """The policy at every position, by a name of its own; one without a dial as it is."""
    if not isinstance(policy, ActingPolicy) or not has_dial(policy):
        return {name: policy}
    return {name_at(name, dial): policy.with_inputs(dial=dial) for dial in dials}


def name_at(name: str, dial: float) -> str:
    return f"{name} at dial {dial:g}"


def checked_dials(dials: Sequence[float]) -> tuple[float, ...]:
    """Positions in order, each once."""
    wrong = [each for each in dials if not 0.0 <= each <= 1.0]
    if wrong or not dials:
        raise UserError(f"dial must be numbers from 0 to 1, got {wrong[0] if wrong else 'none'}")
    return tuple(sorted(set(map(float, dials))))


def dial_curve(judgement: Judgement, name: str, positions: Mapping[float, str]) -> DialCurve:
    """What is known of each position, judged by a name of its own, and the one to leave the dial at."""
    found = {dial: judgement.named(own) for dial, own in positions.items()}
    points = tuple(
        DialPosition(
            dial,
            each.name,
            each.value,
            each.low,
            each.high,
            each.verdict,
            outside_of(each.checks),
            each.limits,
        )
        for dial, each in found.items()
    )
    return DialCurve(name, points, recommended(judgement, points))


def outside_of(checks: object) -> float | None:
    """Share of its actions that lie outside the log."""
    assert isinstance(checks, dict)
    share = checks["coverage"].numbers.get("share_outside") if "coverage" in checks else None
    return None if share is None else float(share)


def recommended(judgement: Judgement, points: Sequence[DialPosition]) -> float | None:
    """The largest position whose checks pass, and those of all below it, and beyond which nothing is gained.

    From position to position it goes on only where the next one surely earns more, judged on the same
    resamples: a tie stays closer to what is done today. Positions that are not shown to keep the limits are
    passed over: what is done today may break one that a position further up keeps.
    """
    best: DialPosition | None = None
    for point in points:
        if point.verdict == "refused":
            break
        if point.limits in ("breaks", "cannot tell"):
            continue
        if best is None:
            best = point
            continue
        gain = judgement.compare(point.name, best.name).low
        if gain is not None and gain > 0.0:
            best = point
    return None if best is None else best.dial


def sentence_of_dial(curve: DialCurve) -> str:
    """One sentence on where to leave it."""
    if curve.recommended is None:
        limits = " and keeps the limits" * any(each.limits is not None for each in curve.positions)
        return f"{curve.name}: leave the dial alone; no position passes the checks{limits}."
    refused = [f"{each.dial:g}" for each in curve.positions if each.verdict == "refused"]
    beyond = f" Positions {', '.join(refused)} fail a check." if refused else ""
    broken = [f"{each.dial:g}" for each in curve.positions if each.limits in ("breaks", "cannot tell")]
    beyond += f" Positions {', '.join(broken)} are not shown to keep the limits." if broken else ""
    if curve.recommended == curve.positions[0].dial:
        where = f"leave the dial at {curve.recommended:g}; further up nothing is surely gained."
        return f"{curve.name}: {where}{beyond}"
    return (
        f"{curve.name}: turn the dial to {curve.recommended:g}; its checks pass, and further up nothing is "
        f"surely gained.{beyond}"
    )
