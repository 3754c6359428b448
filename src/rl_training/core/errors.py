"""Errors a user can act on: the message is the whole story; and the words that messages need."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EnvironmentProblem",
    "RunFailed",
    "UserError",
    "WrongTypeError",
]


class UserError(ValueError):
    """An expected problem. The command line prints the message and exits with code 2."""


class ConfigError(UserError):
    """A configuration that cannot be used; one line per mistake."""


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


class DataError(UserError):
    """A dataset that cannot be used as it is."""


class EnvironmentProblem(UserError):
    """An environment that is unknown, unsupported, or that failed while it ran."""


class WrongTypeError(UserError, TypeError):
    """An argument of a kind that a function does not take."""


class RunFailed(UserError):
    """A run that had to stop; what was learned up to the last good checkpoint is kept."""


_LONGEST_VALUE = 80
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")

SHORT_WORDS = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "n": "num",
    "qf": "critic",
    "vf": "critic",
    "pi": "actor",
}
"""Parts of names as other libraries shorten them."""

OTHER_NAMES = {
    "discount": "gamma",
    "discount_factor": "gamma",
    "polyak": "tau",
    "policy_lr": "actor_learning_rate",
    "q_lr": "critic_learning_rate",
    "ent_coef": "alpha",
    "temperature": "alpha",
    "buffer_size": "buffer_capacity",
    "replay_buffer_size": "buffer_capacity",
    "hidden_dim": "hidden_sizes",
    "hidden_dims": "hidden_sizes",
    "net_arch": "hidden_sizes",
    "total_steps": "total_timesteps",
    "max_timesteps": "total_timesteps",
    "num_steps": "total_timesteps",
    "n_steps": "n_step",
    "eval_freq": "eval_interval",
    "train_freq": "train_frequency",
    "utd_ratio": "gradient_updates_per_step",
    "gradient_steps": "gradient_updates_per_step",
    "dataset": "dataset_path",
    "env": "env_id",
    "environment": "env_id",
}
"""Settings as other libraries call them."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'gamma'?)`, or nothing when no known word is close.

    What a word means comes before how it is spelled: `actor_lr` is the actor's learning rate. A known word
    may carry its place (`algo_kwargs.gamma`); only its last part is compared.
    """
    places: dict[str, str] = {}
    for name in known:
        places.setdefault(name.rpartition(".")[2], name)
    written_out = "_".join(SHORT_WORDS.get(part, part) for part in word.split("_"))
    meant = [name for name in (OTHER_NAMES.get(word), written_out) if name in places]
    close = meant or difflib.get_close_matches(written_out, places, n=1)
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


def plain_text(text: str) -> str:
    """The text without what a terminal would obey (ANSI sequences, control characters) or nobody sees."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else " " if sign.isspace() else ""
        for sign in _ANSI.sub("", text)
    )


def html_text(text: str) -> str:
    """Text that a page shows as it is."""
    return escape(plain_text(text))


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is: marks escaped, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(plain_text(text).split()))


def cell_text(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r") else text


def install_hint(extra: str) -> str:
    """The command that adds an extra; the package is on no index, so it is installed from a checkout."""
    return f'in a checkout of rl_training run: pip install ".[{extra}]"'


_BYTES = re.compile(r"tried to allocate (\d+) bytes")


class OutOfMemory(UserError):
    """Something was larger than the memory that is free."""


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Say what there was no memory for, and what makes it smaller."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        raise OutOfMemory(f"not enough memory for {what} ({asked_for(problem)}); {remedy}") from problem


def is_out_of_memory(problem: BaseException) -> bool:
    """numpy and Arrow raise a `MemoryError`, the system an `OSError`, torch a `RuntimeError` that says so."""
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    told = isinstance(problem, RuntimeError) and re.search("DefaultCPUAllocator|out of memory", str(problem))
    return isinstance(problem, MemoryError) or bool(told)


def asked_for(problem: BaseException) -> str:
    """How much was wanted at once, in the words of the library or in gigabytes."""
    found = _BYTES.search(str(problem))
    if found is not None:
        return f"{int(found[1]) / 2**30:.3g} GiB wanted at once"
    return " ".join(str(problem).split())[:200] or "the system has no more"
