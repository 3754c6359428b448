"""Words that every error message needs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_VALUE = 80


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'gamma'?)`, or nothing when no known word is close.

    A known word may carry its place (`algo_kwargs.gamma`); only its last part is compared.
    """
    places: dict[str, str] = {}
    for name in known:
        places.setdefault(name.rpartition(".")[2], name)
    close = difflib.get_close_matches(word, places, n=1)
    return f" (did you mean '{places[close[0]]}'?)" if close else ""


def shown(value: object) -> str:
    """The value as the user wrote it, cut when it would flood the line."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def printable(text: str) -> str:
    """The text with control characters written out: names come from files, a terminal would obey them."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "backslashreplace").decode()
        for sign in text
    )
