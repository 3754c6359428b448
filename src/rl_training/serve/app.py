"""The web application: calls by column names, the Open Inference Protocol beside them, health and metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rl_training.core.drift import RECOMMENDED, training_columns
from rl_training.core.errors import UserError, shown
from rl_training.core.types import Facts, State
from rl_training.core.version import VERSION
from rl_training.policies.files import load_exported
from rl_training.policies.opened import DeployedPolicy
from rl_training.serve.decisions import Columns, DecisionLog
from rl_training.serve.safety import Doorkeeper, Refusal, json_object, told_problem
from rl_training.serve.sessions import Mode, Served, Sessions
from rl_training.serve.watch import Watch

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
