"""The page of a search: the answer first, then the candidates, what the policy does, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_training.core.errors import html_text
from rl_training.core.files import write_text_atomic
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.judging.verdict import Judgement
from rl_training.policies.acting import ActingPolicy
from rl_training.report.charts import Bar
from rl_training.report.content import Page, Section, Table, duration
from rl_training.report.explain import explain
from rl_training.report.judge_page import beside_the_log, judge_page, subtitle, verdict_table
from rl_training.report.pages import render_html


class Found(Protocol):
    """What a page needs to know of a search (`recommend.auto.AutoResult`)."""

    @property
    def page(self) -> Path: ...
    @property
    def sentence(self) -> str: ...
    @property
    def recommended(self) -> bool: ...
    @property
    def judgement(self) -> Judgement: ...
    @property
    def second(self) -> Judgement | None: ...
    @property
    def policy(self) -> Path | None: ...
    @property
    def failed(self) -> Mapping[str, str]: ...
    @property
    def commands(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def seconds(self) -> float: ...


def write_auto_page(found: Found, log: TransitionDataset, policy: ActingPolicy | None) -> Path:
    """Write the page beside the policy."""
    write_text_atomic(found.page, render_html(auto_page(found, log, policy)))
    return found.page


def auto_page(found: Found, log: TransitionDataset, policy: ActingPolicy | None) -> Page:
    """The whole content, in order."""
    judgement = found.judgement
    ranked = judgement.ranking()
    bars = [Bar(each.name, each.value, each.low, each.high, 1 + index) for index, each in enumerate(ranked)]
    note = "A policy whose bar lies right of the band earns more than what was logged."
    figure = beside_the_log(judgement, "Values with intervals", bars, note)
    parts = [Section("Candidates", (verdict_table(judgement, ranked), figure))]
    if policy is not None:
        parts.append(explain(policy, log))
    if found.second is not None:
        parts += judge_page(found.second, "").sections[1:]
    if found.notes:
        notes = tuple((note,) for note in found.notes)
        parts.append(Section("What the log says", (Table("What the log says", ("found",), notes),)))
    if found.failed:
        failed = tuple(found.failed.items())
        parts.append(Section("What failed", (Table("What failed", ("training", "why"), failed),)))
    if not found.recommended and judgement.advice:
        rows = tuple((sentence,) for sentence in judgement.advice)
        parts.append(Section("What to log next", (Table("What to log next", ("do this",), rows),)))
    commands = Table("Each step by hand", ("command",), tuple((each,) for each in found.commands))
    parts.append(Section("How to repeat it", (commands,)))
    facts = (subtitle(judgement), f"The search took {duration(found.seconds)}.")
    tone = "better" if found.recommended else "refused"
    return Page("From the log to a policy", (found.sentence,), facts, tuple(parts), (tone,))


def short_html(found: Found) -> str:
    """What a notebook shows."""
    table = verdict_table(found.judgement, found.judgement.ranking())
    rows = "".join(
        f"<tr>{''.join(f'<td>{html_text(str(cell))}</td>' for cell in row[:3])}</tr>" for row in table.rows
    )
    return f"<p><b>{html_text(found.sentence)}</b></p><table>{rows}</table>"
