"""Progress at a terminal, in a notebook, in a log file, and none; with clocks and streams of our own."""

import io
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from helpers import tiny_config, train
from rl_training.runs.tracking import Progress
from rl_training.runtime.progress import ProgressDisplay, Progression

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def show_some(display: ProgressDisplay) -> None:
    display.start(1000, "SAC on [Pendulum-v1]", completed=200)
    display.update(300)
    display.update(400, updates_per_second=1234.4, last_return=-151.26)
    display.stop()
    display.stop()


def terminal(width: int = 100) -> tuple[io.StringIO, ProgressDisplay]:
    screen = io.StringIO()
    return screen, ProgressDisplay(console=Console(file=screen, force_terminal=True, width=width))


def test_a_terminal_shows_steps_speed_return_and_times() -> None:
    screen, display = terminal()
    show_some(display)
    text = ESCAPES.sub("", screen.getvalue())
    assert "SAC on [Pendulum-v1]" in text
    assert re.search(r"400/1,000 · 1,234 updates/s · return -151\.3 · 0:0\d · \S+ left", text)


def test_the_bar_leaves_room_for_the_echo_of_an_interrupt() -> None:
    screen, display = terminal(width=90)
    show_some(display)
    drawn = re.split(r"[\r\n]", ESCAPES.sub("", screen.getvalue()))
    assert max(len(line) for line in drawn) == 90 - 3


def test_nothing_is_shown_when_asked_for_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    show_some(ProgressDisplay(quiet=True, console=Console(file=screen, force_terminal=True)))
    show_some(ProgressDisplay(quiet=True))
    assert capfd.readouterr() == ("", "") and screen.getvalue() == ""


def log_file() -> tuple[io.StringIO, Clock, ProgressDisplay]:
    file, clock = io.StringIO(), Clock()
    return file, clock, ProgressDisplay(console=Console(file=file, force_terminal=False), clock=clock)


def test_a_log_file_gets_a_first_line_soon_then_one_each_half_minute() -> None:
    file, clock, display = log_file()
    display.start(10_000, "iql on Pendulum-v1")
    for second in range(1, 91):
        clock.now += 1.0
        display.update(
            100 * second, updates_per_second=100.0, losses=lambda: {"actor_loss": 0.63412, "q": 5.0}
        )
    lines = file.getvalue().splitlines()
    assert [line.split(" · ")[1] for line in lines] == ["0:02", "0:32", "1:02"]
    assert lines[1] == (
        "iql on Pendulum-v1 · 0:32 · 3,200/10,000 (32 %) · 100 updates/s · actor_loss 0.634 · 1:08 left"
    )


def test_an_evaluation_brings_a_line_unless_there_was_one_just_now() -> None:
    file, clock, display = log_file()
    display.start(1000, "run")
    moments = ((10, 1.0, True), (20, 3.0, False), (30, 6.0, True), (80, 8.0, True), (90, 9.0, True))
    for step, second, evaluated in moments:
        clock.now = 1000.0 + second
        display.update(step, last_return=-float(step), evaluated=evaluated)
    assert re.findall(r"return (\S+)", file.getvalue()) == ["-20.0", "-80.0"]


def test_losses_are_read_only_for_a_line_that_is_printed() -> None:
    _, clock, display = log_file()
    asked: list[float] = []
    display.start(1000, "run")
    for second in range(20):
        clock.now += 1.0
        display.update(second, losses=lambda: asked.append(clock.now) or {})  # type: ignore[func-returns-value]
    assert asked == [1002.0]


def test_a_resumed_run_counts_its_time_from_new_steps_only() -> None:
    state = Progression("run", total=1000, first=800, started=0.0, step=900)
    assert state.line(10.0) == "0:10 · 900/1,000 (90 %) · 0:10 left"
    assert Progression("run", 1000, 800, 0.0, 800).line(5.0).endswith("-:-- left")
    # The first step of a compiled run took 25 seconds; that the rest takes days is not to be told.
    assert Progression("run", 20_000, 0, 0.0, 1).line(25.0).endswith("-:-- left")


