"""A short run of the fuzzer: no traceback, no hang, nothing run or touched, no nonsense accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT

for module in ("pyarrow", "h5py", "minari", "onnxruntime", "hypothesis"):
    pytest.importorskip(module)

FORMATS = "hdf5 npz parquet feather csv jsonl minari robomimic lerobot ogbench rlds neorl2"
FILES = {
    "observations",
    "configs",
    "checkpoints",
    "policies",
    "run directories",
    "run settings",
    "many files",
}


@pytest.mark.slow
def test_damaged_and_hostile_files_of_every_kind(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "tools" / "fuzz"),
        "6",
        "--seed",
        "1",
        "--keep",
        str(tmp_path / "bad"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    kept = sorted(path.parent.name + ": " + path.read_text() for path in tmp_path.rglob("words.txt"))
    assert (done.returncode, kept) == (0, []), done.stdout + done.stderr
    lines = {line[:16].strip(): line for line in done.stdout.splitlines()}
    assert lines.keys() == FILES | {"planted"} | {f"data {kind}" for kind in FORMATS.split()}
    assert "refused" in lines["planted"] and "accepted" in lines["planted"]
