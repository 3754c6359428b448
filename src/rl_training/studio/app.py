"""The web application: the page itself, and behind the token all that it asks for."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_training.core.errors import UserError, shown
from rl_training.core.files import parse_json, plain_json, replacing
from rl_training.core.types import Facts, State
from rl_training.serve.safety import Doorkeeper, Refusal, json_object, told_problem
from rl_training.studio.folder import LARGEST_UPLOAD, WORK, Folder
from rl_training.studio.log_view import LogReader
from rl_training.studio.orders import LogChoice, Shadow, command_line, offline_algorithms, read_order
from rl_training.studio.policies import (
    OpenPolicies,
    along_episode,
    asked,
    decisions_told,
    policy_told,
    predict_words,
)
from rl_training.studio.work import all_work, run_told, start_work, work_called

LARGEST_BODY = 1_000_000
LOOK_EVERY = 0.5
"""Seconds between two looks at what runs."""
ALIVE_EVERY = 15.0
ASSETS = (
    "index.html",
    "studio.css",
    "app.js",
    "dom.js",
    "charts.js",
    "log.js",
    "train.js",
    "verdict.js",
    "whatif.js",
    "ship.js",
    "runs.js",
)
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SHOWN_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
"""For pages that lie in the directory: no script, no address of ours, shown in a frame of this page alone."""

Found = TypeVar("Found")
Handler = Callable[[Request], Awaitable[Response]]


class Gate:
    """In front of every request: this machine's name, no other page's request, the token where it matters."""

    def __init__(self, app: ASGIApp, doors: Doorkeeper) -> None:
        self.app, self.doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks over a WebSocket
        refused = self.doors.refuses(Headers(scope=scope), open_to_all=not scope["path"].startswith("/api/"))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", PAGE_POLICY)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Cache-Control"] = "no-store"
            await send(message)

        answer: ASGIApp = self.app if refused is None else told_problem(Refusal(*refused))
        await answer(scope, receive, with_headers)


class Studio:
    """Everything that the page asks for."""

    def __init__(self, folder: Folder, token: str) -> None:
        self.folder, self.token = folder, token
        self.logs, self.policies = LogReader(folder), OpenPolicies(folder)

    def app(self) -> ASGIApp:
        api: dict[str, tuple[str, Handler]] = {
            "folder": ("GET", self.everything),
            "upload/{name}": ("PUT", self.upload),
            "log/guess": ("POST", self.guess),
            "log/look": ("POST", self.look),
            "log/episode": ("POST", self.episode),
            "command": ("POST", self.command),
            "start": ("POST", self.start),
            "work/{name}": ("GET", self.work),
            "work/{name}/events": ("GET", self.events),
            "work/{name}/stop": ("POST", self.stop),
            "work/{name}/go-on": ("POST", self.go_on),
            "work/{name}/decisions": ("GET", self.decisions),
            "policy": ("POST", self.policy),
            "policy/act": ("POST", self.act),
            "policy/episode": ("POST", self.policy_episode),
            "verdict": ("POST", self.verdict),
        }
        routes = [Route(f"/api/{path}", handle, methods=[method]) for path, (method, handle) in api.items()]
        routes += [Route("/file/{key}/{name:path}", self.file), Route("/{name:path}", self.asset)]

        async def told(_: Request, problem: Exception) -> Response:
            return told_problem(problem if isinstance(problem, UserError) else UserError(str(problem)))

        app = Starlette(routes=routes, exception_handlers={UserError: told})
        return Gate(app, Doorkeeper("127.0.0.1", self.token))

    # ---- the page, and files that lie in the directory

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name not in (*ASSETS, "report.css"):
            raise Refusal(404, "there is no such page here")
        place = files("rl_training") / "assets"
        content = (place / name if name == "report.css" else place / "studio" / name).read_bytes()
        return Response(content, media_type=mimetypes.guess_type(name)[0])

    def link(self, name: str) -> str:
        """An address of one file that needs no header, as frames and downloads cannot send one."""
        return f"/file/{self._key(name)}/{quote(name)}"

    def _key(self, name: str) -> str:
        return hmac.new(self.token.encode(), name.encode(), hashlib.sha256).hexdigest()[:32]

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not hmac.compare_digest(request.path_params["key"].encode(), self._key(name).encode()):
            raise Refusal(401, "this address is not one that the studio gave")
        path = self.folder.existing(name)
        if not path.is_file():
            raise Refusal(404, f"{shown(name)} is no file")
        headers = {"Content-Security-Policy": SHOWN_POLICY}
        if path.suffix == ".html":
            return FileResponse(path, media_type="text/html; charset=utf-8", headers=headers)
        return FileResponse(path, media_type="application/octet-stream", filename=path.name, headers=headers)

    # ---- what is there

    async def everything(self, _: Request) -> Response:
        return _json(await run_in_threadpool(self._everything))

    def _everything(self) -> State:
        found = self.folder.found()
        return {
            "directory": str(self.folder.root),
            "logs": [{"name": name, "bytes": self.folder.path(name).stat().st_size} for name in found.logs],
            "runs": [_or_problem(name, self._run) for name in found.runs],
            "pages": [self._linked(name) for name in found.pages],
            "policies": [self._linked(name) for name in found.policies],
            "work": [_or_problem(each.name, self._work) for each in all_work(self.folder)],
            "algorithms": offline_algorithms(),
        }

    def _run(self, name: str) -> State:
        return run_told(self.folder, self.folder.path(name))

    def _linked(self, name: str) -> State:
        card = f"{name}.md"
        has_card = (self.folder.path(name).with_name(Path(card).name)).is_file()
        return {"name": name, "link": self.link(name), "card": self.link(card) if has_card else None}

    async def upload(self, request: Request) -> Response:
        """Take a file of the user's own into the directory, piece by piece."""
        path, size = self.folder.new_file(request.path_params["name"]), 0
        with replacing(path) as temporary, temporary.open("wb") as file:
            async for piece in request.stream():
                size += len(piece)
                if size > LARGEST_UPLOAD:
                    raise Refusal(
                        413, f"a log may have {LARGEST_UPLOAD // 2**20} MB here: copy it into the directory"
                    )
                file.write(piece)
            file.flush()
        return _json({"name": self.folder.name(path), "bytes": size})

    # ---- logs

    async def guess(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self.logs.guess, await _log(request)))

    async def look(self, request: Request) -> Response:
        choice = await _log(request)
        seen = await run_in_threadpool(self.logs.look, choice)
        words = ["data", "inspect", choice.spelled(self.folder), *choice.options()]
        return _json({**seen.told(), "command": command_line(words)})

    async def episode(self, request: Request) -> Response:
        body = await json_object(request, LARGEST_BODY)
        seen = await run_in_threadpool(self.logs.look, LogChoice.build(_mapping(body, "log")))
        return _json(seen.episode_told(_index(body)))

    # ---- what runs

    async def command(self, request: Request) -> Response:
        """The command line of what would be started."""
        order = read_order(await json_object(request, LARGEST_BODY))
        place = self.folder.path(f"{WORK}/{order.kind}")
        return _json({"command": command_line(order.words(self.folder, place))})

    async def start(self, request: Request) -> Response:
        order = read_order(await json_object(request, LARGEST_BODY))
        return _json(self._work(start_work(self.folder, order).name))

    async def work(self, request: Request) -> Response:
        return _json(self._work(request.path_params["name"]))

    def _work(self, name: str) -> State:
        told = work_called(self.folder, name).told()
        for kind in ("pages", "policies"):
            told[kind] = [self._linked(each) for each in told[kind]]
        return told

    async def stop(self, request: Request) -> Response:
        work_called(self.folder, request.path_params["name"]).stop()
        return _json({})

    async def go_on(self, request: Request) -> Response:
        work_called(self.folder, request.path_params["name"]).go_on()
        return _json({})

    async def events(self, request: Request) -> Response:
        """All that is known of a piece of work, again whenever it has changed, until it has ended."""
        name = request.path_params["name"]
        work_called(self.folder, name)

        async def changes() -> AsyncIterator[str]:
            last, quiet = "", 0.0
            while True:
                try:
                    told = await run_in_threadpool(self._work, name)
                except UserError as problem:
                    yield f"event: problem\ndata: {json.dumps(str(problem))}\n\n"
                    return
                text = json.dumps(plain_json(told))
                if text != last:
                    yield f"data: {text}\n\n"
                    last, quiet = text, 0.0
                elif quiet >= ALIVE_EVERY:
                    yield ": alive\n\n"
                    quiet = 0.0
                if told["state"] != "running":
                    return
                await asyncio.sleep(LOOK_EVERY)
                quiet += LOOK_EVERY

        return StreamingResponse(changes(), media_type="text/event-stream")

    async def decisions(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._decisions, request.path_params["name"]))

    def _decisions(self, name: str) -> State:
        work = work_called(self.folder, name)
        order = work.order
        if not isinstance(order, Shadow):
            raise Refusal(404, f"{shown(name)} serves nothing")
        place = work.place / "decisions.db"
        told = decisions_told(place, self.policies.served(order.policy))
        address = f"http://127.0.0.1:{order.port}"
        return {"address": address, "log": self.folder.name(place), "policy": order.policy, **told}

    # ---- what if

    async def policy(self, request: Request) -> Response:
        return _json(await self._about_policy(request, lambda served, seen, body: policy_told(served, seen)))

    async def act(self, request: Request) -> Response:
        body = await json_object(request, LARGEST_BODY)
        served = self.policies.served(body.get("policy"))
        values, inputs = _mapping(body, "values"), _mapping(body, "inputs")
        reply = asked(served, values, inputs)
        path = self.folder.spelled(self.folder.existing(body.get("policy")))
        return _json({**reply, "command": command_line(predict_words(path, served, values, inputs))})

    async def policy_episode(self, request: Request) -> Response:
        def told(served: Any, seen: Any, body: Facts) -> State:
            if seen is None:
                raise UserError("choose the log that the episode is of")
            return along_episode(served, seen, _index(body), _mapping(body, "inputs"))

        return _json(await self._about_policy(request, told))

    async def _about_policy(self, request: Request, tell: Callable[[Any, Any, Facts], State]) -> State:
        body = await json_object(request, LARGEST_BODY)
        served = self.policies.served(body.get("policy"))
        log = body.get("log")
        choice = None if log is None else LogChoice.build(_mapping(body, "log"))

        def work() -> State:
            return tell(served, None if choice is None else self.logs.look(choice), body)

        return await run_in_threadpool(work)

    async def verdict(self, request: Request) -> Response:
        """The answer beside a page of auto or judge: its sentence, and value against dial."""
        page = self.folder.existing((await json_object(request, LARGEST_BODY)).get("page"))
        if page.suffix != ".html":
            raise Refusal(400, f"{shown(page.name)} is no page")
        answer = page.with_suffix(".json")
        known = answer.is_file() and answer.stat().st_size <= LARGEST_UPLOAD
        told = await run_in_threadpool(_answer, answer) if known else {"sentence": None, "dials": []}
        return _json({"link": self.link(self.folder.name(page)), **told})


