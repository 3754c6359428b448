"""Learners and their loss helpers. Names are loaded on first use."""

from rl_training.core.lazy import lazy_exports

LEARNERS = {
    "SAC": "sac",
    "TQC": "tqc",
    "REDQ": "redq",
    "BC": "bc",
    "TD3BC": "td3_bc",
    "AWAC": "awac",
    "CRR": "crr",
    "IQL": "iql",
    "CQL": "cql",
    "CalQL": "cal_ql",
}
"""Public name -> module; the loss helper is `<module>_loss`."""

SOURCES = {
    **{name: f"rl_training.algorithms.{module}" for name, module in LEARNERS.items()},
    **{f"{name}Algorithm": f"rl_training.algorithms.{module}:{name}" for name, module in LEARNERS.items()},
    **{f"{module}_loss": f"rl_training.algorithms.{module}" for module in LEARNERS.values()},
    "UpdateResult": "rl_training.algorithms.results",
    "stack_learners": "rl_training.algorithms.stacking",
    "unstack_learners": "rl_training.algorithms.stacking",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
