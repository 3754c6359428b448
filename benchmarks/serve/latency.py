"""What a call of `rl-training serve` costs, beside a bare onnxruntime call behind the same web server.

    python benchmarks/serve/latency.py [--calls 5000] [--rounds 5] [--connections 4] [--width 256]

The bare service takes the same JSON, asks onnxruntime for the action and answers with it: no session, guard,
decision log, drift or doors. All run Starlette on uvicorn in processes of their own, on one thread. They are
asked in turn by one connection that waits for each answer (latency), and by several that always have a
request under way (calls per second). The processor time per call is the service's own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from serving import Caller, calls, cpu_seconds, free_port, make_policy, running, served

BARE = """
import sys
import numpy, onnxruntime, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from rl_training.demo.plant import OBSERVATIONS

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])

async def act(request):
    call = await request.json()
    obs = numpy.array([[call[name] for name in OBSERVATIONS]], dtype=numpy.float32)
    return JSONResponse({"action": session.run(["action"], {"obs": obs})[0][0].tolist()})

app = Starlette(routes=[Route("/act", act, methods=["POST"])])
config = uvicorn.Config(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("http://", file=sys.stderr, flush=True)

Server(config).run()
"""


def waits(port: int, bodies: Sequence[bytes]) -> np.ndarray:
    """Seconds of each call of one connection."""
    seconds = np.empty(len(bodies))
    with Caller(port) as caller:
        for index, body in enumerate(bodies):
            started = time.perf_counter()
            status, _ = caller.ask(body)
            seconds[index] = time.perf_counter() - started
            assert status == 200
    return seconds


def rate(port: int, bodies: Sequence[bytes], connections: int) -> float:
    """Calls per second of several connections, each with a request under way."""
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(port)) for _ in range(connections)]
        started = time.perf_counter()
        for caller, body in zip(callers, bodies, strict=False):
            caller.send(caller.request(body))
        for index, body in enumerate(bodies[connections:]):
            caller = callers[index % connections]
            assert caller.answer()[0] == 200
            caller.send(caller.request(body))
        for caller in callers:
            caller.answer()
        return len(bodies) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000, help="calls in each round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in which all are asked in turn")
    parser.add_argument("--connections", type=int, default=4, help="connections that ask at once")
    parser.add_argument("--width", type=int, default=256, help="units of the policy's two hidden layers")
    options = parser.parse_args()
    bodies = calls(options.calls)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        policy = make_policy(Path(folder), options.width)
        ports = [free_port() for _ in range(3)]
        programs = {
            "bare onnxruntime": ["-c", BARE, str(policy), str(ports[0])],
            "serve, no decision log": served(policy, ports[1], "--decisions", ""),
            "serve": served(policy, ports[2]),
        }
        started = {name: stack.enter_context(running(words)) for name, words in programs.items()}
        seconds: dict[str, list[np.ndarray]] = {name: [] for name in programs}
        rates: dict[str, list[float]] = {name: [] for name in programs}
        cpu = dict.fromkeys(programs, 0.0)
        for port in ports:
            waits(port, bodies[:200])
        for _ in range(options.rounds):
            for name, port in zip(programs, ports, strict=True):
                before = cpu_seconds(started[name])
                seconds[name].append(waits(port, bodies))
                rates[name].append(rate(port, bodies, options.connections))
                cpu[name] += cpu_seconds(started[name]) - before
    print(f"| | p50 ms | p99 ms | calls per second, {options.connections} at once | processor ms a call |")
    print("|---|---|---|---|---|")
    total = 2 * options.calls * options.rounds
    for name in programs:
        # the median of the rounds: other work on the machine makes single rounds slow
        p50, p99 = (np.median([np.percentile(each, q) for each in seconds[name]]) for q in (50, 99))
        spent, fastest = cpu[name] / total * 1e3, np.median(rates[name])
        print(f"| {name} | {p50 * 1e3:.2f} | {p99 * 1e3:.2f} | {fastest:.0f} | {spent:.2f} |")


if __name__ == "__main__":
    main()
