"""Which files a path, a folder or a pattern stands for, and what kind of table each is."""

from __future__ import annotations

from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from rl_training.core.errors import DataError
from rl_training.core.extras import install_hint

KIND_OF_ENDING = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_COMPRESSED = ".gz"


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files: `logs/*.csv`. A file of that very name goes first."""
    return any(sign in str(path) for sign in "*?[") and not path.exists()


def kind_of_file(path: Path) -> str | None:
    """csv, parquet, feather or jsonl by the ending; compressed text (`.csv.gz`) is text."""
    name = path.name.lower().removesuffix(_COMPRESSED)
    return KIND_OF_ENDING.get(Path(name).suffix)


def files_of(path: Path) -> list[Path]:
    """The files of a table in the order of their names; a folder must hold one kind of table."""
    if is_pattern(path):
        found = sorted(Path(name) for name in glob(str(path), recursive=True) if Path(name).is_file())
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
    for file in sorted(path.rglob("*")):
        kind = kind_of_file(file)
        if kind is not None and file.is_file() and not file.name.startswith((".", "_")):
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
        return any(kind_of_file(Path(name)) is not None for name in glob(str(path), recursive=True))
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
