"""Damaged files of every kind, by the hundred: each must end in one line, in data, or in a working policy.

`python tools/fuzz.py 300` tries 300 inputs of each family and prints what became of them. A traceback (exit
code 70), a wait of more than 20 seconds, and planted nonsense that is accepted are failures, kept for a look.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_training.cli import main
from rl_training.cli.crash import BUG
from rl_training.config.yaml_text import dump_yaml, parse_yaml
from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint, save_checkpoint
from rl_training.core.config_files import list_packaged_configs, load_config
from rl_training.core.errors import UserError

HANG_SECONDS = 20
FORMATS = ("hdf5", "npz", "parquet", "csv", "feather")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "x", "../../etc", "os:system"),
    *([], [1, "a"], [[]], {}, {"a": 1}, {"$tensor": "torch"}),
)
Inputs = Iterator[tuple[bytes, Callable[[Path], int]]]


class Hang(BaseException):
    """Took too long."""


def on_alarm(*_: object) -> None:
    raise Hang


def damaged_bytes(good: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced, now and then also cut off or doubled."""
    data = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.2 else good)
    for _ in range(rng.choice([1, 3, 20])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        start = rng.randrange(len(good))
        data[start:start] = good[start : start + 64]
    return bytes(data)


def damaged_tree(tree: Any, rng: random.Random) -> Any:
    """A copy in which one entry, anywhere, is gone or something else."""
    changed = copy.deepcopy(tree)
    level = changed
    while True:
        keys = list(level) if isinstance(level, dict) else list(range(len(level)))
        key = rng.choice(keys)
        inner = level[key]
        if isinstance(inner, dict | list) and len(inner) and rng.random() < 0.75:
            level = inner
            continue
        if rng.random() < 0.3:
            del level[key]
        else:
            level[key] = rng.choice(ODD_VALUES)
        return changed


def quietly(arguments: list[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(arguments)


def read_config(path: Path) -> int:
    try:
        load_config(path).run_config()
    except UserError:
        return 2
    return 0


def predict(path: Path) -> int:
    return quietly(["predict", "--checkpoint", str(path), "--obs", "0, 0, 0"])


def inspect(path: Path) -> int:
    return quietly(["data", "inspect", str(path)])


def resume(path: Path) -> int:
    place = str(path.parent / "resumed")
    return quietly(["resume", "-k", str(path), "--total-timesteps", "12", "--output-dir", place, "--quiet"])


class Samples:
    """Good files to damage, made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        small = ["batch_size=8", "dataset_size=60", "hidden_sizes=[8]", "eval_interval=0", "compile=false"]
        sets = [part for text in small for part in ("--set", f"algo_kwargs.{text}")]
        sets += ["--set", "total_timesteps=10", "--set", "eval_episodes=1"]
        sets += ["--output-dir", str(root / "runs")]
        assert quietly(["train", "--config", "td3_bc/pendulum", *sets, "--quiet"]) == 0
        (self.run,) = (root / "runs").iterdir()
        newest = newest_checkpoint(self.run)
        assert newest is not None
        self.checkpoint = newest
        self.policy = root / "policy.safetensors"
        assert quietly(["export", "-k", str(self.run), "--out", str(self.policy)]) == 0
        first = root / "log.hdf5"
        collect = ["data", "collect", "--env-id", "Pendulum-v1", "--rows", "60", "--out", str(first), "-q"]
        assert quietly(collect) == 0
        for kind in FORMATS[1:]:
            assert quietly(["data", "convert", str(first), str(root / f"log.{kind}")]) == 0
        with contextlib.chdir(root):  # what is good must be accepted, or damage to it would say nothing
            assert [inspect(root / f"log.{kind}") for kind in FORMATS] == [0] * len(FORMATS)
            assert predict(self.checkpoint) == predict(self.policy) == 0
            assert quietly(["report", str(self.run), "--out", str(root / "report.md")]) == 0

    def configs(self, rng: random.Random) -> Inputs:
        texts = [each.text for each in list_packaged_configs()]
        while True:
            text = rng.choice(texts)
            yield damaged_bytes(text.encode(), rng), read_config
            yield dump_yaml(damaged_tree(parse_yaml(text, "config"), rng)).encode(), read_config

    def data(self, kind: str) -> Callable[[random.Random], Inputs]:
        good = (self.root / f"log.{kind}").read_bytes()

        def inputs(rng: random.Random) -> Inputs:
            while True:
                yield damaged_bytes(good, rng), inspect

        return inputs

    def checkpoints(self, rng: random.Random) -> Inputs:
        good, state = self.checkpoint.read_bytes(), load_checkpoint(self.checkpoint)
        header_end = 8 + int.from_bytes(good[:8], "little")
        place = self.root / "tree.safetensors"
        while True:
            yield damaged_bytes(good, rng), predict
            yield damaged_bytes(good[:header_end], rng) + good[header_end:], predict
            save_checkpoint(place, damaged_tree(state, rng))
            yield place.read_bytes(), rng.choice([predict, predict, resume])

    def policies(self, rng: random.Random) -> Inputs:
        good = self.policy.read_bytes()
        header_end = 8 + int.from_bytes(good[:8], "little")
        header = json.loads(good[8:header_end])
        while True:
            yield damaged_bytes(good, rng), predict
            metadata = dict(header["__metadata__"])
            name = rng.choice(list(metadata))
            metadata[name] = json.dumps(damaged_tree(json.loads(metadata[name]), rng))
            text = json.dumps({**header, "__metadata__": metadata}).encode()
            yield len(text).to_bytes(8, "little") + text + good[header_end:], predict

    def run_files(self, rng: random.Random) -> Inputs:
        names = ("config.yaml", "summary.json", "metrics.jsonl")

        def report(name: str) -> Callable[[Path], int]:
            def check(path: Path) -> int:
                folder = path.parent / "run"
                shutil.copytree(self.run, folder, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
                shutil.copy(path, folder / name)
                return quietly(["report", str(folder), "--out", str(path.parent / "report.md")])

            return check

        while True:
            name = rng.choice(names)
            good = (self.run / name).read_bytes()
            yield damaged_bytes(good, rng), report(name)
            if name == "summary.json":
                yield json.dumps(damaged_tree(json.loads(good), rng)).encode(), report(name)

    def planted(self) -> list[tuple[str, str, bytes, Callable[[Path], int]]]:
        """Nonsense that must be refused: its name, the suffix of its file, the file, and who opens it."""
        found: list[tuple[str, str, bytes, Callable[[Path], int]]] = []
        bomb = "a0: &a0 [1, 1]\n" + "".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
        )
        deep = "[" * 10_000
        huge = "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 1\nalgo_kwargs: {batch_size: 100000000000}"
        for name, text in (("alias bomb", bomb), ("nesting", deep), ("huge batch", huge)):
            found.append((name, ".yaml", text.encode(), read_config))
        state, place = load_checkpoint(self.checkpoint), self.root / "planted.safetensors"
        for name, change in (
            ("NaN weights", lambda s: next(iter(s["policy"]["tensors"].values())).fill_(float("nan"))),
            ("NaN bounds", lambda s: s["policy"]["spaces"].update(action_low=[float("nan")])),
            ("huge network", lambda s: s["policy"]["actor"].update(obs_dim=10**12)),
            ("negative steps", lambda s: s["counters"].update(global_step=-1)),
            ("text for a number", lambda s: s["counters"].update(phase="one")),
        ):
            broken = copy.deepcopy(state)
            change(broken)
            save_checkpoint(place, broken)
            found.append((name, ".safetensors", place.read_bytes(), predict))
        state["config"]["env_id"] = "antigravity:Env-v0"
        save_checkpoint(place, state)
        found.append(("importing env_id", ".safetensors", place.read_bytes(), resume))
        return found


def outcome(path: Path, check: Callable[[Path], int]) -> str:
    signal.alarm(HANG_SECONDS)
    try:
        code = check(path)
    except Hang:
        return "hang"
    except Exception:
        return "traceback"
    finally:
        signal.alarm(0)
    return {0: "accepted", 2: "refused", BUG: "traceback"}.get(code, f"exit code {code}")


def fuzz(count: int, seed: int, keep: Path | None = None) -> dict[str, Counter[str]]:
    """Outcomes by family, and those of planted nonsense; failing inputs are copied to `keep`."""
    found: dict[str, Counter[str]] = {}
    previous = signal.signal(signal.SIGALRM, on_alarm)
    reports = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder)
        (root / "samples").mkdir()
        (root / "reports").mkdir()
        samples = Samples(root / "samples")
        tempfile.tempdir = str(root / "reports")
        families: dict[str, tuple[str, Callable[[random.Random], Inputs]]] = {
            "configs": (".yaml", samples.configs),
            "checkpoints": (".safetensors", samples.checkpoints),
            "policies": (".safetensors", samples.policies),
            "run files": (".txt", samples.run_files),
            **{f"data {kind}": (f".{kind}", samples.data(kind)) for kind in FORMATS},
        }
        try:
            for family, (suffix, inputs) in families.items():
                outcomes = found[family] = Counter()
                stream = inputs(random.Random(f"{seed} {family}"))
                for number in range(count):
                    content, check = next(stream)
                    outcomes[one(root, f"{family}-{number}{suffix}", content, check, keep)] += 1
            planted = found["planted"] = Counter()
            for name, suffix, content, check in samples.planted():
                result = one(root, f"planted-{name}{suffix}", content, check, keep)
                planted[f"{result}: {name}" if result == "accepted" else result] += 1
        finally:
            tempfile.tempdir = reports
            signal.signal(signal.SIGALRM, previous)
    return found


def one(root: Path, name: str, content: bytes, check: Callable[[Path], int], keep: Path | None) -> str:
    place = root / "input"
    place.mkdir()
    path = place / name.replace(" ", "-")
    path.write_bytes(content)
    with contextlib.chdir(place):
        result = outcome(path, check)
    if result not in ("accepted", "refused") and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shutil.copy(path, keep)
        for report in (root / "reports").iterdir():
            shutil.move(report, keep / f"{path.name}.report.txt")
    shutil.rmtree(place)
    return result


def failures(found: dict[str, Counter[str]]) -> list[str]:
    return [
        f"{family}: {count} {result}"
        for family, outcomes in found.items()
        for result, count in outcomes.items()
        if result != "refused" and (result != "accepted" or family == "planted")
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=300, help="inputs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="where failing inputs go")
    options = parser.parse_args()
    table = fuzz(options.count, options.seed, options.keep)
    for family, outcomes in table.items():
        print(f"{family:14} {', '.join(f'{n} {what}' for what, n in sorted(outcomes.items()))}")
    sys.exit(1 if failures(table) else 0)
