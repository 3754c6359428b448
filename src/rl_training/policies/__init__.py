"""What acts: a policy, its files and their exports. Names are loaded on first use."""

from rl_training.core.registry import lazy_exports

SOURCES = {
    "Policy": "rl_training.policies.policy",
    "load_policy": "rl_training.policies.files",
    "register_actor": "rl_training.policies.policy",
    "register_memory": "rl_training.policies.policy",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
