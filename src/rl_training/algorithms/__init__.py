"""Learners and their loss helpers. Names are loaded on first use."""

from rl_training.core.registry import builtin_algorithms, lazy_exports

SOURCES = {
    "Recipe": "rl_training.algorithms.recipe",
    "UpdateResult": "rl_training.algorithms.learner",
    "register_algorithm": "rl_training.algorithms.recipe",
    "stack_learners": "rl_training.algorithms.stack",
    "unstack_learners": "rl_training.algorithms.stack",
}
for _each in builtin_algorithms().values():
    SOURCES |= {
        _each.class_name: _each.module,
        f"{_each.class_name}Algorithm": f"{_each.module}:{_each.class_name}",
        f"{_each.name}_loss": _each.module,
    }

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
