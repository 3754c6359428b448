"""What the benchmarks of serving have in common: a policy, a service in a process of its own, and callers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from rl_training import TD3BC, read_log
from rl_training.demo import plant

HOST = "127.0.0.1"


def make_policy(folder: Path, width: int = 256) -> Path:
    """A guarded ONNX policy for the demo's tank; how good it is does not matter here."""
    log = folder / "log.csv"
    plant.write_log(log, runs=40, seed=0)
    data = read_log(
        str(log),
        observations=list(plant.OBSERVATIONS),
        actions=list(plant.ACTIONS),
        reward="score",
        episode="run",
    )
    agent = TD3BC(
        total_timesteps=20,
        hidden_sizes=[width, width],
        action_low=[0.0, 0.0],
        action_high=[100.0, 100.0],
        compile=False,
        judge_at_end=False,
        output_dir=folder / "runs",
    )
    agent.learn(dataset=data, quiet=True)
    agent.make_guard(data, fallback="hold")
    return Path(agent.export(folder / "policy.onnx"))


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


@contextmanager
def running(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program that says a line on stderr as soon as it answers."""
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        if "http://" not in (line := process.stderr.readline()):
            raise SystemExit(f"{' '.join(words)} did not start: {line}")
        yield process
    finally:
        process.kill()
        process.communicate()


def served(policy: Path, port: int, *options: str) -> list[str]:
    """The words that start the service."""
    return ["-m", "rl_training", "serve", str(policy), "--port", str(port), "--mode", "advise", *options]


def memory_mib(process: subprocess.Popen[str]) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024.0


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Caller:
    """One connection that stays open. Bytes are sent as they are given, so that wrong ones can be."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port, self.left = port, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(self, body: bytes, path: str = "/act", **headers: str) -> bytes:
        named = {"host": f"{HOST}:{self.port}", "content-length": str(len(body)), **headers}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """Status and body; 0 where the connection was closed without one."""
        while b"\r\n\r\n" not in self.left:
            if not (part := self.socket.recv(65536)):
                return 0, b""
            self.left += part
        head, _, body = self.left.partition(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(sizes[0].split(b":")[1]) if sizes else 0
        while len(body) < size:
            if not (part := self.socket.recv(65536)):
                break
            body += part
        self.left = body[size:]
        return int(head.split(b" ")[1]), body[:size]

    def ask(self, body: bytes, path: str = "/act", **headers: str) -> tuple[int, bytes]:
        self.send(self.request(body, path, **headers))
        return self.answer()


def calls(count: int) -> list[bytes]:
    """Readings of the tank as bodies of requests, each with what was applied before."""
    draws = np.random.default_rng(0)
    readings = plant.start(count, draws)
    settings = draws.uniform(0.0, 100.0, (count, 2))
    return [
        json.dumps(
            {
                "session": "tank-1",
                **dict(zip(plant.OBSERVATIONS, seen, strict=True)),
                "applied": dict(zip(plant.ACTIONS, done, strict=True)),
            }
        ).encode()
        for seen, done in zip(readings.tolist(), settings.tolist(), strict=True)
    ]
