"""Kill a run that goes from offline to online in all its phases, and compare it with an undisturbed one.

    python benchmarks/faults/kill_finetune.py --kills 60 --algo cal_ql
    python benchmarks/faults/kill_finetune.py --kills 60 --algo iql --live

The kills are spread over the offline phase, the warm-up, the online phase and the borders between them: the
process kills itself with SIGKILL before a step, inside a round of updates or after a step, and every third
time it is killed from outside at any moment. The next process resumes from the newest checkpoint. At the end
every part of the training state must equal, bit for bit, that of the same run without any kill. With `--live`
the online phase is a loop of the script's own (`act`, `observe`, `update`), and all kills fall into it.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from killing import STATE, differences

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint
from rl_training.runs.live import open_live
from rl_training.runs.resume import resume_training
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, Run

OFFLINE, WARMUP, ONLINE, EPISODE = 60, 20, 100, 11
HOOKS = ("on_step_start", "on_update_end", "on_step_end")


def config(algo: str, output_dir: Path) -> TrainConfig:
    """Offline, warm-up and online; an algorithm that is online anyhow has data beside what it collects."""
    online = get_recipe(algo).online
    phased = {"warmup_steps_online": WARMUP, "batch_size_online": 24}
    return TrainConfig(
        algo=algo,
        env_id="Pendulum-v1",
        env_kwargs={"max_episode_steps": EPISODE},
        total_timesteps=OFFLINE + ONLINE if online else OFFLINE,
        online_timesteps=0 if online else ONLINE,
        output_dir=str(output_dir),
        eval_episodes=1,
        log_interval=10,
        checkpoint_interval=3,
        algo_kwargs={
            **{"dataset_kind": "random", "dataset_size": 300, "normalize_reward": True},
            **{"hidden_sizes": [16, 16], "batch_size": 16, "compile": False, "eval_interval": 25},
            **{"offline_share": [0.8, 0.2, 50], "buffer_capacity": 50},
            **{"gradient_updates_per_step": 2, "train_frequency": 3},
            **({"learning_starts": WARMUP} if online else phased),
        },
    )


class Kill(Callback):
    """SIGKILL at the first call of a hook once a step is reached."""

    def __init__(self, hook: str, step: int) -> None:
        self.step = step
        setattr(self, hook, self.strike)

    def strike(self, run: Run, *_: Any) -> None:
        if run.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def begun(folder: Path, live: bool) -> Path | None:
    """The run in a folder, once it has a checkpoint."""
    runs = sorted(folder.glob("*-live" if live else "*"))
    return next((run for run in runs if newest_checkpoint(run)), None)


def in_an_environment(algo: str, folder: Path, callbacks: list[Callback]) -> None:
    """Start the run, or resume it from its newest checkpoint."""
    started = begun(folder, live=False)
    if started is None:
        train(config(algo, folder), callbacks=callbacks, quiet=True)
    else:
        resume_training(started, callbacks=callbacks, quiet=True)


def observed(step: int) -> Any:
    """What the machine of the live loop shows, as a function of the step alone."""
    return np.array([np.cos(step), np.sin(step), np.sin(0.1 * step)], dtype=np.float32)


def in_a_loop(algo: str, folder: Path, callbacks: list[Callback]) -> None:
    """Begin a live session from a policy that was trained before, or go on with it."""
    started = begun(folder, live=True)
    parent = folder / f"{algo}-Pendulum-v1-s0"
    session = open_live(started or parent, timesteps=None if started else ONLINE, callbacks=callbacks)
    while (step := session.trainer.counters.env_steps) < ONLINE:
        place = step % EPISODE
        action = session.act(observed(step), first=place == 0)
        reward = -float(np.square(action).sum())
        session.observe(reward, observed(step + 1), truncated=place == EPISODE - 1)
        session.update()
    session.close()


def in_a_child(
    go_on: Callable[[str, Path, list[Callback]], None],
    algo: str,
    folder: Path,
    callbacks: list[Callback],
    seconds: float | None,
) -> int:
    """The exit status of a process that goes on with the run, killed after some seconds if it still runs."""
    child = os.fork()
    if child == 0:
        go_on(algo, folder, callbacks)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def phase_at(step: int, *, online: bool) -> str:
    if online:
        return "online"
    return "offline" if step <= OFFLINE else "warm-up" if step <= OFFLINE + WARMUP else "online"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--algo", default="cal_ql")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    parser.add_argument("--live", action="store_true", help="a loop of our own in place of an environment")
    options = parser.parse_args()
    live, algo = options.live, options.algo
    go_on, first = (in_a_loop, OFFLINE + 1) if live else (in_an_environment, 1)
    torch.set_num_threads(1)
    rng, counts = random.Random(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        disturbed, undisturbed = Path(place, "disturbed"), Path(place, "undisturbed")
        for folder in (disturbed, undisturbed) if live else ():
            train(config(algo, folder).replace(online_timesteps=0), quiet=True)
        for number in range(options.kills):
            step = first + number * (OFFLINE + ONLINE - first) // options.kills
            phase = phase_at(step, online=get_recipe(algo).online)
            hook, seconds = rng.choice(HOOKS), rng.uniform(0.1, 2.0) if number % 3 == 2 else None
            status = in_a_child(go_on, algo, disturbed, [Kill(hook, step)], seconds)
            assert os.WIFSIGNALED(status), f"the run ended by itself (status {status})"
            counts[f"{phase}, {'from outside' if seconds else hook}"] += 1
        assert in_a_child(go_on, algo, disturbed, [], None) == 0
        assert in_a_child(go_on, algo, undisturbed, [], None) == 0
        left, right = (load_checkpoint(begun(folder, live) or folder) for folder in (disturbed, undisturbed))
    for name, count in sorted(counts.items()):
        print(f"{count:4d}  {name}")
    unequal = [line for key in STATE if key in left for line in differences(left[key], right[key], key)]
    where = f"{algo}{', live' if live else ''}: step {left['counters']['global_step']}"
    print(
        f"{where} after {options.kills} kills; "
        f"values that differ from the undisturbed run: {', '.join(unequal) or 'none'}"
    )
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
