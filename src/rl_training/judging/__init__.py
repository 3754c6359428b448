"""Off-policy evaluation: how good is a policy, by a log alone, and when can that not be said?

Names are loaded on first use.
"""

from rl_training.core.lazy import lazy_exports

SOURCES = {
    "BehaviourJudgement": "rl_training.judging.judgement",
    "Check": "rl_training.judging.judgement",
    "Evidence": "rl_training.judging.judgement",
    "Interval": "rl_training.judging.judgement",
    "JudgeConfig": "rl_training.judging.settings",
    "Judgement": "rl_training.judging.judgement",
    "PolicyJudgement": "rl_training.judging.judgement",
    "TrainedCritic": "rl_training.judging.critics",
    "importance_estimates": "rl_training.judging.estimators",
    "judge": "rl_training.judging.judge_policies",
    "trained_critic": "rl_training.judging.critics",
    "weighted_doubly_robust": "rl_training.judging.estimators",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
