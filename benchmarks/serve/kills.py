"""Rows that `rl-training serve` loses when it is killed (kill -9), beyond the window that it states.

    python benchmarks/serve/kills.py [--kills 50] [--seed 0]

Calls go on without a pause; between 0.3 and 1.5 seconds after the first one the process is killed. A row is
lost when its call was answered and it is not in the decision log; those answered within the stated window
before the kill may be. The service is started again on the same log.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from serving import Caller, calls, free_port, make_policy, running, served

from rl_training.serve.decisions import WINDOW


def answered_until_killed(words: list[str], port: int, after: float, bodies: list[bytes]) -> dict[int, float]:
    """Step of every answered call -> seconds before the kill at which its answer came."""
    with running(words) as process, Caller(port) as caller:
        answered: dict[int, float] = {}
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < after:
            status, told = caller.ask(bodies[len(answered) % len(bodies)])
            assert status == 200
            answered[json.loads(told)["step"]] = time.perf_counter()
        now = time.perf_counter()
        process.kill()
        process.wait()
    return {step: now - at for step, at in answered.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments, bodies = random.Random(options.seed), calls(1_000)
    told = lost = beyond = 0
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        policy = make_policy(Path(folder))
        for kill in range(options.kills):
            port = free_port()
            named = [body.replace(b'"tank-1"', f'"kill-{kill}"'.encode()) for body in bodies]
            answered = answered_until_killed(served(policy, port), port, moments.uniform(0.3, 1.5), named)
            with closing(sqlite3.connect(Path(folder) / "decisions.db")) as log:
                found = log.execute("select step from decisions where session = ?", (f"kill-{kill}",))
                kept = {int(step) for (step,) in found}
            gone = [before for step, before in answered.items() if step not in kept]
            told, lost = told + len(answered), lost + len(gone)
            beyond += sum(before > WINDOW for before in gone)
            longest = max([longest, *gone])
    print(
        f"{options.kills} kills, {told:,} calls answered, {lost:,} rows lost within the window of {WINDOW} s "
        f"(the oldest {longest:.2f} s before the kill), beyond it: {beyond}"
    )
    raise SystemExit(1 if beyond else 0)


if __name__ == "__main__":
    main()
