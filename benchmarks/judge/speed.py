"""How much faster is one stack of ensembles than one fitted Q evaluation after another?

    python benchmarks/judge/speed.py --data FILE [--peer PYTHON] [--widths 64 64] [--rounds 3]

Twelve policies, eight networks each: the judge's stack against d3rlpy's FQE run once per policy and network.
Same log, network (layer normalisation included), batch and updates. Both sides are timed in turns, in CPU
time of one thread, over a stretch of updates after a warm-up; totals are for the updates that the judge
makes by default. What is done once (the policies' actions for the whole log, compiling) is counted as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

POLICIES, MEMBERS, BATCH, TOTAL = 12, 8, 128, 6000
STRETCH = {"judge": 100, "d3rlpy": 1000}
SIDES = ("judge", "d3rlpy")


def time_judge(data: Path, widths: list[int]) -> dict[str, float]:
    """CPU seconds of one update of the whole stack, and of what is done once."""
    import torch

    from rl_training.algorithms.stack import stack_learners
    from rl_training.core.spaces import Spaces
    from rl_training.data import load_transition_dataset
    from rl_training.judging.fqe import batch_of, new_learner, stacked_actions
    from rl_training.judging.log import JudgedLog
    from rl_training.judging.policies import JudgedPolicy, actions_in_the_log
    from rl_training.judging.settings import JudgeConfig
    from rl_training.models.models import MLPTD3Model
    from rl_training.policies.policy import Policy

    torch.set_num_threads(1)
    log = JudgedLog.from_dataset(load_transition_dataset("hdf5", dataset_path=data), 0.99)
    sizes = log.obs.shape[1], log.actions.shape[1]
    config = JudgeConfig(members=MEMBERS, hidden_sizes=tuple(widths), batch_size=BATCH)
    spaces = Spaces(sizes[0], (-1.0,) * sizes[1], (1.0,) * sizes[1])
    policies = [
        Policy(MLPTD3Model(*sizes, hidden_sizes=tuple(widths)).actor, spaces) for _ in range(POLICIES)
    ]
    start = time.process_time()
    subjects = [JudgedPolicy(str(index), policy, sizes[1]) for index, policy in enumerate(policies)]
    actions = actions_in_the_log(subjects, log, config)
    there = stacked_actions(log, [each.there for each in actions], log.next_actions)[:-1]
    usable = torch.ones(POLICIES, len(log))
    learner = stack_learners([new_learner(log, config) for _ in range(POLICIES)])
    learner.compile()
    rows = torch.randint(len(log), (STRETCH["judge"], BATCH))
    for step in range(5):
        learner.update(batch_of(log, there, usable, rows[step]), global_step=step)
    once = time.process_time() - start
    start = time.process_time()
    for step in range(STRETCH["judge"]):
        learner.update(batch_of(log, there, usable, rows[step]), global_step=step)
    return {"once": once, "update": (time.process_time() - start) / STRETCH["judge"]}


def time_d3rlpy(data: Path, widths: list[int]) -> dict[str, float]:
    """CPU seconds of one update of one network for one policy."""
    import d3rlpy
    import h5py
    import numpy as np
    import torch

    torch.set_num_threads(1)
    with h5py.File(data) as file:
        columns = [np.array(file[name]) for name in ("observations", "actions", "rewards")]
        ends = [np.array(file[name], dtype=np.float32) for name in ("terminals", "timeouts")]
    replay = d3rlpy.dataset.MDPDataset(*columns, ends[0], timeouts=ends[1])
    encoder = d3rlpy.models.VectorEncoderFactory(widths, use_layer_norm=True)
    algo = d3rlpy.algos.TD3PlusBCConfig(
        actor_encoder_factory=d3rlpy.models.VectorEncoderFactory(widths)
    ).create()
    algo.build_with_dataset(replay)
    config = d3rlpy.ope.FQEConfig(batch_size=BATCH, encoder_factory=encoder, target_update_interval=20)
    fqe = d3rlpy.ope.FQE(algo=algo, config=config)
    quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
    fqe.fit(replay, n_steps=50, n_steps_per_epoch=50, **quiet)
    count = STRETCH["d3rlpy"]
    start = time.process_time()
    fqe.fit(replay, n_steps=count, n_steps_per_epoch=count, **quiet)
    return {"once": 0.0, "update": (time.process_time() - start) / count}


def measured(side: str, options: argparse.Namespace) -> dict[str, float]:
    """One side in a process of its own."""
    python = sys.executable if side == "judge" else str(options.peer)
    command = [python, __file__, "--side", side, "--data", str(options.data), "--widths"]
    told = subprocess.run(
        [*command, *map(str, options.widths)], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a log in the layout of D4RL")
    parser.add_argument("--peer", type=Path, help="Python with d3rlpy; without it, the judge alone is timed")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        timed = time_judge if options.side == "judge" else time_d3rlpy
        print(json.dumps(timed(options.data, options.widths)))
        return
    ratios = []
    for index in range(options.rounds):
        ours = measured("judge", options)
        if options.peer is None:
            print(f"round {index}: {1e3 * ours['update']:.1f} ms an update of {POLICIES * MEMBERS} networks")
            continue
        theirs = measured("d3rlpy", options)
        totals = ours["once"] + TOTAL * ours["update"], POLICIES * MEMBERS * TOTAL * theirs["update"]
        ratios.append(totals[1] / totals[0])
        print(
            f"round {index}: judge {1e3 * ours['update']:.1f} ms an update of {POLICIES * MEMBERS} networks "
            f"and {ours['once']:.0f} s once, d3rlpy {1e3 * theirs['update']:.2f} ms an update of one; "
            f"for {TOTAL:,} updates {totals[0]:.0f} s against {totals[1]:.0f} s: {ratios[-1]:.1f} x",
            flush=True,
        )
    if ratios:
        print(f"{options.widths}: {median(ratios):.1f} x (median of {options.rounds})")


if __name__ == "__main__":
    main()
