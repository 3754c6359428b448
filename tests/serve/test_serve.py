"""A policy as a service: names in, names out, gaps, modes, who may ask, and every decision on the disk."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from asgi import request
from helpers import BARE_STATE
from rl_training import BC
from rl_training.cli import main
from rl_training.config.data import DatasetSource
from rl_training.core.drift import ColumnShares, describe_columns, training_columns
from rl_training.core.errors import UserError
from rl_training.core.spaces import Box, Choice, FeatureNames, FloatArray, Spaces
from rl_training.data import TransitionDataset
from rl_training.data.tables.guess import guess_mapping, look_at
from rl_training.models.choices import FactoredActor
from rl_training.models.networks import NetworkPlan
from rl_training.policies.acting import NOTHING_CHOSEN
from rl_training.policies.files import load_policy
from rl_training.policies.guard import Fallback, GuardFacts
from rl_training.policies.guard_fitting import GuardConfig, fit_guard
from rl_training.policies.inputs import RuntimeInput
from rl_training.policies.opened import DeployedPolicy
from rl_training.policies.policy import Policy
from rl_training.runs.export import export_policy
from rl_training.serve import decisions as decisions_module
from rl_training.serve.app import LARGEST_BODY, Endpoints, ServeSettings, Service, watch_of
from rl_training.serve.decisions import Columns, DecisionLog, open_database
from rl_training.serve.drift import write_drift_page
from rl_training.serve.server import Doorkeeper
from rl_training.serve.sessions import Mode, Served, Sessions

TOKEN = "a token of sixteen letters"


class Linear(DeployedPolicy):
    """valve = T / 10, pump on above level 1; flagged beyond T = 100."""

    def __init__(self, *, guard: bool = True, observed: list[Any] | None = None) -> None:
        spaces = Spaces.of(2, [Box(0.0, 100.0), Choice(("off", "on"))])
        names = FeatureNames(("T", "level"), ("valve", "pump"))
        stored = {"spaces": spaces.to_dict(), "features": names.to_dict(), "outputs": ["action"]}
        data = None if observed is None else {"observed": observed}
        super().__init__({**stored, "training": {"data": data}})
        if guard:
            fallback = Fallback("hold", (50.0, 0.0))
            facts = {"points": "observations", "centres": 1, "percentile": 99.0, "threshold": 1.0, "rows": 1}
            shares = {"held_out_rows": 1, "training_beyond": 0.0, "held_out_beyond": 0.0, "source": "log"}
            self.guard_facts = GuardFacts(**facts, **shares, fallback=fallback)  # type: ignore[arg-type]

    def compute(
        self, obs: FloatArray, names: tuple[str, ...], inputs: Any = NOTHING_CHOSEN
    ) -> list[FloatArray]:
        action = np.stack([obs[:, 0] / 10.0, (obs[:, 1] > 1.0)], axis=1).astype(np.float32)
        return [action if name == "action" else obs[:, :1] / 100.0 for name in names]


def service(mode: Mode = "advise", place: str | None = None, **policy: Any) -> Service:
    served = Served(Linear(**policy), "abc")
    log = (
        None if place is None else DecisionLog(place, Columns(served.observations, served.actions), ["pump"])
    )
    return Service("tank", Sessions(served, mode), log, watch_of(served))


def ask(
    asked: Service, path: str, body: Any = None, doors: Doorkeeper | None = None, **headers: str
) -> tuple[int, Any]:
    """One request to the application itself."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    app = Starlette(routes=Endpoints(asked, doors or Doorkeeper("127.0.0.1", None)).routes())
    answer = request(app, "GET" if body is None else "POST", path, content, **headers)
    return answer.status, answer.value


def test_names_come_in_and_names_go_out() -> None:
    asked = service()
    status, told = ask(asked, "/act", {"session": "a", "T": 45.0, "level": 2, "note": 1})
    assert status == 200 and told["action"] == {"valve": 4.5, "pump": "on"}
    assert (told["step"], told["mode"], told["flagged"], told["ignored"]) == (0, "advise", False, ["note"])
    assert ask(asked, "/act", {"session": "a", "T": 45.0, "level": 0})[1]["step"] == 1
    assert ask(asked, "/act", {"session": "b", "T": 45.0, "level": 0})[1]["step"] == 0


