"""Episodes of a saved policy as video files: the same episodes, with the same returns, as an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from rl_training.core.errors import EnvironmentProblem, UserError, install_hint
from rl_training.core.files import reason
from rl_training.core.types import Array, State
from rl_training.runs.resume import evaluate_checkpoint
from rl_training.runs.saved import Surroundings
from rl_training.runtime.envs import EnvLike, describe_error, quiet_gymnasium
from rl_training.runtime.evaluate import EpisodePlayer

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
