"""Off-policy evaluation: how good is a policy, by a log alone, and when can that not be said?"""

from rl_training.judging.judge import judge
from rl_training.judging.judgement import (
    BehaviourJudgement,
    Check,
    Evidence,
    Interval,
    Judgement,
    PolicyJudgement,
)
from rl_training.judging.settings import JudgeConfig

__all__ = [
    "BehaviourJudgement",
    "Check",
    "Evidence",
    "Interval",
    "JudgeConfig",
    "Judgement",
    "PolicyJudgement",
    "judge",
]
