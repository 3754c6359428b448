"""Damaged and hostile files of every kind: each must end in one line, or be opened without harm.

`python tools/fuzz 300` tries 300 inputs of each family (a sixth of it of run directories) and prints what
became of them. A traceback (what the command line reports as exit code 70), a crash, a wait of more than 20
seconds, much memory, code that is run or imported, a file that is touched outside the input's own folder, and
planted nonsense that is accepted are failures; their inputs are kept for a look.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from damage import CANARY
from families import Families
from samples import Samples
from watch import FINE, counted


@contextmanager
def world() -> Iterator[Path]:
    """A folder with an `outside` that nobody may look into, and a module that nobody may import."""
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("samples", "reports", "outside", "canary"):
            (root / name).mkdir()
        (root / "outside" / "secret.csv").write_text("obs_0,action_0,reward\n" + "1,2,3\n" * 50)
        with h5py.File(root / "outside" / "secret.hdf5", "w") as file:
            file["rewards"] = np.arange(50.0)
        (root / "canary" / f"{CANARY}.py").write_text("")
        sys.path.insert(0, str(root / "canary"))
        tempfile.tempdir = str(root / "reports")
        try:
            yield root
        finally:
            tempfile.tempdir = usual
            sys.path.remove(str(root / "canary"))


def fuzz(
    count: int, seed: int, keep: Path | None = None, only: Collection[str] = ()
) -> dict[str, Counter[str]]:
    """Outcomes by family."""
    found: dict[str, Counter[str]] = {}
    with world() as root:
        families = Families(Samples(root / "samples"), seed, count).all()
        for name, (number, make) in families.items():
            if not only or name in only:
                started = time.monotonic()
                found[name] = counted(name, make, number, root, keep)
                told = ", ".join(f"{amount} {what}" for what, amount in sorted(found[name].items()))
                print(f"{name:16} {number:6} tried: {told} ({time.monotonic() - started:.0f} s)", flush=True)
    return found


def failures(found: dict[str, Counter[str]]) -> list[str]:
    return [
        f"{family}: {count} {result}"
        for family, outcomes in found.items()
        for result, count in outcomes.items()
        if result not in FINE
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=300, help="inputs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), help="names of families")
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="where failing inputs go")
    options = parser.parse_args()
    sys.exit(1 if failures(fuzz(options.count, options.seed, options.keep, options.only)) else 0)
