"""Products of factors in bf16: what is rounded, what is not, and that it goes with stacks and graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl_training.algorithms import SAC, stack_learners, unstack_learners
from rl_training.algorithms.learner import (
    Batch,
    MetricTensors,
    Noise,
    draw_flat,
    losses_on,
    unpack_noise,
)
from rl_training.core.products import computes_bf16
from rl_training.models import MLPSACModel
from rl_training.models.layers import affine

EXACT = {"rtol": 0.0, "atol": 0.0}


def learner(
    precision: str = "bf16", seed: int = 0, kind: type[SAC] = SAC, learning_rate: float = 3e-4
) -> SAC:
    model = MLPSACModel(3, 2, hidden_sizes=(24, 24), generator=torch.Generator().manual_seed(seed))
    return kind(model, seed=seed, precision=precision, learning_rate=learning_rate)


def rows(seed: int = 0, *lead: int) -> dict[str, torch.Tensor]:
    numbers = torch.randn(*lead, 16, 10, generator=torch.Generator().manual_seed(seed))
    return {
        "obs": numbers[..., :3],
        "actions": numbers[..., 3:5].tanh(),
        "next_obs": numbers[..., 5:8],
        "rewards": numbers[..., 8],
        "dones": (numbers[..., 9] > 1.0).float(),
    }


@pytest.mark.parametrize("lead", [(), (2,)])
def test_factors_are_rounded_and_the_bias_is_not(lead: tuple[int, ...]) -> None:
    # 1 + 2^-9 is no bf16 number, 1 is the nearest; 2^-9 beside 2 would be lost in a sum in bf16
    x = torch.full((*lead, 4, 20), 1.0 + 2.0**-9)
    weight, bias = torch.full((*lead, 20, 20), 0.1), torch.full((*lead, 1, 20), 2.0**-9)
    tenth = torch.tensor(0.1).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        y = affine(x, weight, bias)
    expected = (20.0 * tenth).bfloat16().float() + 2.0**-9
    torch.testing.assert_close(y, expected.expand(*lead, 4, 20), **EXACT)


def test_weights_and_metrics_stay_single_and_near_those_of_single_precision() -> None:
    single, rounded = learner("single"), learner()
    for step in range(5):
        of_single = single.update(rows(step), global_step=step).metrics
        of_rounded = rounded.update(rows(step), global_step=step).metrics
        assert all(value.dtype == torch.float32 for value in of_rounded.tensors.values())
        assert dict(of_rounded) == pytest.approx(dict(of_single), rel=0.05, abs=0.02)
        assert of_rounded["critic_loss"] != of_single["critic_loss"]
    assert all(tensor.dtype == torch.float32 for tensor in rounded.tensors().values())


class Again(SAC):
    """Looks at the actor's loss once more when everything has moved."""

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        metrics = super().step(batch, noise, stage)
        return metrics | {"again": self.actor_loss(batch, noise, stage)[0].detach()}


def test_a_weight_that_moved_within_an_update_is_rounded_anew() -> None:
    moved, batch = learner(kind=Again, learning_rate=0.1), rows()
    shapes = moved.noise_shapes(16)
    noise = unpack_noise(draw_flat(learner().streams, shapes), shapes)
    told = moved.update(batch, global_step=0).metrics["again"]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = moved.actor_loss(batch, noise, "full")[0]
    assert told == pytest.approx(expected.item(), rel=1e-5)


def test_losses_that_are_only_looked_at_are_those_of_single_precision() -> None:
    both = [losses_on(learner(precision), rows(2)) for precision in ("single", "bf16")]
    assert both[0] == both[1] and both[0].keys() == {"critic_loss", "actor_loss"}


def test_stacked_seeds_round_as_single_ones_do() -> None:
    singles = [learner(seed=seed) for seed in (0, 1)]
    stack = stack_learners(singles)
    assert stack.config.precision == "bf16"
    batches = [rows(seed) for seed in (0, 1)]
    stack.update({name: torch.stack([each[name] for each in batches]) for name in batches[0]}, global_step=0)
    for single, member, batch in zip(singles, unstack_learners(stack), batches, strict=True):
        single.update(batch, global_step=0)
        for name, tensor in single.tensors().items():
            torch.testing.assert_close(member.tensors()[name], tensor, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_a_graph_rounds_too() -> None:
    found = []
    for compiles in (False, True):
        each = learner()
        if compiles:
            each.compile("aot_eager")
        found.append(each.update(rows(), global_step=0).metrics["critic_loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[1] != learner("single").update(rows(), global_step=0).metrics["critic_loss"]


@pytest.mark.parametrize(
    ("flags", "has"), [("avx2 avx512f", False), ("avx2 avx512_bf16", True), ("amx_bf16", True), ("", False)]
)
def test_which_processors_have_instructions_for_it(flags: str, has: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    assert computes_bf16(file) == has
    assert not computes_bf16(tmp_path / "nothing")
