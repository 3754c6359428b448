"""Which files a path, a folder or a pattern stands for, and what kind of table each is."""

from __future__ import annotations

from functools import cache
from glob import glob
from itertools import takewhile
from pathlib import Path
from typing import Any

from rl_training.core.errors import DataError, install_hint
from rl_training.data.reading import files_below, refuse_outside

KIND_OF_ENDING = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xlsx": "excel",
    ".xlsm": "excel",
}
_COMPRESSED = ".gz"

PATTERN_SIGNS = "*?["
"""Characters that make a path a pattern."""


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files: `logs/*.csv`. A file of that very name goes first."""
    return any(sign in str(path) for sign in PATTERN_SIGNS) and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    """The files that a pattern stands for; the folder before its first sign is given, no link leads out."""
    parts = pattern.parts
    given = list(takewhile(lambda part: not any(sign in part for sign in PATTERN_SIGNS), parts))
    root = Path(*given)
    if "**" in parts:
        files_below(root)
    for depth in range(len(given) + 1, len(parts) + 1):  # a folder is looked into once it is known to stay
        wanted = Path.is_file if depth == len(parts) else Path.is_dir
        names = glob(str(Path(*parts[:depth])), recursive=True)
        found = sorted(path for name in names if wanted(path := Path(name)))
        for path in found:
            refuse_outside(root, path)
    return found


def kind_of_file(path: Path) -> str | None:
    """csv, parquet, feather or jsonl by the ending; compressed text (`.csv.gz`) is text."""
    name = path.name.lower().removesuffix(_COMPRESSED)
    return KIND_OF_ENDING.get(Path(name).suffix)


def files_of(path: Path) -> list[Path]:
    """The files of a table in the order of their names; a folder must hold one kind of table."""
    if is_pattern(path):
        found = _matching(path)
        if not found:
            raise DataError(f"{path}: no file matches this pattern")
        return found
    if not path.is_dir():
        if not path.exists():
            raise DataError(
                f"{path}: no such file; dataset_path must name an existing file, folder or pattern"
            )
        return [path]
    tables: dict[str, list[Path]] = {}
    for file in files_below(path):
        kind = kind_of_file(file)
        if kind is not None and not file.name.startswith((".", "_")):
            tables.setdefault(kind, []).append(file)
    if not tables:
        raise DataError(f"{path}: holds no table ({', '.join(KIND_OF_ENDING)}), at any depth")
    if len(tables) > 1:
        examples = " and ".join(files[0].name for files in tables.values())
        raise DataError(
            f"{path}: holds tables of several kinds ({examples}); give a pattern such as {path}/*.csv"
        )
    (files,) = tables.values()
    return files


def holds_tables(path: Path) -> bool:
    """Whether a path, folder or pattern is a table, by names alone."""
    if is_pattern(path):
        return any(kind_of_file(file) is not None for file in _matching(path))
    if path.is_dir():
        return any(kind_of_file(file) is not None for file in path.rglob("*"))
    return kind_of_file(path) is not None


@cache
def import_pyarrow() -> Any:
    """pyarrow, or how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise DataError(
            f"tables (CSV, Parquet, Feather, JSON lines, data frames) need pyarrow; {install_hint('parquet')}"
        ) from None
    return pyarrow
