"""Is something hidden? A log that lacks what its plant or its operators answer to is silently wrong.

Everything that learns from such a log agrees with itself, and is wrong together. It shows in what a model of
the dynamics leaves unexplained of held-out episodes: noise has no memory and is the same in every episode.
And it shows in episodes that end early at extremes without a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from rl_training.algorithms.dynamics import Dynamics
from rl_training.data.early_ends import early_ends
from rl_training.data.unused import UnusedColumn
from rl_training.judging.leftovers import PAST, Found, from_the_first_half, from_the_past, unexplained
from rl_training.judging.log import JudgedLog
from rl_training.judging.unused import Tried, tried
from rl_training.judging.verdict import Check


@dataclass(frozen=True)
class Limits:
    """What has to be explained before anything is said.

    Shares of the variance of changes (or rewards), and of what the model leaves of it: a model that is merely
    rough does not reach these.
    """

    share: float
    of_the_rest: float
    grave_share: float
    grave_of_the_rest: float
    """from here on a judgement is refused"""


BETWEEN_EPISODES = Limits(0.02, 0.1, 0.05, 0.1)
FROM_THE_PAST = Limits(0.05, 0.5, 0.1, 0.7)
"""Where contacts or bends make a model err, errors of a row before tell a part of the next."""

NameOf = Callable[[str, int], str]
Unused = Callable[[], Iterable[UnusedColumn]]
Ask = Callable[[int, float], Tried]
"""A column of leftovers, the share of it that could be explained -> what the unused columns say of that."""


def is_something_hidden(
    log: JudgedLog, dynamics: Dynamics, name_of: NameOf, unused: Unused = tuple
) -> dict[str, Check]:
    """Whether episodes differ, and whether the past matters, beyond what observations and actions say.

    Where they do, the columns that nobody sees (`unused`, read only then) are asked which explains it.
    """
    left = unexplained(dynamics, log)
    columns = cache(lambda: tuple(unused()))

    def name(column: int) -> str:
        return "the reward" if column == left.residuals.shape[1] - 1 else name_of("observation", column)

    def ask(column: int, share: float) -> Tried:
        return tried(left, column, share, columns())

    return {
        "episodes_alike": told_apart(from_the_first_half(left), name, ask),
        "memory": told_past(from_the_past(left), name, ask),
    }


def nobody(column: int, share: float) -> Tried:
    """Where no column is at hand."""
    return Tried()


def told_apart(found: list[Found], name: Callable[[int], str], ask: Ask = nobody) -> Check:
    """Whether episodes differ by more than observations and actions say."""
    return _told(
        found,
        BETWEEN_EPISODES,
        "Episodes answer alike, as far as the observations say.",
        lambda column, share: (
            "Episodes answer differently to the same observations and actions: knowing the first half of one "
            f"would explain {share:.0%} more of how {name(column)} changes in its second half."
        ),
        "Several plants, products, loads or settings may be in this log that no observation tells apart.",
        ask,
    )


def told_past(found: list[Found], name: Callable[[int], str], ask: Ask = nobody) -> Check:
    """Whether what came before a row matters beyond what the row says."""
    return _told(
        found,
        FROM_THE_PAST,
        "What happened before a row says nothing more of what follows it.",
        lambda column, share: (
            f"The observations lack a memory or a load: the {PAST} rows before would explain {share:.0%} "
            f"more of how {name(column)} changes."
        ),
        "Give the past as observations, or what is missing.",
        ask,
    )


def _told(
    found: list[Found],
    limits: Limits,
    clean: str,
    reason: Callable[[int, float], str],
    unknown: str,
    ask: Ask,
) -> Check:
    """By the column of which most could be said; what is `unknown` where no unused column explains it."""
    beyond = [each.exceeds(limits.share, limits.of_the_rest) for each in found]
    column = int(
        np.argmax([each.share + 9.0 * is_beyond for each, is_beyond in zip(found, beyond, strict=True)])
    )
    worst = found[column]
    numbers = {"share": worst.share, "of_the_rest": worst.of_the_rest, "errors": worst.errors}
    if not any(beyond):
        return Check("passed", clean, numbers)
    grave = any(each.exceeds(limits.grave_share, limits.grave_of_the_rest) for each in found)
    sentence = f"{reason(column, worst.share)} {ask(column, worst.share).sentence(unknown)}"
    return Check("refused" if grave else "warned", sentence, numbers)


def unmarked_ends(log: JudgedLog, name_of: NameOf) -> Check:
    """Whether episodes that end early without a mark do so where hardly any other row is: at a trip."""
    found = early_ends(log.obs, log.next_obs, log.ends, log.dones)
    numbers = {"early": float(found.early), "at_extremes": found.share}
    if found.are_suspect:
        return Check("refused", found.sentence(name_of), numbers)
    anywhere = "Episodes that end early do so anywhere." if found.early else "No episodes end early."
    return Check("passed", anywhere, numbers)