class Notebook:
    """As much of IPython as a display needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[Any] = []
        ipython: Any = ModuleType("IPython")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
        shown: Any = ModuleType("IPython.display")
        shown.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)

    def display(self, thing: Any, *, display_id: bool) -> Any:
        assert display_id
        self.outputs.append(thing)
        return SimpleNamespace(update=self.update)

    def update(self, thing: Any) -> None:
        self.outputs[-1] = thing


def test_a_notebook_shows_one_output_that_changes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook, clock = Notebook(monkeypatch), Clock()
    display = ProgressDisplay(clock=clock)
    display.start(1000, "SAC on <Pendulum>")
    for step in (100, 200):
        clock.now += 1.0
        display.update(step, losses=lambda: {"critic_loss": 2.0})
    assert repr(notebook.outputs[0]) == (
        "SAC on <Pendulum> · 0:02 · 200/1,000 (20 %) · critic_loss 2 · 0:08 left"
    )
    html = notebook.outputs[0]._repr_html_()
    assert '<progress value="200" max="1000">' in html and "SAC on &lt;Pendulum&gt;" in html
    display.update(250)  # at once: not drawn yet
    assert "200/1,000" in repr(notebook.outputs[0])
    display.stop()
    assert "250/1,000" in repr(notebook.outputs[0])
    assert len(notebook.outputs) == 1 and capfd.readouterr() == ("", "")


def test_ipython_at_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch)
    sys.modules["IPython"].get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    show_some(ProgressDisplay())
    assert notebook.outputs == []


def test_a_run_tells_its_losses_and_evaluations(tmp_path: Path) -> None:
    file = io.StringIO()
    seconds = itertools.count(0.0, 10.0)
    display = ProgressDisplay(console=Console(file=file, force_terminal=False), clock=lambda: next(seconds))
    config = tiny_config("iql", tmp_path, algo_kwargs={"eval_interval": 20})
    train(config, callbacks=[Progress(display, config.total_timesteps)])
    lines = file.getvalue().splitlines()
    evaluated = [line for line in lines if " · 20/40 (50 %) · " in line]
    losses = r"actor_loss \S+ · critic_loss \S+ · value_loss \S+"
    assert re.search(rf"^iql on Pendulum-v1 · .* updates/s · {losses} · return -[\d.,]+ · ", evaluated[-1])


def test_a_stage_takes_the_place_of_the_steps_and_gives_it_back() -> None:
    screen, clock = io.StringIO(), Clock()
    display = ProgressDisplay(console=Console(file=screen, force_terminal=True, width=100), clock=clock)
    display.start(1000, "iql")
    display.update(1000, updates_per_second=200.0)
    display.stage("judging (values)", 0, 2000)
    clock.now += 3.0
    display.stage("judging (values)", 500, 2000)
    screen.truncate(0)
    display._display.progress.refresh()  # type: ignore[union-attr]
    assert "judging (values) · 0:03 · 500/2,000 · 0:09 left" in ESCAPES.sub("", screen.getvalue())
    display.update(1000, updates_per_second=200.0)
    screen.truncate(0)
    display.stop()
    left = ESCAPES.sub("", screen.getvalue())
    assert left.count("━ ") == 1 and "1,000/1,000 · 200 updates/s" in left and "judging" not in left


def test_a_stage_in_a_log_file_and_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock, display = log_file()
    display.start(1000, "iql")
    for stage, done in (("values", 0), ("values", 40), ("model", 0), ("model", 4)):
        clock.now += 20.0
        display.stage(f"judging ({stage})", done, 80)
    assert file.getvalue().splitlines() == [
        "iql · judging (values) · 0:00 · 0/80 · -:-- left",
        "iql · judging (model) · 0:00 · 0/80 · -:-- left",
    ]
    notebook, clock = Notebook(monkeypatch), Clock()
    display = ProgressDisplay(clock=clock)
    display.start(1000, "iql")
    display.stage("judging (values)", 20, 80)
    assert 'value="20" max="80"' in notebook.outputs[0]._repr_html_()
    display.update(1000)
    display.stop()
    assert repr(notebook.outputs[0]).startswith("iql · 0:00 · 1,000/1,000") and len(notebook.outputs) == 1
