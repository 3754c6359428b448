"""Held-out episodes: their losses in the log, measured without learning from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.learner import action_error, losses_on
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.registry import ALGORITHMS
from rl_training.core.spaces import Choice, Spaces, unit_spaces
from rl_training.data import TransitionDataset
from rl_training.runs.train import train
from rl_training.runtime.callbacks import HeldOut, mean_action


def learner_of(algo: str) -> Any:
    recipe = get_recipe(algo)
    env = "Pendulum-v1" if recipe.online else None
    settings = TrainConfig(
        algo=algo, env_id=env, total_timesteps=10_000, algo_kwargs={"hidden_sizes": [8]}
    ).run_config()
    takes_numbers = "numbers" in recipe.learner.takes_actions
    spaces = unit_spaces(3, 2) if takes_numbers else Spaces.of(3, [Choice((0, 1))])
    return recipe.build_learner(settings, spaces, seed=0, device=torch.device("cpu"))


def batch_of(learner: Any, rows: int = 16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(rows, 3, generator=generator) for name in ("obs", "next_obs")}
    batch |= {
        name: torch.rand(rows, 2, generator=generator) * 1.8 - 0.9 for name in ("actions", "next_actions")
    }
    if learner.model.spaces.choices:
        batch["actions"] = torch.nn.functional.one_hot(torch.arange(rows) % 2, 2).float()
    batch |= {"rewards": torch.randn(rows, generator=generator), "dones": torch.zeros(rows)}
    batch |= {"returns_to_go": torch.zeros(rows), "discounts": torch.full((rows,), 0.9)}
    batch |= {"episodes": (torch.arange(rows) // 4).float(), "costs": batch["next_obs"][:, :1].abs()}
    return {name: values for name, values in batch.items() if name in learner.needs or name in STANDARD}


MOVED_FIRST = {"lion": "behavior_loss", "dqn": "critic_loss", "discrete_cql": "critic_loss"}
"""A loss of the first updates, where it is not the actor's."""
STANDARD = ("obs", "actions", "rewards", "next_obs", "dones")


def flat(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for key in sorted(state) for leaf in flat(state[key])]
    return [state.tolist() if isinstance(state, torch.Tensor) else state]


@pytest.mark.parametrize("algo", sorted(ALGORITHMS.names()))
def test_looking_at_losses_moves_nothing_and_gives_the_losses_of_the_update(algo: str) -> None:
    learner = learner_of(algo)
    batch = batch_of(learner)
    learner.update(batch, global_step=0)
    before = flat(learner.state_dict())
    found = losses_on(learner, batch)
    assert MOVED_FIRST.get(algo, "actor_loss") in found and all(
        torch.isfinite(value) for value in found.values()
    )
    assert losses_on(learner, batch).keys() == found.keys()
    for name, value in losses_on(learner, batch).items():
        assert torch.equal(value, found[name]), name  # the same random numbers every time
    assert flat(learner.state_dict()) == before
    learner.update(batch, global_step=1)
    assert flat(learner.state_dict()) != before  # and afterwards it learns as ever


def test_the_error_of_an_action_and_of_a_constant_one() -> None:
    """Actions 0.5 and -0.5 in turn, mean 0.1 in training: 0.26 = ((0.4)^2 + (0.6)^2) / 2."""
    learner = learner_of("bc")
    obs = torch.randn(4, 3)
    own = learner.model.actor.mode(obs).detach()
    assert float(action_error(learner, {"obs": obs, "actions": own + 0.1})) == pytest.approx(0.01, rel=1e-5)
    rows = {
        "obs": np.zeros((6, 3)),
        "rewards": np.zeros(6),
        "next_obs": np.zeros((6, 3)),
        "dones": np.zeros(6),
    }
    learned = TransitionDataset(**rows, actions=np.full((6, 1), 0.1))
    held = TransitionDataset(**rows, actions=np.array([[0.5], [-0.5]] * 3))
    assert float(mean_action(learned)) == pytest.approx(0.1)
    assert HeldOut(held, learned, batch_size=4).constant_error == pytest.approx(0.26)


def test_batches_are_equal_spread_and_never_more_rows_than_there_are() -> None:
    numbers = np.arange(1000, dtype=np.float32)
    rows = TransitionDataset(numbers[:, None], numbers[:, None], numbers, numbers[:, None], numbers * 0)
    batches = list(HeldOut(rows, rows, batch_size=8).batches(torch.device("cpu")))
    seen = torch.cat([batch["rewards"] for batch in batches])
    assert len(batches) == 32 and all(len(batch["rewards"]) == 8 for batch in batches)
    assert len(set(seen.tolist())) == 256 and seen.min() == 0 and seen.max() == 999
    (one,) = HeldOut(rows, rows, batch_size=4096).batches(torch.device("cpu"))
    assert sorted(one["rewards"].tolist()) == numbers.tolist()


def log(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Twenty episodes in which the action is a plain function of the observation."""
    obs = rng.uniform(-1, 1, size=(600, 2))
    return {
        "observations": obs,
        "actions": 0.8 * obs[:, :1],
        "rewards": -np.abs(obs[:, 0]),
        "terminals": np.zeros(600),
        "timeouts": np.arange(600) % 30 == 29,
    }


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_run_logs_the_losses_of_held_out_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    from rl_training.data.disk import CACHE_VARIABLE

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    np.savez(tmp_path / "log.npz", **log(np.random.default_rng(0)))  # type: ignore[arg-type]
    kwargs = {
        "dataset_path": str(tmp_path / "log.npz"),
        "dataset_in_memory": in_memory,
        "validation_share": 0.25,
        "action_low": [-2.0],
        "action_high": [2.0],
        "normalize_observations": True,
        "hidden_sizes": [32],
        "learning_rate": 0.01,
        "eval_interval": 100,
    }
    config = TrainConfig(
        algo="bc", total_timesteps=300, output_dir=str(tmp_path), log_interval=100, algo_kwargs=kwargs
    )
    result = train(config, quiet=True)
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "validation_action_error" in row]
    assert [(row["step"], row["kind"]) for row in measured] == [(step, "eval") for step in (100, 200, 300)]
    # actions within 0.8 of [-2, 2] are within 0.4 of [-1, 1]: the variance of U(-0.4, 0.4) is 0.0533
    assert measured[0]["validation_constant_error"] == pytest.approx(0.0533, rel=0.2)
    assert measured[-1]["validation_action_error"] < 0.1 * measured[-1]["validation_constant_error"]
    assert measured[-1]["validation_actor_loss"] < measured[0]["validation_actor_loss"]
    assert result.metrics["validation_action_error"] == measured[-1]["validation_action_error"]
    assert result.metrics["eval_return_mean"] is None


def test_a_run_can_stop_when_held_out_rows_get_no_better(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **log(np.random.default_rng(0)))  # type: ignore[arg-type]
    kwargs: dict[str, Any] = {
        "dataset_path": str(tmp_path / "log.npz"),
        "validation_share": 0.25,
        "action_bounds": "data",
        "hidden_sizes": [8],
        "eval_interval": 5,
        "early_stopping": {
            "metric": "validation_action_error",
            "mode": "min",
            "patience": 2,
            "min_delta": 1.0,
        },
    }
    config = TrainConfig(algo="iql", total_timesteps=1000, output_dir=str(tmp_path), algo_kwargs=kwargs)
    result = train(config, quiet=True)
    assert result.metrics["global_step"] == 15  # the first counts as the best, two more are no better
    assert {"validation_critic_loss", "validation_value_loss"} <= result.metrics.keys()
