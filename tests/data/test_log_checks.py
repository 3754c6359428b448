"""Logs that are silently wrong are noticed, and logs that are right are left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.data.advice import Advice, advise
from rl_training.data.inspect import inspect_log
from rl_training.data.log_checks import hidden_mistakes
from toy_plants import (
    CLEAN,
    RIGHT,
    WRONG,
    Rows,
    by_chance,
    by_rule,
    linear_rows,
    one_long,
    tank_rows,
    two_plants,
    unmarked,
)


@pytest.mark.parametrize("name", CLEAN)
def test_logs_that_are_right_are_left_alone(name: str) -> None:
    log = CLEAN[name]().log()
    assert hidden_mistakes(log) == []


@pytest.mark.parametrize("plant", RIGHT)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_said_and_nothing_else(mistake: str, plant: str) -> None:
    words, change = WRONG[mistake]
    found = hidden_mistakes(change(RIGHT[plant]()).log())
    if plant == "tank" and mistake == "rewards one row late":
        # the score of a minute follows from its readings alone: late, it is the score of its own row
        assert found == []
        return
    assert len(found) == 1 and words in found[0]


@pytest.mark.parametrize("act", [by_chance, by_rule])
def test_two_plants_in_one_log(act: object) -> None:
    rows = two_plants(lambda size, seed: linear_rows(act, seed, gain=0.4 * size))  # type: ignore[arg-type]
    (found,) = hidden_mistakes(rows.log())
    assert "two groups" in found


def test_trips_that_nobody_marked() -> None:
    (found,) = hidden_mistakes(unmarked(linear_rows(by_chance, 11, noise=0.1, spread=0.3)).log())
    assert "of 60 episodes end early" in found and "--terminated" in found
    assert "observation 0 is as high or low as in 2% of all rows" in found  # both limits trip


def test_a_log_with_gaps_or_a_few_rows_is_no_problem() -> None:
    rows = tank_rows(runs=20)
    obs = rows.obs.copy()
    obs[::3, ::7] = np.nan
    assert hidden_mistakes(replace(rows, obs=obs).log(lenient=True)) == []
    few = Rows(rows.obs[:1, :5], rows.actions[:1, :5], rows.rewards[:1, :5]).log()
    assert hidden_mistakes(few) == [] and advise(few) is None


# ---- advice


def advice_of(rows: Rows) -> Advice:
    found = advise(rows.log())
    assert found is not None
    return found


def named(rows: Rows) -> Rows:
    return replace(
        rows, names=("T_tank", "level", "outflow")[: rows.obs.shape[2]], actors=("heater", "valve 1")
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_dead_time_is_told_from_what_is_not_logged(seed: int) -> None:
    late = advice_of(named(tank_rows(30 + seed, delay=3)))
    assert late.dead_times == {"heater": 3, "valve 1": 3} and not late.hidden and late.history == 4
    assert late.observations == "T_tank, level, outflow, lags(heater, 3), lags(`valve 1`, 3)"
    assert "heater shows after 4 rows (a dead time of 3)." in late.sentences


@pytest.mark.parametrize("hide", [(2,), (1, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_operators_react_to_and_the_log_does_not_hold_is_missed(
    seed: int, hide: tuple[int, ...]
) -> None:
    """Of the level nothing lasts from row to row by itself: it is how much a minute of heat warms."""
    hidden = advice_of(named(tank_rows(30 + seed, runs=300, delay=3, hide=hide)))
    assert hidden.hidden and hidden.history == 0 and hidden.observations is None
    assert "Something that the operators react to is not in the log" in hidden.sentences[0]


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("slow", [0.9, 0.97])
def test_hands_that_move_slowly_know_nothing_that_the_log_does_not_hold(slow: float, delay: int) -> None:
    assert not advice_of(tank_rows(50, runs=120, delay=delay, slow=slow)).hidden


@pytest.mark.parametrize("name", [name for name in CLEAN if "not logged" not in name])
def test_nobody_is_said_to_know_more_where_everything_is_logged(name: str) -> None:
    found = advise(CLEAN[name]().log())
    assert found is None or not found.hidden


@pytest.mark.parametrize("seed", range(3))
def test_where_the_past_does_not_matter_nothing_is_advised(seed: int) -> None:
    found = advice_of(named(tank_rows(seed)))
    assert (found.history, found.hidden, found.observations) == (0, False, None)
    assert found.dead_times == {"heater": 0, "valve 1": 0}
    assert "The past does not matter" in found.sentences[0]


def test_a_velocity_that_is_not_logged_can_be_made_up_for_by_history() -> None:
    """Nobody reacts to it, so rows before tell all of it."""
    rows = linear_rows(by_chance, noise=0.005, steps=60)
    found = advice_of(replace(rows, obs=rows.obs[:, :, :1], names=("x",), actors=("push",)))
    assert found.history >= 1 and not found.hidden
    assert found.observations is not None and "lags(x," in found.observations


def test_a_continuous_log_is_looked_at_in_pieces() -> None:
    found = advice_of(one_long(linear_rows(by_chance, delay=2)))
    assert found.dead_times == {"0": 2}


def test_what_stays_off_is_summed_up() -> None:
    rows = linear_rows(by_rule, 3)
    wanted = rows.obs[..., :1].mean(axis=1, keepdims=True) * np.ones_like(rows.obs[..., :1]) + 0.7
    both = replace(rows, obs=np.concatenate([rows.obs, wanted], axis=2), names=("T_tank", "v", "T_set"))
    found = advice_of(both)
    assert found.observations is not None and "sum(T_set - T_tank)" in found.observations
    assert any("T_tank stays" in words and "below T_set" in words for words in found.sentences)
    even = replace(both, obs=np.concatenate([rows.obs, wanted - 0.7], axis=2))
    assert advice_of(even).observations is None


def test_inspect_says_it_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = named(tank_rows(30, delay=3))
    lines = ["run,T_tank,level,outflow,heater,valve 1,score"]
    for run in range(len(rows.rewards)):
        for obs, action, reward in zip(rows.obs[run], rows.actions[run], rows.rewards[run], strict=True):
            lines.append(",".join(map(str, (run, *obs, *action, reward))))
    Path("log.csv").write_text("\n".join(lines) + "\n")
    columns = ["--obs", "T_tank,level,outflow", "--action", "heater,valve 1", "--reward", "score"]
    command = ["data", "inspect", "log.csv", *columns, "--episode", "run"]
    assert main([*command, "--plot", "log.png"]) == 0
    told = capsys.readouterr().out
    assert "--obs 'T_tank, level, outflow, lags(heater, 3), lags(`valve 1`, 3)'" in told
    assert "earlier rows looked at" in told and Path("log.png").stat().st_size > 20_000
    assert main([*command, "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice["dead_times"] == {"heater": 3, "valve 1": 3} and set(advice["errors"]) == set("01248")


def test_a_mistake_is_among_the_warnings_of_an_inspection() -> None:
    words, change = WRONG["epoch seconds"]
    assert any(words in warning for warning in inspect_log(change(tank_rows()).log()).warnings)
