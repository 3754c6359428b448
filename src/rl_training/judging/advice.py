"""What would make an answer surer, in the order in which it would help."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.judging.judgement import BehaviourJudgement, PolicyJudgement


def advice_for(policies: Sequence[PolicyJudgement], behaviour: BehaviourJudgement) -> tuple[str, ...]:
    """One sentence per way; none where everything was sure."""
    everything = [*(each.checks for each in policies), behaviour.checks]
    refused = {name for found in everything for name, check in found.items() if check.outcome == "refused"}
    told = []
    if "episodes" in refused:
        told.append("Log more episodes: they are the independent unit, and rows within one are not.")
    if "falsification" in refused:
        told.append(
            "Look for what is missing in the observations (a set point, a disturbance, the previous action), "
            "and check that each reward belongs to the row it stands in."
        )
    if refused & {"coverage", "rollout_coverage"}:
        told.append(
            "Log some episodes with actions nearer to the policy's, for example the running controller with "
            "small deviations towards it; or train with a stronger pull to the data."
        )
    if "convergence" in refused:
        told.append("Allow more updates, or judge with a smaller gamma.")
    if "second_opinion" in refused:
        told.append("Log more episodes in the states where the policy differs most from the log.")
    if any(each.verdict == "indistinguishable" for each in policies):
        told.append("Log more episodes: the interval shrinks with the square root of their number.")
    return tuple(told)