@pytest.mark.parametrize("gap", [{}, {"level": None}, {"level": math.nan}, {"level": 1e999}])
def test_gaps_are_flagged_and_the_last_action_that_was_really_done_is_held(gap: dict[str, Any]) -> None:
    asked = service()
    first = ask(asked, "/act", {"T": 45.0, **gap})[1]
    assert first["flagged"] and first["action"] == {"valve": 50.0, "pump": "off"}, "the log's mean action"
    done = {"valve": 30, "pump": "on"}
    told = ask(asked, "/act", {"T": 45.0, "applied": done, **gap})[1]
    assert told["action"] == done and told["reasons"] == ["level is missing"] and told["novelty"] is None


def test_a_policy_without_a_guard_survives_gaps_too() -> None:
    asked = service(guard=False)
    assert ask(asked, "/act", {"T": 45.0})[1]["action"] is None
    ask(asked, "/act", {"T": 45.0, "level": 0})
    told = ask(asked, "/act", {"T": 45.0})[1]
    assert told["flagged"] and told["action"] == {"valve": 4.5, "pump": "off"}


def test_what_the_guard_does_not_know_is_said() -> None:
    told = ask(service(), "/act", {"T": 900.0, "level": 0})[1]
    assert told["flagged"] and told["novelty"] == pytest.approx(9.0)
    assert "unlike the guard's data: novelty 9, the limit is 1" in told["reasons"]


@pytest.mark.parametrize("guarded", [False, True])
def test_a_call_with_a_mask_never_gets_a_level_that_it_rules_out(guarded: bool, tmp_path: Path) -> None:
    spaces = Spaces.of(4, [Choice(("low", "mid", "high"))], masked=True)
    actor = FactoredActor(4, 3, NetworkPlan(hidden_sizes=(8,)), levels=(3,), masked=True)
    names = FeatureNames(("seen", "low_ok", "mid_ok", "high_ok"), ("gate",))
    policy = Policy(actor, spaces).snapshot()
    draws = np.random.default_rng(0)
    masks = draws.integers(0, 2, size=(300, 3))
    masks[masks.sum(axis=1) == 0] = 1
    if guarded:
        rows = torch.from_numpy(np.column_stack([draws.normal(size=300), masks]).astype(np.float32))
        policy.guard = fit_guard(rows, rows[::4], GuardConfig(actions=False), spaces, "x", (2.0,))
    state = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
    state["dataset"] = {"features": names.to_dict()}
    file = export_policy(policy, state, tmp_path / "p.safetensors")
    asked = service()
    asked.sessions = Sessions(Served(load_policy(file), "abc"), "act")
    given = set()
    for row, mask in enumerate(masks.tolist()):
        seen = {0: {}, 1: {"seen": None}, 2: {"seen": 1e6}}.get(row % 5, {"seen": float(draws.normal())})
        call = dict(zip(("low_ok", "mid_ok", "high_ok"), mask, strict=True)) | seen
        status, told = ask(asked, "/act", {"session": "a", **call})
        assert status == 200, told
        if told["action"] is not None:
            level = told["action"]["gate"]
            assert call[f"{level}_ok"] == 1, (call, told)
            given.add(level)
    assert given == {"low", "mid", "high"}


def test_in_shadow_the_answer_is_what_was_applied() -> None:
    asked = service("shadow")
    assert ask(asked, "/act", {"T": 45.0, "level": 0})[1]["action"] is None
    told = ask(asked, "/act", {"T": 45.0, "level": 0, "applied": {"valve": 77, "pump": "on"}})[1]
    assert told["action"] == {"valve": 77.0, "pump": "on"}
    assert "applied is missing" in ask(asked, "/act", {"T": 45.0, "level": 0})[1]["reasons"][0]


