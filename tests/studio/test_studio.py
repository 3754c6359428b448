"""The studio's server: who may ask, what may be named, what is started, and what is told of it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asgi import Answer, request
from rl_training import BC, load_policy
from rl_training.cli import main
from rl_training.core.errors import UserError
from rl_training.data import TransitionDataset
from rl_training.demo.plant import write_log
from rl_training.serve.app import Service
from rl_training.studio import app as app_module
from rl_training.studio import work as work_module
from rl_training.studio.app import ASSETS, Studio
from rl_training.studio.folder import Folder
from rl_training.studio.orders import ORDERS, LogChoice, read_order

TOKEN = "a token of sixteen letters"
LOG = {
    "file": "log.csv", "observations": ["T_tank", "level", "outflow"], "actions": ["heater", "valve"],
    "reward": "score", "episode": "run", "action_low": [0], "action_high": [100],
}  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)> '$(rm -rf ~)'; \".csv"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a log, beside a file that is nobody's business."""
    (tmp_path / "secret.csv").write_text("run,T_tank\n0,1\n")
    inside = tmp_path / "plant"
    inside.mkdir()
    write_log(inside / "log.csv", runs=6, seed=0)
    return inside


@pytest.fixture
def ask(directory: Path) -> Callable[..., Answer]:
    """A request of the page itself."""
    app = Studio(Folder.of(directory), TOKEN).app()

    def one(path: str, body: Any = None, *, method: str | None = None, **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {"authorization": f"Bearer {TOKEN}", **headers}
        return request(app, method or ("GET" if body is None else "POST"), path, content, **named)

    return one


# ---- who may ask


def test_nothing_of_the_directory_is_told_or_started_without_the_token(directory: Path) -> None:
    gate: Any = Studio(Folder.of(directory), TOKEN).app()
    api = [
        (next(iter(route.methods - {"HEAD"})), route.path)
        for route in gate.app.routes
        if "/api/" in route.path
    ]
    assert len(api) > 12
    for method, path in api:
        for told in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"cookie": f"token={TOKEN}"}):
            answer = request(gate, method, path.replace("{name}", "x"), b"{}", **told)
            assert answer.status == 401 and b"log.csv" not in answer.content
    assert [path.name for path in directory.iterdir()] == ["log.csv"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://localhost:8000"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 200),
    ],
)
def test_other_pages_and_names_that_were_made_to_point_here_are_refused(
    ask: Callable[..., Answer], headers: dict[str, str], status: int
) -> None:
    assert ask("/api/folder", **headers).status == status
    assert ask("/", **headers).status == status, "also what everybody may have"


def test_every_answer_says_what_a_browser_may_do_with_it(ask: Callable[..., Answer]) -> None:
    for name in ("", *ASSETS, "report.css"):
        answer = ask(f"/{name}", authorization="")
        assert (
            answer.status == 200
            and "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        )
    assert ask("/app.js").headers["content-type"].startswith("text/javascript")
    for answer in (ask("/api/folder"), ask("/api/nothing"), ask("/../../etc/passwd"), ask("/x", host="y")):
        told = answer.headers
        assert (told["x-content-type-options"], told["cache-control"]) == ("nosniff", "no-store")
        assert told["cross-origin-resource-policy"] == "same-origin"
    assert ask("/..%2f..%2fpyproject.toml").status == 404


# ---- what may be named


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("../secret.csv", 403), ("/etc/passwd", 403), ("link.csv", 403), ("folder/secret.csv", 403),
        ("circle.csv", 403), ("none.csv", 404), ("a\0b", 400), ("", 400), ("x" * 1001, 400), (None, 400),
        (7, 400),
    ],
)  # fmt: skip
def test_files_are_named_inside_the_directory_alone(
    ask: Callable[..., Answer], directory: Path, name: object, status: int
) -> None:
    (directory / "link.csv").symlink_to(directory.parent / "secret.csv")
    (directory / "folder").symlink_to(directory.parent)
    (directory / "circle.csv").symlink_to(directory / "circle.csv")
    with pytest.raises(UserError):
        Folder.of(directory).existing(name)
    answer = ask("/api/policy", {"policy": name})
    assert answer.status == status and b"T_tank" not in answer.content
    assert ask("/api/log/guess", {"file": name}).status in (400, status)
    order = {"kind": "judge", "settings": {"runs": [name]}}
    assert ask("/api/start", order).status in (400, status)
    assert not (directory / "studio").exists(), "nothing was begun"
    listed = ask("/api/folder").value
    assert [each["name"] for each in listed["logs"]] == ["log.csv"], "links that lead out are not shown"


