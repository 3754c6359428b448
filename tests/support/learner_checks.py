"""Checks that every learner must pass, whatever its losses: ways of running it agree, parts do not mix."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stack import stack_learners, unstack_learners

Build = Callable[[int], Learner]
"""Seed -> a fresh learner whose model and noise follow from the seed."""

OBS, ACTIONS, BATCH = 3, 2, 16


def random_batch(seed: int, batch_size: int = BATCH, **extra: Tensor) -> dict[str, Tensor]:
    """Transitions without structure, a quarter of them terminal."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(batch_size, OBS, generator=generator),
        "actions": torch.rand(batch_size, ACTIONS, generator=generator) * 1.9 - 0.95,
        "rewards": torch.randn(batch_size, generator=generator),
        "next_obs": torch.randn(batch_size, OBS, generator=generator),
        "dones": (torch.rand(batch_size, generator=generator) < 0.25).float(),
        "next_actions": torch.rand(batch_size, ACTIONS, generator=generator) * 1.9 - 0.95,
        "episodes": (torch.arange(batch_size) // 4).float(),
        **extra,
    }


def model(model_class: Callable[..., Any], seed: int = 0, **keywords: Any) -> Any:
    """A small model for `random_batch`."""
    keywords = {"hidden_sizes": (16, 16), **keywords}
    return model_class(OBS, ACTIONS, generator=torch.Generator().manual_seed(seed), **keywords)


def run(learner: Learner, updates: int, seed: int = 0) -> dict[str, Any]:
    """Some updates on random batches; returns the last metrics."""
    for step in range(updates):
        result = learner.update(random_batch(seed * 1000 + step), global_step=step)
    return dict(result.metrics)


def difference(first: Learner, second: Learner) -> float:
    """Largest relative difference over every tensor of two learners."""
    other = second.tensors()
    return max(relative_difference(tensor, other[name]) for name, tensor in first.tensors().items())


def relative_difference(first: Tensor, second: Tensor) -> float:
    """Largest difference relative to `first`; numbers well below 0.01 count as 0.01."""
    return ((first - second).abs() / (1e-2 + first.abs())).max().item()


WHOLE, GRAPHS = "aot_eager", "eager"
"""Compiled to the code that would be generated, or only traced, which takes half the time: for variants."""


def check_compiled_equals_eager(
    build: Build,
    updates: int = 20,
    backend: str = WHOLE,
    batch: Callable[[int], dict[str, Tensor]] = random_batch,
    eager_stages: Collection[str] = (),
) -> None:
    """One graph per stage, traced whole and never again, gives what the eager update gives.

    On the way the learning rate changes and metrics are read, as in a run.
    """
    eager, compiled = build(0), build(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled.compile(backend=backend)
    stages = set()
    for step in range(updates):
        stages.add(compiled.stage())
        for learner in (eager, compiled):
            learner.set_learning_rate_scale(0.5 if step >= updates // 2 else 1.0)
            assert all(math.isfinite(value) for value in read_metrics(learner, batch(step), step))
    assert difference(eager, compiled) < 1e-3
    for name, value in eager.last_metrics.items():
        assert relative_difference(value, compiled.last_metrics[name]) < 1e-3, name
    found = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert found == len(stages - {*eager_stages}), (found, stages)


def read_metrics(learner: Learner, batch: dict[str, Tensor], step: int) -> list[float]:
    """One update whose metrics are brought to the host."""
    return list(learner.update(batch, global_step=step).metrics.values())


def check_stacked_equals_single(
    build: Build,
    updates: int = 5,
    seeds: Collection[int] = (0, 1, 2),
    batch: Callable[[int], dict[str, Tensor]] | None = None,
) -> None:
    """A stack of learners takes the same path as each of them alone, and can be taken apart again."""
    batch = batch or random_batch
    singles = [build(seed) for seed in seeds]
    stacked = stack_learners(singles)
    for step in range(updates):
        batches = [batch(1000 * seed + step) for seed in seeds]
        together = {name: torch.stack([each[name] for each in batches]) for name in batches[0]}
        metrics = stacked.update(together, global_step=step).metrics
        for index, (single, own) in enumerate(zip(singles, batches, strict=True)):
            alone = single.update(own, global_step=step).metrics
            for name in alone:
                torch.testing.assert_close(
                    metrics.tensors[name][index], alone.tensors[name], rtol=2e-4, atol=1e-5
                )
    for single, member in zip(singles, unstack_learners(stacked), strict=True):
        assert difference(single, member) < 2e-4


def check_resumes_exactly(build: Build, updates: int = 3) -> None:
    """A learner restored from its state makes the very same next updates."""
    first, second = build(0), build(1)
    run(first, updates)
    second.load_state_dict(first.state_dict())
    run(first, updates, seed=1)
    run(second, updates, seed=1)
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())


def reached(learner: Learner, loss: Tensor) -> set[str]:
    """Names of the model's parts (actor, critic …) and of learned scalars for which `loss` has a gradient."""
    named = {
        name: parameter
        for name, parameter in learner.tensors().items()
        if parameter.requires_grad and not name.startswith("optimizer")
    }
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        ".".join(name.split(".")[:2])
        for name, gradient in zip(named, gradients, strict=True)
        if gradient is not None and bool(gradient.any())
    }


def moved(learner: Learner, updates: int = 1) -> set[str]:
    """Names of the parts that change during `updates` updates."""
    before = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    run(learner, updates)
    return {
        ".".join(name.split(".")[:2])
        for name, tensor in learner.tensors().items()
        if not name.startswith("optimizer") and not torch.equal(before[name], tensor)
    }


def gradients_of(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a scalar for float64 inputs."""
    leaves = [value.detach().clone().requires_grad_(True) for value in inputs]
    return torch.autograd.grad(function(*leaves), leaves)


def numbers(*values: Any) -> Tensor:
    """Known numbers, in double precision."""
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Tensor, expected: Any) -> None:
    """Equal to what is known to six digits."""
    torch.testing.assert_close(
        actual.detach(), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-5, atol=2e-6
    )


def table_model(model_class: Callable[..., Any], rows: int, outputs: Tensor, **keywords: Any) -> Any:
    """A model without hidden layers, in double precision, whose critics give `outputs[critic, row]`.

    Observations are one-hot rows, so the first weights of a linear critic are its table of values.
    """
    made = model_class(rows, 1, hidden_sizes=(), **keywords).double()
    with torch.no_grad():
        for parameter in made.critic.parameters():
            parameter.zero_()
        made.critic.net.output.weight[:, :rows] = outputs.reshape(outputs.shape[0], rows, -1)
    return made
