"""Off-policy evaluation: how good is a policy, by a log alone, and when can that not be said?

Names are loaded on first use.
"""

from rl_training.core.registry import lazy_exports

SOURCES = {
    "BehaviourJudgement": "rl_training.judging.verdict",
    "Check": "rl_training.judging.verdict",
    "Evidence": "rl_training.judging.verdict",
    "Interval": "rl_training.judging.verdict",
    "JudgeConfig": "rl_training.judging.settings",
    "Judgement": "rl_training.judging.verdict",
    "PolicyJudgement": "rl_training.judging.verdict",
    "TrainedCritic": "rl_training.judging.checks",
    "importance_estimates": "rl_training.judging.estimators",
    "judge": "rl_training.judging.judge_policies",
    "trained_critic": "rl_training.judging.checks",
    "weighted_doubly_robust": "rl_training.judging.estimators",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
