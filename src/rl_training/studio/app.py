"""The web application: the page itself, and behind the token all that it asks for; how it is started."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import mimetypes
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
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
from rl_training.serve.server import Doorkeeper, Refusal, json_object, listen, told_problem
from rl_training.studio.folder import LARGEST_UPLOAD, WORK, Folder
from rl_training.studio.orders import LogChoice, Shadow, command_line, offline_algorithms, read_order
from rl_training.studio.views import (
    LogReader,
    OpenPolicies,
    SeenLog,
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
        asked: dict[str, Callable[[Facts], State]] = {
            "log/guess": self.guess,
            "log/look": self.look,
            "log/episode": self.episode,
            "command": self.command,
            "start": self.start,
            "policy": self.policy,
            "policy/act": self.act,
            "policy/episode": self.policy_episode,
            "verdict": self.verdict,
        }
        about_work: dict[str, tuple[str, Callable[[str], State]]] = {
            "": ("GET", self.work),
            "/decisions": ("GET", self.decisions),
            "/stop": ("POST", self.stop),
            "/go-on": ("POST", self.go_on),
        }
        routes = [
            Route("/api/folder", _answering(lambda _: self.everything())),
            Route("/api/upload/{name}", self.upload, methods=["PUT"]),
            Route("/api/work/{name}/events", self.events),
            *(Route(f"/api/{path}", _with_body(tell), methods=["POST"]) for path, tell in asked.items()),
            *(
                Route(f"/api/work/{{name}}{path}", _answering(tell), methods=[method])
                for path, (method, tell) in about_work.items()
            ),
            Route("/file/{key}/{name:path}", self.file),
            Route("/{name:path}", self.asset),
        ]

        async def told(_: Request, problem: Exception) -> Response:
            return told_problem(problem if isinstance(problem, UserError) else UserError(str(problem)))

        app = Starlette(routes=routes, exception_handlers={UserError: told, OSError: told})
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

    def everything(self) -> State:
        found = self.folder.found()
        return {
            "directory": str(self.folder.root),
            "logs": [{"name": name, "bytes": self.folder.path(name).stat().st_size} for name in found.logs],
            "runs": [_or_problem(name, self._run) for name in found.runs],
            "pages": [self._linked(name) for name in found.pages],
            "policies": [self._linked(name) for name in found.policies],
            "work": [_or_problem(each.name, self.work) for each in all_work(self.folder)],
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

    def guess(self, body: Facts) -> State:
        return self.logs.guess(LogChoice.build(body))

    def look(self, body: Facts) -> State:
        choice = LogChoice.build(body)
        words = ["data", "inspect", choice.spelled(self.folder), *choice.options()]
        return {**self.logs.look(choice).told(), "command": command_line(words)}

    def episode(self, body: Facts) -> State:
        return self.logs.look(LogChoice.build(_mapping(body, "log"))).episode_told(_index(body))

    # ---- what runs

    def command(self, body: Facts) -> State:
        """The command line of what would be started."""
        order = read_order(body)
        return {"command": command_line(order.words(self.folder, self.folder.path(f"{WORK}/{order.kind}")))}

    def start(self, body: Facts) -> State:
        return self.work(start_work(self.folder, read_order(body)).name)

    def work(self, name: str) -> State:
        told = work_called(self.folder, name).told()
        return told | {kind: [self._linked(each) for each in told[kind]] for kind in ("pages", "policies")}

    def stop(self, name: str) -> State:
        work_called(self.folder, name).stop()
        return {}

    def go_on(self, name: str) -> State:
        work_called(self.folder, name).go_on()
        return {}

    async def events(self, request: Request) -> Response:
        """All that is known of a piece of work, again whenever it has changed, until it has ended."""
        name = request.path_params["name"]
        work_called(self.folder, name)

        async def changes() -> AsyncIterator[str]:
            last, quiet = "", 0.0
            while True:
                try:
                    told = await run_in_threadpool(self.work, name)
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

    def decisions(self, name: str) -> State:
        """What a shadow has written down."""
        work = work_called(self.folder, name)
        order = work.order
        if not isinstance(order, Shadow):
            raise Refusal(404, f"{shown(name)} serves nothing")
        place = work.place / "decisions.db"
        told = decisions_told(place, self.policies.served(order.policy))
        address = f"http://127.0.0.1:{order.port}"
        return {"address": address, "log": self.folder.name(place), "policy": order.policy, **told}

    # ---- what if, and verdicts

    def policy(self, body: Facts) -> State:
        return policy_told(self.policies.served(body.get("policy")), self._log_of(body))

    def act(self, body: Facts) -> State:
        served, inputs = self.policies.served(body.get("policy")), _mapping(body, "inputs")
        path = self.folder.spelled(self.folder.existing(body.get("policy")))
        values = _mapping(body, "values")
        command = command_line(predict_words(path, served, values, inputs))
        return {**asked(served, values, inputs), "command": command}

    def policy_episode(self, body: Facts) -> State:
        seen = self._log_of(body)
        if seen is None:
            raise UserError("choose the log that the episode is of")
        served = self.policies.served(body.get("policy"))
        return along_episode(served, seen, _index(body), _mapping(body, "inputs"))

    def _log_of(self, body: Facts) -> SeenLog | None:
        return None if body.get("log") is None else self.logs.look(LogChoice.build(_mapping(body, "log")))

    def verdict(self, body: Facts) -> State:
        """The answer beside a page of auto or judge: its sentence, and value against dial."""
        page = self.folder.existing(body.get("page"))
        if page.suffix != ".html":
            raise Refusal(400, f"{shown(page.name)} is no page")
        return {"link": self.link(self.folder.name(page)), **_answer(page.with_suffix(".json"))}


def _answer(file: Path) -> State:
    """What `auto.json` or `judge.json` says in one sentence, and where the dial was judged."""
    try:
        found = parse_json(file.read_bytes()) if file.stat().st_size <= LARGEST_UPLOAD else None
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


def _with_body(tell: Callable[[Facts], State]) -> Handler:
    """Answers a request by what it holds, beside the loop that answers all others."""

    async def endpoint(request: Request) -> Response:
        return _json(await run_in_threadpool(tell, await json_object(request, LARGEST_BODY)))

    return endpoint


def _answering(tell: Callable[[str], State]) -> Handler:
    """Answers a request by the name in its address."""

    async def endpoint(request: Request) -> Response:
        return _json(await run_in_threadpool(tell, request.path_params.get("name", "")))

    return endpoint


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


# ---- start the studio: one directory, this machine alone, an address with a new token every time


def studio(directory: Path, port: int, say: Callable[[str], None]) -> None:
    """Answer until told to stop; what was started goes on."""
    folder, token = Folder.of(directory), secrets.token_urlsafe(24)

    def ready(taken: int) -> None:
        say(f"studio of {folder.root}; open this address, and keep it to yourself:")
        say(f"http://127.0.0.1:{taken}/#token={token}")

    listen(Studio(folder, token).app(), "127.0.0.1", port, ready, goodbye=1)