def test_an_episode_ends_by_reset_by_silence_and_by_the_reset_address() -> None:
    asked = service()
    call = {"T": 45.0, "level": 0}
    ask(asked, "/act", call)
    assert ask(asked, "/act", {**call, "reset": True})[1]["step"] == 0
    assert (
        ask(asked, "/reset", {"session": "default", "previous_action": {"valve": 9, "pump": "off"}})[0] == 200
    )
    gap = ask(asked, "/act", {"T": 45.0})[1]
    assert gap["step"] == 0 and gap["action"] == {"valve": 9.0, "pump": "off"}
    asked.sessions.idle = -1.0
    assert ask(asked, "/act", call)[1]["step"] == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"T": "warm", "level": 1}, "T must be a number or null, got 'warm'"),
        ({"TT": 1}, "did you mean 'T'?"),
        ({"T": 1, "level": 1, "session": ""}, "session must be a name"),
        ({"T": 1, "level": 1, "reset": 1}, "reset must be true or false"),
        ({"T": 1, "level": 1, "applied": {"valve": 1}}, "applied must have a value for each of valve, pump"),
        ({"T": 1, "level": 1, "applied": {"valve": 1, "pump": "open"}}, "'open' is not in a choice"),
        ({"T": 1, "level": 1, "applied": {"valve": None, "pump": "on"}}, "applied.valve must be a finite"),
        ([1], "the body must be a JSON object"),
        (b"{" * 100_000, "the body must be a JSON object"),
    ],
)
def test_what_is_said_wrongly_is_one_line_and_nothing_moves(body: Any, words: str) -> None:
    asked = service()
    ask(asked, "/act", {"T": 45.0, "level": 0})
    status, told = ask(asked, "/act", body)
    assert status == 400 and words in told["error"] and "\n" not in told["error"]
    assert ask(asked, "/act", {"T": 45.0, "level": 0})[1]["step"] == 1


WORDS = st.sampled_from(
    ["T", "level", "session", "applied", "reset", "valve", "pump", "inputs", "name", "obs", "shape", "data"]
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=8
)
TENSORS = st.fixed_dictionaries(
    {"name": st.just("obs"), "datatype": st.sampled_from(["FP32", "FP64", 1])},
    optional={"shape": st.just([1, 2]) | VALUES, "data": st.just([1, 2]) | VALUES},
)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(["/act", "/act", "/reset", "/dial", "/v2/models/tank/infer"]),
    body=st.dictionaries(WORDS, VALUES, max_size=6)
    | st.fixed_dictionaries({"inputs": st.lists(TENSORS | VALUES, max_size=2)})
    | VALUES
    | st.binary(max_size=50),
)
def test_whatever_is_asked_is_answered_in_one_line_and_the_next_call_too(path: str, body: Any) -> None:
    asked = service()
    status, told = ask(asked, path, b"null" if body is None else body)
    assert status in (200, 400, 403)
    assert status == 200 or (set(told) == {"error"} and "\n" not in told["error"])
    told = ask(asked, "/act", {"session": "next", "T": 45.0, "level": 0})[1]
    assert told["step"] == 0 and told["action"] == {"valve": 4.5, "pump": "off"}


def test_the_open_inference_protocol_is_spoken() -> None:
    asked = service()
    data = {"name": "obs", "shape": [2, 2], "datatype": "FP32", "data": [[10, 0], [20, 2]]}
    status, told = ask(asked, "/v2/models/tank/infer", {"id": "7", "inputs": [data]})
    assert status == 200 and told["id"] == "7" and told["model_name"] == "tank"
    action, novelty = told["outputs"]
    assert (action["shape"], action["data"]) == ([2, 2], [1.0, 0.0, 2.0, 1.0])
    assert novelty["name"] == "novelty" and novelty["data"] == pytest.approx([0.1, 0.2])
    assert ask(asked, "/v2/models/tank")[1]["inputs"] == [
        {"name": "obs", "datatype": "FP32", "shape": [-1, 2]}
    ]
    assert ask(asked, "/v2/health/live")[1] == {"live": True}
    assert ask(asked, "/v2/health/ready")[0] == ask(asked, "/v2/models/tank/ready")[0] == 200
    assert ask(asked, "/v2/models/other/infer", {"inputs": [data]})[0] == 404
    for wrong in (
        {"shape": [2, 3]},
        {"shape": [-1, 2]},
        {"datatype": "INT8"},
        {"data": ["a"] * 4},
        {"name": "x"},
    ):
        assert ask(asked, "/v2/models/tank/infer", {"inputs": [data | wrong]})[0] == 400
    assert ask(asked, "/v2/models/tank/infer", {"inputs": [data | {"data": [1, 2, 3, 1e999]}]})[0] == 400


