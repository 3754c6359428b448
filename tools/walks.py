"""How far one command walks through the package: functions and files entered, by room.

PYTHONPATH=src python tools/walks.py train --algo iql --data log.csv …
PYTHONPATH=src python tools/walks.py predict --checkpoint RUN --obs "[0.2]"
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

SOURCE = f"{Path(__file__).parents[1] / 'src' / 'rl_training'}/"


def main(words: list[str]) -> int:
    entered: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # the bodies of classes, modules and comprehensions are no functions that a reader follows
        named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and named and code.co_filename.startswith(SOURCE):
            entered.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    from rl_training.cli import main as command

    code = command(words)
    sys.setprofile(None)
    rooms = Counter(file.partition("/")[0] for file, _ in entered)
    listed = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
    print(
        f"{len(entered)} functions in {len({file for file, _ in entered})} files: {listed}", file=sys.stderr
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