def test_a_file_is_handed_out_by_its_own_address_only(ask: Callable[..., Answer], directory: Path) -> None:
    (directory / "auto.html").write_text("<script>1</script>")
    (directory / "other.html").write_text("other")
    (directory / "report-2.html").write_text("report")
    pages = {each["name"]: each["link"] for each in ask("/api/folder").value["pages"]}
    assert sorted(pages) == ["auto.html", "report-2.html"], "pages that commands write"
    shown = ask(pages["auto.html"], authorization="")
    assert shown.content == b"<script>1</script>" and shown.headers["content-type"].startswith("text/html")
    assert shown.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    key = pages["auto.html"].split("/")[2]
    for path in (
        f"/file/{key}/other.html",
        f"/file/{key}/../secret.csv",
        "/file/x/auto.html",
        "/file//auto.html",
    ):
        assert ask(path).status in (401, 404)
    (directory / "policy.onnx.md").write_text("card")
    studio = Studio(Folder.of(directory), TOKEN)
    assert ask(studio.link("policy.onnx.md")).headers["content-disposition"].startswith("attachment")
    assert ask(studio.link("../secret.csv")).status == 403, "not even with a right key"


def full(path: Path) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_is_taken_into_the_directory(
    ask: Callable[..., Answer], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (directory / "log.csv").read_bytes()
    assert ask("/api/upload/new.csv", content, method="PUT").value == {
        "name": "new.csv",
        "bytes": len(content),
    }
    assert (directory / "new.csv").read_bytes() == content
    for name, status in (
        ("new.csv", 409), ("..", 400), (".csv", 400), ("a.html", 400), ("a.py", 400), ("a%5Cb.csv", 400),
        ("a%0Ab.csv", 400), ("a%2F..%2F..%2Fb.csv", 405),
    ):  # fmt: skip
        assert ask(f"/api/upload/{name}", b"x", method="PUT").status == status, name
    monkeypatch.setattr(app_module, "replacing", full)
    told = ask("/api/upload/full.csv", b"x", method="PUT")
    assert told.status == 400 and "No space left" in told.value["error"]
    monkeypatch.undo()
    monkeypatch.setattr(app_module, "LARGEST_UPLOAD", 10)
    assert ask("/api/upload/long.csv", b"x" * 11, method="PUT").status == 413
    assert sorted(path.name for path in directory.iterdir()) == ["log.csv", "new.csv"]


@pytest.mark.parametrize("name", [HOSTILE, "-rf.csv", "minari:x.csv", "a b, c.csv", "日.csv"])
def test_a_name_is_one_word_of_a_command_and_never_an_option(
    ask: Callable[..., Answer], directory: Path, name: str
) -> None:
    (directory / "log.csv").rename(directory / name)
    settings = {"log": {**LOG, "file": name}}
    (line,) = ask("/api/command", {"kind": "auto", "settings": settings}).value.values()
    words = shlex.split(line)
    assert words[:2] == ["rl-training", "auto"] and words[2].removeprefix("./") == name and words[2][0] != "-"
    assert all(word.startswith("--") for word in words[3:])
    found = ask("/api/log/look", settings["log"])
    assert found.status == 200 and found.value["episodes"] == 6
    work = read_order({"kind": "train", "settings": {**settings, "algo": "iql"}})
    place = Folder.of(directory).path(f"studio/{work.about()}")
    assert work.words(Folder.of(directory), place)[2].endswith(name)


POSTS = (
    "log/guess",
    "log/look",
    "log/episode",
    "command",
    "start",
    "policy",
    "policy/act",
    "policy/episode",
    "verdict",
)


@pytest.mark.parametrize("path", [*POSTS, "work/x/stop", "work/x/go-on"])
def test_requests_that_make_no_sense_are_refused_in_one_line(ask: Callable[..., Answer], path: str) -> None:
    draws = np.random.default_rng(0)
    values = [
        None,
        True,
        -1,
        1e999,
        "",
        "log.csv",
        "../x",
        [],
        {},
        ["a"],
        {"file": "log.csv"},
        "\0",
        "x" * 500,
    ]
    keys = [
        "file",
        "log",
        "index",
        "policy",
        "values",
        "inputs",
        "kind",
        "settings",
        "page",
        "run",
        "observations",
    ]
    bodies: list[bytes] = [b"", b"[]", b"{", b"\xff", b'"a"', b"{" * 5000, b"x" * 1_000_001]
    for _ in range(25):
        chosen = draws.integers(len(values), size=4)
        taken = draws.integers(len(keys), size=4)
        body = {keys[key]: values[value] for key, value in zip(taken, chosen, strict=True)}
        body |= {
            "kind": str(draws.choice([*ORDERS, "none"])),
            "settings": {keys[taken[0]]: values[chosen[1]]},
        }
        bodies.append(json.dumps(body).encode())
    for content in bodies:
        answer = ask(f"/api/{path}", content)
        assert 400 <= answer.status < 500 and "\n" not in answer.value["error"], content[:200]


# ---- logs


def test_columns_are_guessed_corrected_and_shown(ask: Callable[..., Answer], directory: Path) -> None:
    guess = ask("/api/log/guess", {"file": "log.csv"}).value
    roles = {each["name"]: each["role"] for each in guess["columns"]}
    assert roles == {
        "run": "episode", "time": "time", "operator": "operator", "T_tank": "observation",
        "level": "observation",
        "outflow": "observation", "heater": "action", "valve": "action", "score": "reward",
    }  # fmt: skip
    found = ask("/api/log/look", LOG).value
    assert (found["episodes"], found["lengths"]) == (6, [60] * 6)
    assert not any("does not state its action bounds" in each for each in found["findings"]), (
        "they were given"
    )
    assert found["command"].endswith("--action-low=0 --action-high=100")
    unbound = {name: value for name, value in LOG.items() if not name.startswith("action_")}
    assert any("action bounds" in each for each in ask("/api/log/look", unbound).value["findings"])
    rows = [line.split(",") for line in (directory / "log.csv").read_text().splitlines()]
    told = ask("/api/log/episode", {"log": LOG, "index": 2}).value
    columns = {each["name"]: each["values"] for each in told["columns"]}
    assert columns["level"] == [float(row[4]) for row in rows[1:] if row[0] == "2"]
    assert [each["kind"] for each in told["columns"]] == ["observation"] * 3 + ["action"] * 2 + ["reward"]
    assert ask("/api/log/episode", {"log": LOG, "index": 6}).status == 404
    by_formula = {**LOG, "reward": "-(level - 50)**2"}
    levels = np.array(columns["level"])
    told = ask("/api/log/episode", {"log": by_formula, "index": 2}).value
    assert told["columns"][-1]["values"] == pytest.approx(-((levels - 50.0) ** 2))


def test_both_bounds_are_given_or_none() -> None:
    with pytest.raises(UserError, match="action_low and action_high must be given together"):
        LogChoice.build({"file": "log.csv", "action_low": [0]})


# ---- what is started


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of Python a program that says its words and waits."""
    program = tmp_path / "sleeper"
    program.write_text('#!/bin/sh\necho "$@"\nexec sleep 60\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    work_module.children.clear()
    yield
    for process in work_module.children:
        process.kill()
        process.wait()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.mark.usefixtures("sleeper")
def test_what_was_started_outlives_the_server_and_is_found_again(
    ask: Callable[..., Answer], directory: Path
) -> None:
    order = {"kind": "auto", "settings": {"log": LOG, "minutes": 1}}
    begun = ask("/api/start", order).value
    assert (begun["name"], begun["state"]) == ("auto-log", "running")
    until(lambda: "--minutes=1" in ask("/api/work/auto-log").value["output"])
    (process,) = work_module.children
    assert os.getsid(process.pid) == process.pid, "a session of its own: Ctrl-C does not reach it"
    app = Studio(Folder.of(directory), TOKEN * 2).app()  # another server, that knows of no process
    again = request(app, "GET", "/api/work/auto-log", authorization=f"Bearer {TOKEN * 2}").value
    assert again["state"] == "running" and again["command"] == begun["command"]
    assert shlex.split(again["command"])[1:] == again["output"].removeprefix("-m rl_training ").split()
    assert ask("/api/work/auto-log/go-on", {}).status == 409, "it runs already"
    assert ask("/api/start", order).value["name"] == "auto-log-2"
    assert ask("/api/work/auto-log/stop", {}).status == 200
    until(lambda: ask("/api/work/auto-log").value["state"] == "stopped")
    assert ask("/api/work/auto-log/stop", {}).status == 409
    assert process.wait(10) == -signal.SIGTERM
    assert ask("/api/work/auto-log/go-on", {}).status == 200
    assert ask("/api/work/auto-log").value["state"] == "running"
    (directory / "studio" / "auto-log-2" / "auto.json").write_text("{}")
    (directory / "studio" / "auto-log-2" / "plan.json").write_text('{"updates": {"bc": 1, "iql": 2}}')
    assert [ask(f"/api/work/{name}").value["planned"] for name in ("auto-log", "auto-log-2")] == [0, 2]
    assert ask("/api/work/auto-log-2/stop", {}).status == 200
    until(lambda: ask("/api/work/auto-log-2").value["state"] == "done")


@pytest.mark.usefixtures("sleeper")
def test_not_everything_at_once(ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "MOST_AT_ONCE", 1)
    order = {"kind": "auto", "settings": {"log": LOG, "minutes": 1}}
    assert ask("/api/start", order).status == 200
    assert ask("/api/start", order).status == 409


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize(
    "written",
    [
        "x", "[]", '{"kind": "shell", "settings": {}}', '{"kind": "train", "settings": {"algo": "a; b"}}',
        json.dumps({"kind": "train", "settings": {"log": LOG, "algo": "/bin/sh", "steps": 1}}),
        json.dumps({"kind": "judge", "settings": {"runs": ["../.."]}}),
        json.dumps({"kind": "auto", "settings": {"log": LOG}, "process": 1}),
    ],
)  # fmt: skip
def test_a_file_in_the_directory_starts_and_stops_nothing_that_a_page_could_not(
    ask: Callable[..., Answer], directory: Path, written: str
) -> None:
    place = directory / "studio" / "planted"
    place.mkdir(parents=True)
    (place / "order.json").write_text(written)
    listed = ask("/api/folder")
    assert listed.status == 200 and len(listed.value["work"]) == 1, "a damaged one hides nothing else"
    assert ask("/api/work/planted/stop", {}).status in (400, 404, 409)
    if '"auto"' not in written:
        assert ask("/api/work/planted/go-on", {}).status in (400, 403, 404)
        assert work_module.children == []
    (directory / "studio" / "elsewhere").symlink_to(place)
    assert ask("/api/work/elsewhere").status == 404
    for name in ("..", "planted%2F..", "%2Fetc"):
        assert ask(f"/api/work/{name}").status == 404


def test_a_run_that_failed_says_so(ask: Callable[..., Answer], directory: Path) -> None:
    place = directory / "studio" / "auto-log"
    place.mkdir(parents=True)
    (place / "order.json").write_text(json.dumps({"kind": "auto", "settings": {"log": LOG}}))
    (place / "output.txt").write_text("Training bc.\nerror: \x1b[31mno room\n")
    told = ask("/api/work/auto-log").value
    assert told["state"] == "failed" and told["output"].endswith("error: no room"), (
        "nothing that a terminal obeys"
    )
    (place / "output.txt").write_text("error: stopped by signal 15; what was done is kept\n")
    assert ask("/api/work/auto-log").value["state"] == "stopped"
    (place / "output.txt").write_text("error: no room\n")
    events = ask("/api/work/auto-log/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert json.loads(events.content.removeprefix(b"data: "))["state"] == "failed"


def test_a_run_is_told_with_its_curves(ask: Callable[..., Answer], directory: Path) -> None:
    run = directory / "runs" / "iql-data-s0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("algo: iql\ntotal_timesteps: 40\n")
    rows = [{"step": step, "kind": "train", "time": 0.0, "critic_loss": 1.0 / step} for step in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (told,) = ask("/api/folder").value["runs"]
    assert (told["name"], told["algo"], told["step"], told["total"]) == ("runs/iql-data-s0", "iql", 20, 40)
    assert told["curves"] == {"critic_loss": [[10, 0.1], [20, 0.05]]} and told["state"] == "unfinished"
    (run / "summary.json").write_text("{")
    assert "not valid JSON" in ask("/api/folder").value["runs"][0]["problem"]


# ---- policies


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log, and a policy of it with a guard."""
    folder = tmp_path_factory.mktemp("studio")
    rng = np.random.default_rng(0)
    obs = rng.uniform(0, 1, (600, 2)).astype(np.float32)
    ends = np.arange(600) % 20 == 19
    columns = {
        "obs": obs,
        "actions": obs[:, :1],
        "rewards": obs[:, 0],
        "terminations": 0 * obs[:, 0],
        "truncations": ends,
    }
    np.savez(folder / "log.npz", **columns)
    log = TransitionDataset(obs, obs[:, :1], obs[:, 0], obs, np.zeros(600), truncations=ends)
    agent = BC(
        total_timesteps=20, action_low=[0.0], action_high=[1.0], hidden_sizes=(8,), compile=False,
        output_dir=str(folder / "runs"), judge_at_end=False,
    )  # fmt: skip
    agent.learn(dataset=log)
    (run,) = (folder / "runs").iterdir()
    out = ["--out", str(folder / "policy.safetensors"), "--guard", str(folder / "log.npz")]
    out += ["--guard-set", "fallback=hold"]
    assert main(["export", "--checkpoint", str(run), *out]) == 0
    return folder


def test_a_policy_answers_at_once_and_along_a_logged_episode(exported: Path) -> None:
    app = Studio(Folder.of(exported), TOKEN).app()

    def ask(path: str, body: Any) -> Any:
        answer = request(app, "POST", path, json.dumps(body).encode(), authorization=f"Bearer {TOKEN}")
        assert answer.status == 200, answer.value
        return answer.value

    name, log, policy = (
        "policy.safetensors",
        {"file": "log.npz"},
        load_policy(exported / "policy.safetensors"),
    )
    told = ask("/api/policy", {"policy": name, "log": log})
    assert [each["name"] for each in told["observations"]] == ["obs_0", "obs_1"]
    stored = np.load(exported / "log.npz")
    assert told["actions"][0]["range"] == [0.0, 1.0] and told["guarded"] and not told["remembers"]
    reply = ask("/api/policy/act", {"policy": name, "values": {"obs_0": 0.25, "obs_1": 0.5}, "inputs": {}})
    assert reply["action"]["action_0"] == pytest.approx(float(policy.predict([0.25, 0.5])[0]))
    assert shlex.split(reply["command"])[2:] == [f"--checkpoint={name}", "--obs=0.25, 0.5"]
    missing = ask("/api/policy/act", {"policy": name, "values": {}, "inputs": {}})
    assert missing["flagged"] and "obs_0 is missing" in missing["reasons"]
    assert ask("/api/policy/act", {"policy": name})["flagged"]
    steps = ask("/api/policy/episode", {"policy": name, "log": log, "index": 3, "inputs": {}})["steps"]
    rows = slice(60, 80)
    assert [step["logged"]["action_0"] for step in steps] == pytest.approx(
        stored["actions"][rows, 0].tolist()
    )
    wanted = policy.predict(stored["obs"][rows])[:, 0]
    stored_obs = stored["obs"].copy()
    stored_obs[65] = 50.0  # unlike the log: what was really done in the step before is held
    np.savez(exported / "odd.npz", **{**stored, "obs": stored_obs})
    odd = ask("/api/policy/episode", {"policy": name, "log": {"file": "odd.npz"}, "index": 3})["steps"]
    assert odd[5]["flagged"] and odd[5]["proposed"] == odd[4]["logged"]
    calm = [index for index, step in enumerate(steps) if not step["flagged"]]
    assert len(calm) > 10
    assert [steps[i]["proposed"]["action_0"] for i in calm] == pytest.approx(wanted[calm].tolist(), abs=1e-5)


def test_the_decisions_of_a_shadow_are_counted(exported: Path) -> None:
    place = exported / "studio" / "serve-policy"
    place.mkdir(parents=True)
    settings = {"policy": "policy.safetensors", "port": 1}
    (place / "order.json").write_text(json.dumps({"kind": "serve", "settings": settings}))
    app = Studio(Folder.of(exported), TOKEN).app()
    for content, status in ((b"", 200), (b"no database" * 100, 400)):
        (place / "decisions.db").write_bytes(content)  # as it is for a moment, and as it never should be
        told = request(app, "GET", "/api/work/serve-policy/decisions", authorization=f"Bearer {TOKEN}")
        assert told.status == status and told.value.get("count", 0) == 0
    (place / "decisions.db").unlink()
    service = Service.of(exported / "policy.safetensors", None, "shadow", str(place / "decisions.db"), 60.0)
    for value in (0.5, None):
        service.act({"session": "a", "obs_0": value, "obs_1": 0.5})
    assert service.decisions is not None
    service.decisions.close()
    told = request(app, "GET", "/api/work/serve-policy/decisions", authorization=f"Bearer {TOKEN}").value
    assert (told["count"], told["flagged"], told["address"]) == (2, 1, "http://127.0.0.1:1")
    assert told["header"][:5] == ["at", "session", "step", "obs_0", "obs_1"] and told["rows"][1][3] == 0.5
    assert set(told["example"]) == {"session", "obs_0", "obs_1"}
    again = request(app, "GET", "/api/folder", authorization=f"Bearer {TOKEN}").value
    assert told["log"] in [each["name"] for each in again["logs"]], "what was decided is a log to learn from"
    content = json.dumps({"file": told["log"]}).encode()
    guess = request(app, "POST", "/api/log/guess", content, authorization=f"Bearer {TOKEN}").value
    roles = {each["name"]: each["role"] for each in guess["columns"]}
    assert (roles["obs_0"], roles["action_0"], roles["novelty"]) == ("observation", "action", "unused")
    assert guess["missing_values"] == "drop"
    choice = LogChoice.build({"file": told["log"], "observations": ["obs_0"]})
    assert choice.spelled(Folder.of(exported)) == "sqlite:studio/serve-policy/decisions.db"


def test_the_answer_of_a_search_is_told_beside_its_page(ask: Callable[..., Answer], directory: Path) -> None:
    (directory / "auto.html").write_text("page")
    curve = {
        "name": "lion",
        "positions": [{"dial": 0.0, "value": 1.0, "low": 0.0, "high": 2.0}],
        "recommended": None,
    }
    answer = {
        "recommended": "lion dial 0.5",
        "sentence": "Recommended: it is better.",
        "judgement": {"policies": [], "dials": [curve]},
    }
    (directory / "auto.json").write_text(json.dumps(answer))
    told = ask("/api/verdict", {"page": "auto.html"}).value
    assert told["sentence"] == "Recommended: it is better." and told["dials"] == [curve]
    for wrong in (
        "x",
        "[]",
        '{"judgement": 3, "reason": 4, "recommended": {}}',
        '{"policies": {"a": 1}, "dials": 3}',
    ):
        (directory / "auto.json").write_text(wrong)
        assert ask("/api/verdict", {"page": "auto.html"}).status == 200
