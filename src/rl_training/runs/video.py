"""Episodes of a saved policy as video files: the same episodes, with the same returns, as an evaluation."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from rl_training.core.errors import ConfigError, EnvironmentProblem, UserError, install_hint
from rl_training.core.files import reason
from rl_training.core.types import Array, State
from rl_training.data.info import ReferenceReturns
from rl_training.policies.acting import ActingPolicy
from rl_training.runs.saved import SavedRun, Surroundings, acting_fields, environment_for
from rl_training.runtime.callbacks import eval_metrics
from rl_training.runtime.envs import EnvLike, describe_error, quiet_gymnasium
from rl_training.runtime.evaluate import EpisodePlayer, EvalResult, played_in_lock_step

DEFAULT_FRAMES_PER_SECOND = 30
MAX_EPISODE_STEPS = 100_000
INSTALL = install_hint("video")


def film_checkpoint(
    path: str | Path,
    folder: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    **given: Unpack[Surroundings],
) -> State:
    """Play a saved policy, write each episode to `folder/episode-<k>.mp4`, return the evaluation metrics."""
    require_encoder()
    run = SavedRun(path, device=device)
    config, settings = acting_fields(run.facts.config)
    maker, config = environment_for(config, run.facts.in_python, **given)
    if maker is None:
        raise ConfigError("env_id must be given to film: this policy was trained without an environment")
    seed = config.seed if settings.eval_seed is None else settings.eval_seed
    files, result = film_policy(
        run.policy,
        maker,
        dict(config.env_kwargs),
        num_episodes or max(1, config.eval_episodes),
        seed,
        Path(folder),
        deterministic=settings.eval_deterministic,
    )
    reference = run.facts.reference
    return {
        **eval_metrics(result, None if reference is None else ReferenceReturns(**asdict(reference))),
        "global_step": run.facts.counters.global_step,
        "gradient_steps": run.facts.counters.gradient_steps,
        "videos": [str(file) for file in files],
    }


def film_policy(
    policy: ActingPolicy,
    env: EnvLike,
    env_kwargs: dict[str, object],
    num_episodes: int,
    seed: int,
    folder: Path,
    *,
    deterministic: bool = True,
) -> tuple[list[Path], EvalResult]:
    """One environment plays all episodes, one after the other, and is filmed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"video directory {folder} cannot be written: {reason(problem)}") from problem
    returns, lengths = np.zeros(num_episodes), np.zeros(num_episodes, dtype=np.int64)
    with ExitStack() as closing:
        player = FilmedPlayer(env, env_kwargs, folder)
        closing.callback(player.close)
        for _ in played_in_lock_step(policy, [player], num_episodes, seed, deterministic, MAX_EPISODE_STEPS):
            returns[player.episode], lengths[player.episode] = player.ret, player.length
    return player.files, EvalResult(returns, lengths)


class FilmedPlayer(EpisodePlayer):
    """A player whose environment draws itself after every step."""

    def __init__(self, env: EnvLike, env_kwargs: dict[str, object], folder: Path) -> None:
        super().__init__(env, {**env_kwargs, "render_mode": "rgb_array"})
        self.folder = folder
        self.files: list[Path] = []
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
        self.env.close()


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