def _answer(file: Path) -> State:
    """What `auto.json` or `judge.json` says in one sentence, and where the dial was judged."""
    try:
        found = parse_json(file.read_bytes())
    except (OSError, ValueError):
        found = None
    facts: Facts = found if isinstance(found, dict) else {}
    judgement = facts.get("judgement", facts)
    listed = {
        name: judgement.get(name) if isinstance(judgement, dict) else None for name in ("policies", "dials")
    }
    policies, dials = (value if isinstance(value, list) else [] for value in listed.values())
    only = policies[0] if len(policies) == 1 and isinstance(policies[0], dict) else {}
    sentence = facts.get("sentence", only.get("sentence"))
    return {"sentence": sentence, "recommended": facts.get("recommended"), "dials": dials}


def _json(value: object) -> Response:
    return JSONResponse(plain_json(value))


async def _log(request: Request) -> LogChoice:
    return LogChoice.build(await json_object(request, LARGEST_BODY))


def _mapping(body: Facts, key: str) -> Facts:
    value = body.get(key, {})
    if not isinstance(value, dict):
        raise UserError(f"{key} must be a mapping, got {shown(value)}")
    return value


def _index(body: Facts) -> int:
    index = body.get("index")
    if type(index) is not int:
        raise UserError(f"index must be the number of an episode, got {shown(index)}")
    return index


def _or_problem(name: str, tell: Callable[[str], State]) -> State:
    """What is told of something, or why nothing can be: one damaged file does not hide the others."""
    try:
        return tell(name)
    except UserError as problem:
        return {"name": name, "problem": str(problem)}
