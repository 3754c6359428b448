"""The page of a search: the answer first, then the candidates, what the policy does, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_training.core.errors import html_text
from rl_training.core.files import write_text_atomic
from rl_training.judging.verdict import Judgement
from rl_training.report.charts import Bar
from rl_training.report.content import Page, Section, Table, duration, render_html
from rl_training.report.judge_page import (
    beside_the_log,
    costs_sections,
    dial_section,
    judge_page,
    subtitle,
    verdict_table,
)


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
    def next_steps(self) -> Sequence[str]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def processor_seconds(self) -> float: ...


def write_auto_page(found: Found) -> Path:
    """Write the page beside the policy."""
    write_text_atomic(found.page, render_html(auto_page(found)))
    return found.page


def auto_page(found: Found) -> Page:
    """The whole content, in order."""
    judgement = found.judgement
    ranked = judgement.ranking()
    bars = [Bar(each.name, each.value, each.low, each.high, 1 + index) for index, each in enumerate(ranked)]
    note = "A policy whose bar lies right of the band earns more than what was logged."
    figure = beside_the_log(judgement, "Values with intervals", bars, note)
    parts = [
        Section("Candidates", (verdict_table(judgement, ranked), figure)),
        *costs_sections(judgement, "What do they cost?"),
    ]
    parts += [dial_section(judgement, curve) for curve in judgement.dials]
    if found.second is not None:
        parts += judge_page(found.second, "").sections[1:]
    for title, header, rows in (
        ("What to log next", ("do this",), [(sentence,) for sentence in found.next_steps]),
        ("What the log says", ("found",), [(note,) for note in found.notes]),
        ("What failed", ("training", "why"), list(found.failed.items())),
        ("How to repeat it", ("command",), [(command,) for command in found.commands]),
    ):
        if rows:
            parts.append(Section(title, (Table(title, header, tuple(rows)),)))
    facts = (subtitle(judgement), time_taken(found))
    tone = "better" if found.recommended else "refused"
    return Page("From the log to a policy", (found.sentence,), facts, tuple(parts), (tone,))


def time_taken(found: Found) -> str:
    processor = duration(found.processor_seconds)
    return f"The search took {duration(found.seconds)}, and {processor} of processor time."


def short_html(found: Found) -> str:
    """What a notebook shows."""
    table = verdict_table(found.judgement, found.judgement.ranking())
    rows = "".join(
        f"<tr>{''.join(f'<td>{html_text(str(cell))}</td>' for cell in row[:3])}</tr>" for row in table.rows
    )
    return f"<p><b>{html_text(found.sentence)}</b></p><table>{rows}</table>"