def test_pages_from_elsewhere_other_hosts_and_long_bodies_are_refused() -> None:
    asked, call = service(), {"T": 45.0, "level": 0}
    assert ask(asked, "/act", call, origin="http://evil.example")[0] == 403
    assert ask(asked, "/act", call, origin="http://127.0.0.1:8000")[0] == 200
    assert ask(asked, "/act", call, host="evil.example:8000")[0] == 421
    assert ask(asked, "/act", b"x" * (LARGEST_BODY + 1))[0] == 413


def test_other_addresses_need_a_token() -> None:
    with pytest.raises(UserError, match=r"--host 0\.0\.0\.0 .* a token must be given"):
        Doorkeeper("0.0.0.0", None)
    with pytest.raises(UserError, match="at least 16 characters"):
        Doorkeeper("127.0.0.1", "short")
    doors, asked, call = Doorkeeper("0.0.0.0", TOKEN), service(), {"T": 45.0, "level": 0}
    assert ask(asked, "/act", call, doors)[0] == 401
    assert ask(asked, "/act", call, doors, authorization=f"Bearer {TOKEN}x")[0] == 401
    assert ask(asked, "/act", call, doors, authorization=f"Bearer {TOKEN}")[0] == 200
    assert (
        ask(asked, "/v2/health/live", None, doors)[0] == 200 and ask(asked, "/metrics", None, doors)[0] == 401
    )


