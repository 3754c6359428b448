"""The directory that the studio works in: every name that a request gives ends inside it, or is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rl_training.core.errors import UserError, shown
from rl_training.core.files import CHECKPOINT_FOLDER
from rl_training.data.formats import known_suffixes
from rl_training.policies.files import is_policy_file
from rl_training.runs.directory import CONFIG_FILE
from rl_training.serve.server import Refusal

WORK = "studio"
"""Folder of everything that is started from the page."""
DEEPEST = 6
"""Folders inside each other that are looked into."""
MOST_ENTRIES = 20_000
"""Files and folders that are looked at."""
PAGES = ("auto", "judge", "report", "drift", "demo")
"""How the names of pages begin that commands write."""
LARGEST_UPLOAD = 512 * 2**20
LONGEST_NAME = 200
DATABASE = ".db"
"""Ending of a decision log, which is a log too."""


@dataclass
class Found:
    """What lies in the directory, by names relative to it, in the order of the alphabet."""

    logs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Folder:
    """A directory without its symbolic links."""

    root: Path

    @classmethod
    def of(cls, path: Path) -> Folder:
        if not path.is_dir():
            raise UserError(f"{path} is no directory: name one that holds logs, or will")
        return cls(path.resolve())

    def path(self, name: object) -> Path:
        """The file or folder of this name, which is inside also when every link is followed."""
        if not isinstance(name, str) or not 0 < len(name) <= 1_000 or "\0" in name:
            raise Refusal(400, f"a file must be given by its name, got {shown(name)}")
        try:
            path = (self.root / name).resolve()
        except (OSError, RuntimeError):  # links in a circle
            path = Path("/")
        if not path.is_relative_to(self.root):
            raise Refusal(403, f"{shown(name)} is outside the directory that the studio was started in")
        return path

    def existing(self, name: object) -> Path:
        path = self.path(name)
        try:
            path.lstat()
        except OSError:
            raise Refusal(404, f"{shown(name)} is not in the directory") from None
        return path

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def spelled(self, path: Path) -> str:
        """The name as a command takes it: never an option, and never an address."""
        name = self.name(path) if path != self.root else "."
        return name if (name[0].isalnum() or name == ".") and ":" not in name else f"./{name}"

    def new_file(self, name: str) -> Path:
        """Where an uploaded log goes; what is there already stays as it is."""
        plain = 0 < len(name) <= LONGEST_NAME and name.isprintable() and not set(name) & {"/", "\\"}
        if not plain or name.startswith("."):
            raise Refusal(
                400, f"a log must have a plain name of up to {LONGEST_NAME} characters, got {shown(name)}"
            )
        if Path(name).suffix.lower() not in known_suffixes():
            raise Refusal(
                400,
                f"{shown(name)} is no log that is read: its name must end in {', '.join(known_suffixes())}",
            )
        path = self.path(name)
        if path.exists():
            raise Refusal(
                409, f"{shown(name)} is in the directory already: choose it, or give the file another name"
            )
        return path

    def found(self) -> Found:
        """Logs, runs, pages and policies, as far as they are looked for."""
        found, endings = Found(), tuple(known_suffixes())
        for folder, names in self._walk():
            is_run = CONFIG_FILE in names and (folder / CHECKPOINT_FOLDER).is_dir()
            if is_run:
                found.runs.append(self.name(folder) if folder != self.root else ".")
            own = folder.is_relative_to(self.root / WORK)
            for name in names:
                path = folder / name
                if (name.lower().endswith(endings) and not is_run and not own) or name.endswith(DATABASE):
                    found.logs.append(self.name(path))
                elif name.endswith(".html") and (own or name.startswith(PAGES)):
                    found.pages.append(self.name(path))
                elif name.endswith((".onnx", ".safetensors")) and is_policy_file(path):
                    found.policies.append(self.name(path))
        return found

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        """Folders with the names of their files; hidden ones, links and checkpoints are left out."""
        left = MOST_ENTRIES
        for place, folders, names in os.walk(self.root):
            folder = Path(place)
            deep = len(folder.relative_to(self.root).parts) >= DEEPEST
            folders[:] = (
                []
                if deep
                else sorted(
                    each
                    for each in folders
                    if each[0] != "." and each != CHECKPOINT_FOLDER and not (folder / each).is_symlink()
                )
            )
            inside = [each for each in names if self._is_inside(folder / each)]
            left -= len(names) + len(folders)
            yield folder, sorted(inside)
            if left <= 0:
                return

    def _is_inside(self, path: Path) -> bool:
        try:
            return path.is_file() and path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False


def log_address(name: str) -> str:
    """A log as commands take it: a database by its address."""
    return f"sqlite:{name}" if name.endswith(DATABASE) else name
