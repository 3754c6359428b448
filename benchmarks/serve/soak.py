"""Memory of `rl-training serve` over many calls, with its decision log.

    python benchmarks/serve/soak.py [--calls 100000] [--sessions 20] [--fresh 10]

Every tenth call is of a session of its own: up to 10,000 of these are remembered. `--fresh 0` leaves them
out.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from serving import Caller, calls, free_port, make_policy, memory_mib, running, served


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=20, help="machines that ask in turn")
    parser.add_argument("--fresh", type=int, default=10, help="one call in so many is of a new machine")
    options = parser.parse_args()
    bodies = [json.loads(body) for body in calls(1_000)]
    with tempfile.TemporaryDirectory() as folder:
        policy, port = make_policy(Path(folder)), free_port()
        tenth = max(1, options.calls // 10)
        with running(served(policy, port)) as process, Caller(port) as caller:
            print("| calls | memory MiB |\n|---|---|")
            for number in range(options.calls):
                body = bodies[number % len(bodies)]
                fresh = options.fresh and (number + 1) % options.fresh == 0
                body["session"] = f"one-{number}" if fresh else f"tank-{number % options.sessions}"
                assert caller.ask(json.dumps(body).encode())[0] == 200
                if (number + 1) % tenth == 0:
                    print(f"| {number + 1:,} | {memory_mib(process):.1f} |", flush=True)
            time.sleep(1.5)  # longer than a row may wait
        with closing(sqlite3.connect(Path(folder) / "decisions.db")) as log:
            (rows,) = log.execute("select count(*) from decisions").fetchone()
    print(f"{rows:,} rows in the decision log of {options.calls:,} calls")


if __name__ == "__main__":
    main()
