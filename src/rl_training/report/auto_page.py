"""The page of a search: the answer first, then the candidates, what the policy does, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_training.core.errors import html_text
from rl_training.core.files import write_text_atomic
from rl_training.judging.verdict import Judgement
from rl_training.report.content import Page, Section, Table, duration, render_html
from rl_training.report.judge_page import (
    costs_sections,
    detail_sections,
    dial_section,
    differences_chart,
    subtitle,
    verdict_table,
    words_of,
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
    parts = [
        *listed("What to log next", "do this", found.next_steps),
        Section("Candidates", (verdict_table(judgement, ranked), differences_chart(ranked))),
        *costs_sections(judgement, "What do they cost?"),
        *(dial_section(judgement, curve) for curve in judgement.dials),
    ]
    # What is told of one policy is told by the look that had no part in choosing it.
    again = found.second
    parts += detail_sections(judgement, ()) if again is None else detail_sections(again, again.policies)
    parts += listed("What the log says", "found", found.notes)
    if found.failed:
        table = Table("What failed", ("training", "why"), tuple(found.failed.items()))
        parts.append(Section("What failed", (table,)))
    parts += [*listed("How to repeat it", "command", found.commands), words_of(judgement)]
    facts = (subtitle(judgement), time_taken(found))
    tone = "better" if found.recommended else "refused"
    return Page("From the log to a policy", (found.sentence,), facts, tuple(parts), (tone,))


def listed(title: str, header: str, told: Sequence[str]) -> list[Section]:
    """Sentences as a section; none where there are none."""
    rows = tuple((sentence,) for sentence in told)
    return [Section(title, (Table(title, (header,), rows),))] if rows else []


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
