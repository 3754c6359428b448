"""What a saved policy does: its actions, episodes in an environment, and films of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import ConfigError, EnvironmentProblem, UserError, install_hint
from rl_training.core.files import reason
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array, Facts, State
from rl_training.data.info import ReferenceReturns
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.files import is_policy_file, load_exported
from rl_training.runs.saved import (
    SavedRun,
    Surroundings,
    acting_fields,
    environment_for,
)
from rl_training.runtime.callbacks import eval_metrics, evaluate_run_policy
from rl_training.runtime.envs import EnvLike, describe_error, quiet_gymnasium
from rl_training.runtime.evaluate import EpisodePlayer, OpenPlayers, open_players


class Trained(NamedTuple):
    """What an evaluation asks of the file that a policy came in."""

    config: Facts
    reference: Facts | None
    global_step: int
    gradient_steps: int
    in_python: tuple[str, ...] = ()


def evaluate_checkpoint(
    path: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    players: OpenPlayers = open_players,
    inputs: Mapping[str, float] | None = None,
    **given: Unpack[Surroundings],
) -> State:
    """Episodes with the saved policy in its environment, or in `env`; as many as the run's config says.

    `inputs` are what is chosen of the policy's own, such as `{"dial": 0.5}`. An exported policy plays the
    same episodes as the run that it was exported from, on the processor.
    """
    if not is_policy_file(Path(path)):
        return evaluate_run(SavedRun(path, device=device), num_episodes, players, inputs, **given)
    policy = load_exported(Path(path))
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device must be cpu: an exported policy acts on the processor, got {device!r}")
    training, reference = policy.metadata["training"], policy.metadata["reference_returns"]
    trained = Trained(training["config"], reference, training["global_step"], training["gradient_steps"])
    return _evaluate(policy.with_inputs(**(inputs or {})), trained, num_episodes, players, **given)


def evaluate_run(
    run: SavedRun,
    num_episodes: int | None = None,
    players: OpenPlayers = open_players,
    inputs: Mapping[str, float] | None = None,
    **given: Unpack[Surroundings],
) -> State:
    """The same of a run that is open already; random actions, where it draws any, are the same each time."""
    facts = run.facts
    trained = Trained(
        facts.config,
        None if facts.reference is None else asdict(facts.reference),
        facts.counters.global_step,
        facts.counters.gradient_steps,
        facts.in_python,
    )
    return _evaluate(
        run.policy.snapshot().with_inputs(**(inputs or {})), trained, num_episodes, players, **given
    )


def _evaluate(
    policy: ActingPolicy,
    trained: Trained,
    num_episodes: int | None,
    players: OpenPlayers,
    **given: Unpack[Surroundings],
) -> State:
    config, settings = acting_fields(trained.config)
    maker, config = environment_for(config, trained.in_python, **given)
    if maker is None:
        raise ConfigError("env_id must be given to evaluate: this policy was trained without an environment")
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"num_episodes must be >= 1, got {num_episodes}")
    episodes = num_episodes or max(1, config.eval_episodes)
    reference = None if trained.reference is None else ReferenceReturns.from_dict(trained.reference)
    result = evaluate_run_policy(policy, maker, config, settings, episodes, players)
    return {
        **eval_metrics(result, reference, settings),
        "global_step": trained.global_step,
        "gradient_steps": trained.gradient_steps,
    }


def predict_checkpoint(path: str | Path, obs: npt.ArrayLike, *, deterministic: bool = True) -> FloatArray:
    """Actions, in the environment's units, for one observation or a batch."""
    return SavedRun(path).policy.predict(obs, deterministic)


# ---- episodes of a saved policy as video files: the same episodes, with the same returns, as an evaluation


DEFAULT_FRAMES_PER_SECOND = 30
INSTALL = install_hint("video")


def film_checkpoint(
    path: str | Path,
    folder: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    inputs: Mapping[str, float] | None = None,
    **given: Unpack[Surroundings],
) -> State:
    """Evaluate a saved policy, write each episode to `folder/episode-<k>.mp4`, return the metrics."""
    require_encoder()
    films = Films(Path(folder))
    metrics = evaluate_checkpoint(
        path, num_episodes=num_episodes, device=device, players=films.open, inputs=inputs, **given
    )
    return {**metrics, "videos": [str(file) for file in films.files]}


class Films:
    """Opens the one environment that plays all episodes, one after the other, and is filmed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []

    def open(
        self, env: EnvLike, env_kwargs: Mapping[str, object] | None, count: int, closing: ExitStack
    ) -> list[EpisodePlayer]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(
                f"video directory {self.folder} cannot be written: {reason(problem)}"
            ) from problem
        player = FilmedPlayer(env, env_kwargs, self.folder, self.files)
        closing.callback(player.close)
        return [player]


class FilmedPlayer(EpisodePlayer):
    """A player whose environment draws itself after every step."""

    def __init__(
        self, env: EnvLike, env_kwargs: Mapping[str, object] | None, folder: Path, files: list[Path]
    ) -> None:
        super().__init__(env, {**(env_kwargs or {}), "render_mode": "rgb_array"})
        self.folder, self.files = folder, files
        self.rate = float(self.env.metadata.get("render_fps") or DEFAULT_FRAMES_PER_SECOND)
        self.writer: Any = None

    def begin(self, episode: int, seed: int) -> Array:
        obs = super().begin(episode, seed)
        self.finish_file()
        self.files.append(self.folder / f"episode-{episode:03d}.mp4")
        self.add_frame()
        return obs

    def play(self, action: Array) -> tuple[Array, bool]:
        obs, ended = super().play(action)
        self.add_frame()
        return obs, ended

    def add_frame(self) -> None:
        import imageio.v2 as imageio

        try:
            with quiet_gymnasium():
                frame = np.asarray(self.env.render(), dtype=np.uint8)
        except Exception as error:
            raise EnvironmentProblem(
                f"environment {self.env_id!r} cannot draw itself: {describe_error(error)}{_remedy(error)}"
            ) from error
        if frame.ndim != 3:
            raise EnvironmentProblem(
                f"environment {self.env_id!r} has no pictures: it must support render_mode 'rgb_array'"
            )
        try:
            if self.writer is None:
                # macro_block_size 2: H.264 needs even sides, and nothing else is to be scaled
                self.writer = imageio.get_writer(
                    self.files[-1],
                    fps=self.rate,
                    codec="libx264",
                    macro_block_size=2,
                    ffmpeg_log_level="error",
                )
            self.writer.append_data(frame)
        except OSError as problem:
            raise UserError(f"cannot write {self.files[-1]}: {reason(problem)}") from problem

    def finish_file(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def close(self) -> None:
        self.finish_file()
        super().close()


def require_encoder() -> None:
    """Say what to install before anything is loaded."""
    for package in ("imageio", "imageio_ffmpeg"):
        if find_spec(package) is None:
            raise UserError(f"video needs the package {package}, which is not installed: {INSTALL}")
    # Pictures are drawn in memory: pygame needs no display, nor to say hello in the middle of the output.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _remedy(error: Exception) -> str:
    text = str(error).lower()
    if "pygame" in text:
        return f"; {INSTALL}"
    return "; set MUJOCO_GL=egl or MUJOCO_GL=osmesa" if "gl" in text.split() or "opengl" in text else ""