class Dialled(Linear):
    """The same with a dial that the valve is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = (RuntimeInput("dial", 0.0, 1.0, 0.5),)

    def act_with_novelty(self, obs: FloatArray, **inputs: Any) -> tuple[FloatArray, FloatArray]:
        action, novelty = self.compute(obs, ("action", "novelty"))
        return (action * [inputs["dial"], 1.0]).astype(np.float32), novelty


def test_the_dial_is_turned_with_the_token_alone_and_told_in_every_answer(tmp_path: Path) -> None:
    asked = service(place=str(tmp_path / "d.db"))
    asked.sessions = Sessions(Served(Dialled(), "abc"), "advise")
    doors, key = Doorkeeper("127.0.0.1", TOKEN), f"Bearer {TOKEN}"
    call = {"T": 400.0 / 5, "level": 0}
    told = ask(asked, "/act", call, doors, authorization=key)[1]
    assert (told["action"]["valve"], told["dial"]) == (4.0, 0.5)
    assert ask(asked, "/dial", {"dial": 1.0})[0] == 403, "without a token nobody turns it"
    assert ask(asked, "/dial", {"dial": 1.0}, doors, authorization=key) == (200, {"dial": 1.0})
    assert ask(asked, "/act", call, doors, authorization=key)[1]["action"]["valve"] == 8.0
    for wrong in ({"dial": 1.5}, {"dial": "up"}, {"dail": 1.0}):
        assert ask(asked, "/dial", wrong, doors, authorization=key)[0] == 400
    assert asked.decisions is not None
    asked.decisions.close()
    assert [json.loads(row["inputs"]) for row in rows_of(tmp_path / "d.db")] == [{"dial": 0.5}, {"dial": 1.0}]


# ---- the decision log


def rows_of(place: Path, query: str = "select * from decisions order by at") -> list[Any]:
    with closing(sqlite3.connect(place)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def test_every_decision_is_a_row_and_applied_is_what_was_done_in_it(tmp_path: Path) -> None:
    place = tmp_path / "decisions.db"
    asked = service(place=str(place))
    for T, more in ((45, {}), (46, {"applied": {"valve": 9, "pump": "on"}}), (47, {})):
        ask(asked, "/act", {"T": T, "level": 0, **more})
    assert asked.decisions is not None
    asked.decisions.close()
    first, second, third = rows_of(place)
    assert (first["T"], first["recommended_valve"], first["valve"], first["pump"]) == (45.0, 4.5, 9.0, "on")
    assert second["valve"] is None and third["recommended_pump"] == "off"
    assert first["episode"] == third["episode"] and [first["step"], third["step"]] == [0, 2]
    assert first["policy"] == "abc" and first["served_as"] == "advise" and first["latency_ms"] > 0


def test_where_the_policy_acts_its_action_is_the_applied_one(tmp_path: Path) -> None:
    asked = service("act", str(tmp_path / "d.db"))
    ask(asked, "/act", {"T": 45.0, "level": 0})
    assert asked.decisions is not None
    asked.decisions.close()
    assert rows_of(tmp_path / "d.db")[0]["valve"] == 4.5


def test_a_log_of_other_columns_and_names_that_collide_are_refused(tmp_path: Path) -> None:
    DecisionLog(str(tmp_path / "d.db"), Columns(("x",), ("u",))).close()
    with pytest.raises(UserError, match="decisions of a policy with other columns"):
        DecisionLog(str(tmp_path / "d.db"), Columns(("y",), ("u",)))
    with pytest.raises(UserError, match="column 'step' has the name of another"):
        Columns(("step",), ("u",))
    with pytest.raises(UserError, match="must not hold a password"):
        open_database("postgresql://me:secret@host/plant")


def test_names_are_data_in_every_statement(tmp_path: Path) -> None:
    name = 'T"; drop table decisions; --'
    log = DecisionLog(str(tmp_path / "d.db"), Columns((name,), ("u",)))
    log.add({"decision": "a", name: 1.0}, None)
    log.close()
    assert rows_of(tmp_path / "d.db", "select * from decisions")[0][name] == 1.0


def test_rows_wait_while_the_database_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = service(place=str(tmp_path / "d.db"))
    log = asked.decisions
    assert log is not None
    run, away = log.database.run, [True]

    def broken(statement: str, rows: Any = ()) -> None:
        if away[0]:
            raise sqlite3.OperationalError("disk I/O error")
        run(statement, rows)

    monkeypatch.setattr(log.database, "run", broken)
    monkeypatch.setattr(decisions_module, "GATHERED", 0.01)
    ask(asked, "/act", {"T": 45.0, "level": 0})
    deadline = time.monotonic() + 5.0
    while log.problem is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ask(asked, "/v2/health/ready")[0] == 503
    assert "cannot be written" in ask(asked, "/act", {"T": 45.0, "level": 0})[1]["reasons"][-1]
    away[0] = False
    log.close()
    assert len(rows_of(tmp_path / "d.db")) == 2


def test_another_policy_is_swapped_in_whole_and_keeps_what_was_done() -> None:
    sessions = Sessions(Served(Linear(), "one"), "advise")
    sessions.act({"T": 45.0, "level": 0})
    sessions.swap(Served(Linear(), "two"))
    told = sessions.act({"T": None, "level": 0}).reply
    assert told["policy"] == "two" and told["step"] == 1
    assert told["action"] == {"valve": 4.5, "pump": "off"}, "held over the swap"
    other = Linear()
    other.features = FeatureNames(("T", "height"), ("valve", "pump"))
    with pytest.raises(UserError, match="observations must be those of the old one"):
        sessions.swap(Served(other, "three"))
    assert sessions.act({"T": 45.0, "level": 0}).reply["policy"] == "two"
    turned = Sessions(Served(Dialled(), "one"), "advise")
    turned.choose({"dial": 1.0})
    turned.swap(Served(Dialled(), "two"))
    assert turned.act({"T": 40.0, "level": 0}).reply["dial"] == 1.0, "the dial stays where it was turned to"


# ---- drift


def test_stability_index_by_hand() -> None:
    column = ColumnShares((1.0,), (0.5, 0.5))
    assert column.instability(np.array([0.0, 1.0, 2.0, 3.0])) == pytest.approx(0.0)
    # shares .25 and .75 against .5 and .5: (-.25) ln(.5) + .25 ln(1.5)
    wanted = -0.25 * math.log(0.5) + 0.25 * math.log(1.5)
    assert column.instability(np.array([0.0, 2.0, 2.0, 2.0, math.nan])) == pytest.approx(wanted)
    assert column.instability(np.array([math.nan])) is None


def test_training_columns_hold_the_shares_of_their_bins_also_of_few_values() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=1000), rng.random(1000) < 0.3, np.ones(1000)], axis=1)
    smooth, flag, constant = training_columns({"observed": describe_columns(values, "abc")}).values()
    assert len(smooth.edges) == 9 and smooth.shares == pytest.approx([0.1] * 10, abs=0.002)
    assert sum(flag.shares) == pytest.approx(1.0) and flag.instability(values[:, 1]) == pytest.approx(0.0)
    assert constant.instability(np.full(9, 2.0)) > 1.0  # type: ignore[operator]
    assert training_columns(None) == {}
    with pytest.raises(UserError, match="training columns make no sense"):
        training_columns({"observed": [{"name": "a", "edges": [1.0], "shares": [2.0, 0.0]}]})


def test_metrics_tell_calls_flags_bounds_and_drift() -> None:
    asked = service(
        observed=describe_columns(np.random.default_rng(0).uniform(0, 90, (500, 2)), ["T", "level"])
    )
    for _ in range(60):
        ask(asked, "/act", {"T": 95.0, "level": 45.0})
    ask(asked, "/act", {"T": "x", "level": 1})
    text = ask(asked, "/metrics")[1]
    assert 'rl_training_calls_total{outcome="answered"} 60' in text and "rl_training_flagged_total 0" in text
    drift = float(text.split('rl_training_drift{column="T"} ')[1].split()[0])
    assert drift > 0.25 and "rl_training_latency_seconds_count 60" in text
    for temperature in (150.0, 0.0, 50.0):  # beyond the guard's limit, on the lower bound, inside
        ask(asked, "/act", {"T": temperature, "level": 0.0})
    text = ask(asked, "/metrics")[1]
    assert "rl_training_flagged_total 1\n" in text
    assert "rl_training_recent_on_bounds_share 0.015873\n" in text  # one of 63


# ---- from the command line


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained policy with a guard, as a user exports it."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    obs = rng.uniform(0, 1, (600, 2)).astype(np.float32)
    ends = np.arange(600) % 20 == 19
    log = TransitionDataset(obs, obs[:, :1], obs[:, 0], obs, np.zeros(600), truncations=ends)
    agent = BC(
        total_timesteps=20, action_low=[0.0], action_high=[1.0], hidden_sizes=(8,), compile=False,
        output_dir=str(folder), judge_at_end=False,
    )  # fmt: skip
    agent.learn(dataset=log)
    run = next(path for path in folder.iterdir() if path.is_dir())
    np.savez(
        folder / "log.npz",
        obs=obs,
        actions=obs[:, :1],
        rewards=obs[:, 0],
        terminations=0 * obs[:, 0],
        truncations=ends,
    )
    out = folder / "policy.safetensors"
    guard = ["--guard", str(folder / "log.npz")]
    assert main(["export", "--checkpoint", str(run), "--out", str(out), *guard]) == 0
    return out


@pytest.fixture
def started(exported: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    running: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        words = ["serve", str(exported), "--port", str(port), "--decisions", str(tmp_path / "d.db"), *options]
        code = f"import sys\nfrom rl_training.cli import main\nsys.exit(main({words!r}))"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        assert "at http://127.0.0.1" in process.stderr.readline()
        return process, port

    yield start
    for process in running:
        process.kill()
        process.communicate()


def post(port: int, body: Any) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/act", json.dumps(body).encode())
    for _ in range(50):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError as problem:
            if not isinstance(problem.reason, ConnectionError):
                raise
            time.sleep(0.1)
    raise AssertionError("the service never answered")


@pytest.mark.slow
def test_a_killed_service_loses_nothing_beyond_its_window(started: Any, tmp_path: Path) -> None:
    process, port = started()
    told = [post(port, {"obs_0": index / 100, "obs_1": 0.5}) for index in range(50)]
    time.sleep(decisions_module.WINDOW)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = rows_of(tmp_path / "d.db")
    assert [row["step"] for row in rows] == [reply["step"] for reply in told]
    again, port = started()
    assert post(port, {"obs_0": 0.1, "obs_1": 0.5})["step"] == 0, "a new episode after the kill"
    again.send_signal(signal.SIGTERM)
    assert again.wait(timeout=20) == 0
    assert len(rows_of(tmp_path / "d.db")) == 51, "SIGTERM writes what waits"


@pytest.mark.slow
def test_the_service_needs_no_torch(exported: Path) -> None:
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['gymnasium'] = None\n"
        "from pathlib import Path\nfrom rl_training.serve.app import Service\n"
        f"told = Service.of(Path({str(exported)!r}), None, 'act', None, 60.0)\n"
        "print(told.act({'obs_0': 0.5, 'obs_1': 0.5})['action'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "action_0" in done.stdout


def test_the_drift_page_says_which_column_moved(exported: Path, tmp_path: Path) -> None:
    place = tmp_path / "d.db"
    asked = Service.of(exported, None, "act", str(place), 60.0)
    rng = np.random.default_rng(1)
    for _ in range(150):
        asked.act({"obs_0": float(rng.uniform(0, 1)), "obs_1": float(rng.uniform(2, 3))})
    assert asked.decisions is not None
    asked.decisions.close()
    out = tmp_path / "drift.html"
    assert main(["drift", str(place), "--policy", str(exported), "--out", str(out)]) == 0
    text = out.read_text()
    assert "obs_1: the policy sees something else than it was trained on" in text
    sentences = write_drift_page(str(place), exported, out, last=100)
    assert "obs_0" not in sentences[0] and "flagged" in sentences[1]
    with pytest.raises(UserError, match="no such decision log"):
        write_drift_page(str(tmp_path / "none.db"), exported, out, last=10)


def test_settings_say_where_decisions_go_and_what_the_token_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.onnx"
    assert ServeSettings(policy).place == str(tmp_path / "decisions.db")
    assert ServeSettings(policy, decisions="").place is None
    monkeypatch.setenv("RL_TRAINING_TOKEN", TOKEN)
    assert ServeSettings(policy).token == TOKEN
    (tmp_path / "token").write_text(f"{TOKEN}2\n")
    assert ServeSettings(policy, token_file=tmp_path / "token").token == f"{TOKEN}2"
    with pytest.raises(UserError, match=r"--token-file .* cannot be read"):
        _ = ServeSettings(policy, token_file=tmp_path / "none").token


def test_inspect_knows_a_decision_log_again(tmp_path: Path) -> None:
    place = tmp_path / "decisions.db"
    asked = service(place=str(place))
    for step in range(30):
        more = {"applied": {"valve": step, "pump": ("off", "on")[step % 2]}} if step else {}
        ask(asked, "/act", {"T": 40.0 + step % 7, "level": step % 3, **more})
    assert asked.decisions is not None
    asked.decisions.close()
    guess = guess_mapping(look_at(DatasetSource(dataset_path=f"sqlite:{place}")))
    assert guess.columns.observations == ("T", "level") and guess.columns.actions == ("valve", "pump")
    assert guess.columns.levels == {"pump": ("off", "on")}
    assert (guess.columns.episode, guess.columns.time, guess.columns.reward) == ("episode", "at", None)
    assert guess.reasons["recommended_valve"] == guess.reasons["novelty"] == "ignored: written by serve"
    assert "--missing-values drop" in guess.flags(), "the last action is never told"
    assert guess.questions[0].startswith("reward: serve sees none")
