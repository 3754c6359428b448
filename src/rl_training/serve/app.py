"""A policy file as a web service: calls by column names, the Open Inference Protocol, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rl_training.core.drift import RECOMMENDED, ColumnShares, training_columns
from rl_training.core.errors import UserError, printable, shown
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Facts, State
from rl_training.core.version import VERSION
from rl_training.policies.files import load_exported
from rl_training.policies.opened import DeployedPolicy
from rl_training.serve.decisions import Columns, DecisionLog
from rl_training.serve.server import Doorkeeper, Refusal, json_object, listen, told_problem
from rl_training.serve.sessions import Mode, Served, Sessions

LARGEST_BODY = 1_000_000
MOST_ROWS = 4_096
"""Observations in one request of the Open Inference Protocol."""


Endpoint = Callable[[Request], Awaitable[Response]]


def open_served(path: Path) -> Served:
    """The policy of a file, with the hash that the decision log names it by."""
    import hashlib

    try:
        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError as problem:
        raise UserError(f"cannot read policy {path}: {problem.strerror or problem}") from problem
    return Served(load_exported(path), digest)


@dataclass
class Service:
    """One policy with its sessions, decision log and watch."""

    name: str
    sessions: Sessions
    decisions: DecisionLog | None
    watch: Watch

    @classmethod
    def of(cls, path: Path, name: str | None, mode: Mode, decisions: str | None, idle: float) -> Service:
        served = open_served(path)
        policy = served.policy
        columns = Columns(served.observations, served.actions)
        choices = zip(served.actions, policy.spaces.choices, strict=False)
        words = [each for each, choice in choices if choice is not None and choice.named]
        log = None if decisions is None else DecisionLog(decisions, columns, words)
        return cls(name or path.stem, Sessions(served, mode, idle), log, watch_of(served))

    @property
    def policy(self) -> DeployedPolicy:
        return self.sessions.served.policy

    def act(self, call: Facts) -> State:
        """One decision by names."""
        started = time.perf_counter()
        answer = self.sessions.act(call)
        if self.decisions is not None:
            self.decisions.add(answer.row, answer.applied_before)
            if self.decisions.problem is not None:
                answer.reply["reasons"].append("the decision log cannot be written at the moment")
        served = self.sessions.served
        obs = np.array([answer.row[name] for name in served.observations], dtype=np.float32)
        told = [answer.row.get(f"{RECOMMENDED}{name}") for name in served.actions]
        action = [
            np.nan if each is None or isinstance(each, str) else each for each in told
        ]  # words of levels
        seconds = time.perf_counter() - started
        self.watch.note(obs, np.array(action, dtype=np.float32), answer.reply["flagged"], seconds)
        return answer.reply

    def swap(self, path: Path) -> None:
        """Take over another file; where it cannot be, the old one stays."""
        try:
            served = open_served(path)
            self.sessions.swap(served)
        except UserError:
            self.watch.swaps["refused"] += 1
            raise
        self.watch.training = training_columns(served.policy.metadata["training"]["data"])
        self.watch.swaps["done"] += 1

    def infer(self, body: Facts) -> State:
        """A request of the Open Inference Protocol: observations by place, without memory."""
        obs = _tensor(body, self.policy.spaces.obs_dim)
        if self.policy.memory is not None:
            raise Refusal(400, "this policy remembers: call /act with a session")
        if self.policy.guard_facts is None:
            outputs = {"action": self.policy.act(obs, True, **self.sessions.inputs)}
        else:
            told = self.policy.predict_guarded(obs, **self.sessions.inputs)
            outputs = {"action": told.action, "novelty": told.novelty[:, None]}
        told_outputs = [
            {"name": name, "datatype": "FP32", "shape": list(values.shape), "data": _numbers(values)}
            for name, values in outputs.items()
        ]
        answer: State = {"model_name": self.name, "outputs": told_outputs}
        if isinstance(body.get("id"), str):
            answer["id"] = body["id"]
        return answer

    def describe(self) -> State:
        """Metadata of the model, as the protocol has it."""
        spaces = self.policy.spaces
        outputs = {"action": spaces.action_columns} | ({"novelty": 1} if self.policy.guard_facts else {})
        return {
            "name": self.name,
            "versions": [self.sessions.served.digest],
            "platform": "rl_training",
            "inputs": [{"name": "obs", "datatype": "FP32", "shape": [-1, spaces.obs_dim]}],
            "outputs": [
                {"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in outputs.items()
            ],
        }


def watch_of(served: Served) -> Watch:
    known = training_columns(served.policy.metadata["training"]["data"])
    return Watch(served.observations, known, served.policy.spaces)


class Endpoints:
    """Every address of the service, behind its doors."""

    def __init__(self, service: Service, doors: Doorkeeper) -> None:
        self.service, self.doors = service, doors

    def routes(self) -> list[Route]:
        health, model = "/v2/health", "/v2/models/{name}"
        return [
            Route("/act", self._guarded(self.act), methods=["POST"]),
            Route("/reset", self._guarded(self.reset), methods=["POST"]),
            Route("/dial", self._guarded(self.dial), methods=["POST"]),
            Route("/metrics", self._guarded(self.metrics)),
            Route("/v2", self._guarded(self.server)),
            Route(f"{health}/live", self._guarded(self.live, open_to_all=True)),
            Route(f"{health}/ready", self._guarded(self.ready, open_to_all=True)),
            Route(model, self._guarded(self.model)),
            Route(f"{model}/ready", self._guarded(self.model_ready)),
            Route(f"{model}/infer", self._guarded(self.infer), methods=["POST"]),
        ]

    def _guarded(self, handle: Endpoint, *, open_to_all: bool = False) -> Endpoint:
        """Ask the doors first; what is wrong with a request becomes one line and a status."""

        async def endpoint(request: Request) -> Response:
            refused = self.doors.refuses(request.headers, open_to_all=open_to_all)
            try:
                if refused is not None:
                    raise Refusal(*refused)
                return await handle(request)
            except UserError as problem:
                self.service.watch.calls["refused"] += 1
                return told_problem(problem)

        return endpoint

    async def act(self, request: Request) -> Response:
        return JSONResponse(self.service.act(await json_object(request, LARGEST_BODY)))

    async def reset(self, request: Request) -> Response:
        body = await json_object(request, LARGEST_BODY)
        name = self.service.sessions.reset(body)
        return JSONResponse({"session": name, "step": 0})

    async def dial(self, request: Request) -> Response:
        if not self.doors.knows(request.headers):
            raise Refusal(403, "the dial is changed with a token alone: start with --token-file")
        self.service.sessions.choose(await json_object(request, LARGEST_BODY))
        return JSONResponse(self.service.sessions.inputs)

    async def infer(self, request: Request) -> Response:
        self._check_name(request)
        return JSONResponse(self.service.infer(await json_object(request, LARGEST_BODY)))

    async def model(self, request: Request) -> Response:
        self._check_name(request)
        return JSONResponse(self.service.describe())

    async def model_ready(self, request: Request) -> Response:
        self._check_name(request)
        return JSONResponse({"name": self.service.name, "ready": True})

    async def server(self, _: Request) -> Response:
        return JSONResponse({"name": "rl_training", "version": VERSION, "extensions": []})

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        log = self.service.decisions
        problem = None if log is None else log.problem
        return JSONResponse({"ready": problem is None}, 200 if problem is None else 503)

    async def metrics(self, _: Request) -> Response:
        log = self.service.decisions
        told = (0, 0, False) if log is None else (log.waiting.qsize(), log.written, log.problem is not None)
        return PlainTextResponse("\n".join([*self.service.watch.lines(*told), ""]))

    def _check_name(self, request: Request) -> None:
        if request.path_params["name"] != self.service.name:
            raise Refusal(404, f"there is one model here, {self.service.name!r}")


def _tensor(body: Facts, width: int) -> Any:
    """The one input of a request, `[n, width]`."""
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise UserError("inputs must be a list of one tensor, obs")
    tensor = inputs[0]
    if tensor.get("name") != "obs":
        raise UserError(f"the input must be called obs, got {shown(tensor.get('name'))}")
    if tensor.get("datatype") not in ("FP32", "FP64"):
        raise UserError(f"obs.datatype must be FP32 or FP64, got {shown(tensor.get('datatype'))}")
    shape = tensor.get("shape")
    fits = isinstance(shape, list) and [type(each) for each in shape] == [int, int] and shape[1] == width
    if not (fits and isinstance(shape, list) and 0 < shape[0] <= MOST_ROWS):
        raise UserError(f"obs.shape must be [n, {width}] with n up to {MOST_ROWS}, got {shown(shape)}")
    try:
        values = np.array(tensor.get("data"), dtype=np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise UserError("obs.data must be numbers") from None
    if values.size != shape[0] * shape[1]:
        raise UserError(f"obs.data must have {shape[0] * shape[1]} numbers, got {values.size}")
    with np.errstate(over="ignore"):
        obs = values.reshape(shape).astype(np.float32)
    if not np.isfinite(obs).all():
        raise UserError("obs.data must be finite numbers; /act takes gaps")
    return obs


def _numbers(values: Any) -> list[float | None]:
    return [float(each) if np.isfinite(each) else None for each in values.reshape(-1)]


# ---- start, stop and swap: a policy file on an address, until SIGTERM or Ctrl-C


TOKEN_VARIABLE = "RL_TRAINING_TOKEN"
LOOK_EVERY = 1.0
"""Seconds between two looks at a watched file."""


@dataclass(frozen=True)
class ServeSettings:
    """Where and how a policy is served."""

    policy: Path
    mode: Mode = "shadow"
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    decisions: str | None = None
    """a file or address; none: `decisions.db` beside the policy, an empty text: no log"""
    token_file: Path | None = None
    watch: bool = False
    dial: float | None = None
    idle: float = 3600.0

    @property
    def place(self) -> str | None:
        """Where decisions are written."""
        if self.decisions is None:
            return str(self.policy.with_name("decisions.db"))
        return self.decisions or None

    @property
    def token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"--token-file {self.token_file} cannot be read: {problem}") from problem


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Answer until told to stop; what waits for the decision log is written before it ends."""
    doors = Doorkeeper(settings.host, settings.token)
    service = Service.of(settings.policy, settings.name, settings.mode, settings.place, settings.idle)
    if settings.dial is not None:
        service.sessions.choose({"dial": settings.dial})
    app = Starlette(routes=Endpoints(service, doors).routes(), lifespan=_lifespan(service, settings, say))

    def ready(port: int) -> None:
        say(
            f"{service.name} ({service.sessions.served.digest}) in {settings.mode} mode at "
            f"http://{settings.host}:{port}; decisions: {settings.place or 'not written'}"
        )

    try:
        listen(app, settings.host, settings.port, ready)
    finally:
        if service.decisions is not None:
            service.decisions.close()


