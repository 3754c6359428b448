"""Every kind of file that can come from somebody else, and how the inputs of each are made."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import opening
from damage import damaged_bytes, damaged_json, damaged_text, damaged_tree, odd_configs
from hostile_runs import HostileRuns
from many_files import LinkTraps, many_files
from opening import Check
from planted import FileTraps
from planted_data import DataTraps
from samples import FORMATS, Samples, files_below
from watch import Case

from rl_training.config.run import TrainConfig, list_packaged_configs
from rl_training.config.yaml import dump_yaml, parse_yaml
from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.registry import ALGORITHMS

Make = Callable[[int], Case]
TEXTS = (".csv", ".jsonl")
BY_COMMAND = 40
"""Every so many inputs goes through the whole command line."""


class Families:
    """Makers of inputs by name; the number of an input and the seed decide everything about it."""

    def __init__(self, samples: Samples, seed: int, count: int) -> None:
        self.samples, self.seed, self.count = samples, seed, count
        known = ALGORITHMS.get("cal_ql").settings.model_fields
        keys = [*TrainConfig.model_fields, *known, "base", "grid", "variants", "space", "trials"]
        self.invented = odd_configs(max(10, count // 3 + 1), seed, keys)
        self.texts = [each.text for each in list_packaged_configs()]
        self.run_files = {
            name: content
            for name, content in files_below(samples.run).items()
            if not name.endswith((".png", "best.safetensors")) and "tfevents" not in name
        }
        self.planted = [
            *FileTraps(samples).found,
            *DataTraps(samples).found,
            *LinkTraps(samples).found,
        ]
        self.policy_file = samples.policies[0]
        for kind in FORMATS:  # what is good must be accepted, or damage to it would say nothing
            opening.inspect(kind)(samples.root / kind)

    def all(self) -> dict[str, tuple[int, Make]]:
        """How many inputs of each family there are, and what makes them."""
        made: dict[str, Callable[[int, random.Random], Case]] = {
            "configs": self.config,
            "checkpoints": self.checkpoint,
            "policies": self.policy,
            "run directories": self.run_directory,
            "observations": self.observation,
            "many files": many_files,
            "run settings": HostileRuns(self.samples).case,
            **{
                f"data {kind}": lambda number, rng, kind=kind: self.data(kind, number, rng)
                for kind in FORMATS
            },
        }
        families: dict[str, tuple[int, Make]] = {
            name: (
                max(1, self.count // 6) if name == "run directories" else self.count,
                lambda number, name=name, make=make: make(
                    number, random.Random(f"{self.seed} {name} {number}")
                ),
            )
            for name, make in made.items()
        }
        return families | {"planted": (len(self.planted), lambda number: self.planted[number][1])}

    def config(self, number: int, rng: random.Random) -> Case:
        text, check = rng.choice(self.texts), rng.choice([opening.config] * 8 + [opening.sweep, opening.tune])
        way = number % 3
        if way == 0:
            content = damaged_bytes(text.encode(), rng)
        elif way == 1:
            content = dump_yaml(damaged_tree(parse_yaml(text, "config"), rng)).encode()
        else:
            invented = self.invented[number // 3 % len(self.invented)]
            content = json.dumps(invented).encode()  # JSON is YAML, whatever is in it
        return Case({"config.yaml": content}, check)

    def data(self, kind: str, number: int, rng: random.Random) -> Case:
        files = dict(self.samples.data(kind))
        name = rng.choice(sorted(files))
        good = files[name]
        if name.endswith(".json"):
            files[name] = rng.choice([damaged_bytes, damaged_json, damaged_json])(good, rng)
        elif name.endswith(TEXTS):
            files[name] = rng.choice([damaged_bytes, damaged_text, damaged_text])(good, rng)
        elif name.endswith(".hdf5") and rng.random() < 0.3:
            files[name] = damaged_attributes(good, rng)
        elif name.endswith(".npz") and rng.random() < 0.8:
            files[name] = damaged_member(good, rng)
        else:
            files[name] = damaged_bytes(good, rng)
        check: Check = rng.choice([opening.inspect(kind), opening.use(kind)])
        if number % BY_COMMAND == 0 and kind in ("hdf5", "npz", "csv"):
            check = opening.command("data", "inspect", f"{{}}/{name}", "--no-plot", "--json")
        return Case(files, check)

    def checkpoint(self, number: int, rng: random.Random) -> Case:
        good, way = self.samples.checkpoint.read_bytes(), number % 3
        header_end = 8 + int.from_bytes(good[:8], "little")
        if way == 0:
            content = damaged_bytes(good, rng)
        elif way == 1:
            content = damaged_bytes(good[:header_end], rng) + good[header_end:]
        else:
            content = packed(self.samples, damaged_tree(load_checkpoint(self.samples.checkpoint), rng))
        checks: list[Check] = [opening.predict("c.safetensors")] * 6
        checks += [opening.resume, opening.evaluate, opening.export, opening.finetune]
        check = rng.choice(checks)
        if number % BY_COMMAND == 0:
            check = opening.command("predict", "-k", "{}/c.safetensors", "--obs", "0, 0, 0")
        return Case({"c.safetensors": content}, check)

    def policy(self, number: int, rng: random.Random) -> Case:
        path = self.samples.policies[number % 2]
        good = path.read_bytes()
        if path.suffix == ".safetensors" and rng.random() < 0.6:
            content = with_metadata(good, lambda text: damaged_json(text.encode(), rng).decode())
        else:
            content = damaged_bytes(good, rng)
        return Case({path.name: content}, opening.predict(path.name))

    def observation(self, number: int, rng: random.Random) -> Case:
        path = rng.choice(self.samples.observations)
        damage = {".csv": damaged_text, ".npz": damaged_member}.get(path.suffix, damaged_bytes)
        return Case(
            {path.name: damage(path.read_bytes(), rng)}, opening.predict_for(self.policy_file, path.name)
        )

    def run_directory(self, number: int, rng: random.Random) -> Case:
        files = dict(self.run_files)
        for name in rng.sample(sorted(files), rng.choice([1, 1, 2])):
            good = files[name]
            files[name] = damaged_bytes(good, rng)
            if name.endswith(".json") and rng.random() < 0.7:
                files[name] = damaged_json(good, rng)
            elif name.endswith(".yaml") and rng.random() < 0.7:
                files[name] = dump_yaml(damaged_tree(parse_yaml(good.decode(), name), rng)).encode()
            elif name.endswith(".jsonl") and rng.random() < 0.7:
                lines = good.splitlines()
                lines[rng.randrange(len(lines))] = damaged_json(rng.choice(lines), rng)
                files[name] = b"\n".join(lines) + b"\n"
        checks = [opening.report] * 4 + [opening.compare, opening.sweep_status] * 2
        return Case(files, rng.choice([*checks, opening.resume, opening.finetune, opening.predict("")]))


def packed(samples: Samples, state: dict[str, Any]) -> bytes:
    place = samples.root / "tree.safetensors"
    try:
        save_checkpoint(place, state)
    except TypeError:  # damage that no file can hold
        return b""
    return place.read_bytes()


def with_metadata(good: bytes, change: Callable[[str], str]) -> bytes:
    """A safetensors file with another metadata text."""
    header_end = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:header_end])
    metadata = {name: change(text) for name, text in header["__metadata__"].items()}
    text = json.dumps({**header, "__metadata__": metadata}).encode()
    return len(text).to_bytes(8, "little") + text + good[header_end:]


def damaged_member(good: bytes, rng: random.Random) -> bytes:
    """An archive with one damaged array, whose checksum is right all the same."""
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as archive, zipfile.ZipFile(held, "w") as changed:
        chosen = rng.choice(archive.namelist())
        for name in archive.namelist():
            content = archive.read(name)
            changed.writestr(name, damaged_bytes(content, rng) if name == chosen else content)
    return held.getvalue()


def damaged_attributes(good: bytes, rng: random.Random) -> bytes:
    """An HDF5 file whose attributes say something odd."""
    held = io.BytesIO(good)
    with h5py.File(held, "r+") as file:
        for group in (file, *(each for each in file.values() if isinstance(each, h5py.Group))):
            for name in list(group.attrs):
                if rng.random() < 0.4:
                    value = damaged_tree({"value": 1, name: 2}, rng).get(name, b"\xff")
                    try:
                        group.attrs[name] = value
                    except (TypeError, ValueError, OverflowError):  # nothing that HDF5 can hold
                        group.attrs.pop(name, None)
    return held.getvalue()