def _lifespan(
    service: Service, settings: ServeSettings, say: Callable[[str], None]
) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(_look(service, settings.policy, say)) if settings.watch else None
        yield
        if looking is not None:
            looking.cancel()

    return lifespan


async def _look(service: Service, path: Path, say: Callable[[str], None]) -> None:
    """Take over the file whenever it changes; loaded beside the one that answers, then swapped whole."""
    known = _stamp(path)
    while True:
        await asyncio.sleep(LOOK_EVERY)
        stamp = _stamp(path)
        if stamp is None or stamp == known:
            continue
        known = stamp
        try:
            service.swap(path)
            say(f"swapped: {service.name} is {service.sessions.served.digest} now")
        except UserError as problem:
            say(f"not swapped, the policy before goes on: {printable(str(problem))}")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


# ---- what a service tells of itself: counts, latency, and how far today's columns lie from the training data


WINDOW = 1_000
"""Calls that drift, flags and bounds are told of."""
LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper ends of the histogram's bins, in seconds."""


class Watch:
    """Counts every call; the newest ones are kept to be compared with the training data."""

    def __init__(self, names: tuple[str, ...], training: dict[str, ColumnShares], spaces: Spaces) -> None:
        self.names, self.training, self.spaces = names, training, spaces
        self.calls: Counter[str] = Counter()
        self.flagged = 0
        self.swaps: Counter[str] = Counter()
        self.latencies = [0] * (len(LATENCIES) + 1)
        self.seconds = 0.0
        self.recent: deque[tuple[FloatArray, FloatArray, bool]] = deque(maxlen=WINDOW)

    def note(self, obs: FloatArray, action: FloatArray, flagged: bool, seconds: float) -> None:
        """One answered call; an action that is not there is NaN."""
        self.calls["answered"] += 1
        self.flagged += flagged
        self.latencies[bisect_left(LATENCIES, seconds)] += 1
        self.seconds += seconds
        self.recent.append((obs, action, flagged))

    def drift(self) -> dict[str, float]:
        """Population stability index of every column whose training data is known, over the recent calls."""
        if not self.training or not self.recent:
            return {}
        values = np.stack([obs for obs, _, _ in self.recent])
        told = {
            name: self.training[name].instability(values[:, index])
            for index, name in enumerate(self.names)
            if name in self.training
        }
        return {name: index for name, index in told.items() if index is not None}

    def on_bounds(self) -> float:
        """Share of recent actions of which a number lies on a bound."""
        boxes = [not choice for choice in self.spaces.choices] or [True] * self.spaces.action_columns
        if not self.recent or not any(boxes):
            return 0.0
        actions = np.stack([action for _, action, _ in self.recent])[:, boxes]
        _, _, low, high = self.spaces.scale
        return float(((actions <= low[boxes]) | (actions >= high[boxes])).any(axis=-1).mean())

    def lines(self, waiting: int, written: int, failing: bool) -> Iterator[str]:
        """The text format of Prometheus."""
        yield from _metric("calls_total", "counter", "Calls by how they ended.", self.calls, "outcome")
        yield from _metric("flagged_total", "counter", "Calls whose observation was flagged.", self.flagged)
        yield from _metric("swaps_total", "counter", "Changes of the policy file.", self.swaps, "outcome")
        recent = [flagged for _, _, flagged in self.recent]
        share = sum(recent) / len(recent) if recent else 0.0
        yield from _metric("recent_flagged_share", "gauge", f"Of the last {WINDOW} calls.", share)
        text = f"Share of the last {WINDOW} actions with a number on a bound."
        yield from _metric("recent_on_bounds_share", "gauge", text, self.on_bounds())
        text = f"Population stability index against the training data, last {WINDOW} calls."
        yield from _metric("drift", "gauge", text, self.drift(), "column")
        yield from _metric("decisions_waiting", "gauge", "Rows not yet in the decision log.", waiting)
        yield from _metric("decisions_written_total", "counter", "Rows in the decision log.", written)
        yield from _metric("decisions_failing", "gauge", "1 while rows cannot be written.", int(failing))
        yield from self._histogram()

    def _histogram(self) -> Iterator[str]:
        name = "rl_training_latency_seconds"
        yield f"# HELP {name} Time to answer a call."
        yield f"# TYPE {name} histogram"
        total = 0
        for end, count in zip((*LATENCIES, None), self.latencies, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if end is None else end}"}} {total}'
        yield f"{name}_sum {self.seconds:.6f}"
        yield f"{name}_count {total}"


def _metric(
    name: str, kind: str, text: str, values: dict[str, float] | Counter[str] | float, label: str = ""
) -> Iterator[str]:
    yield f"# HELP rl_training_{name} {text}"
    yield f"# TYPE rl_training_{name} {kind}"
    if isinstance(values, dict):
        for key, value in values.items():
            escaped = key.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            yield f'rl_training_{name}{{{label}="{escaped}"}} {value:.6g}'
    else:
        yield f"rl_training_{name} {values:.6g}"
