"""What files say of themselves: each missing, unknown or wrong entry is named; hostile ones reach nothing."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rl_training.config.yaml import parse_yaml
from rl_training.core.errors import ConfigError, DataError, UserError, printable
from rl_training.core.files import parse_json
from rl_training.core.schema import SchemaProblem, fact, read_facts
from rl_training.data.convert import DatasetLocation, read_location, write_location
from rl_training.data.formats import recognised_format
from rl_training.data.info import DataInfo
from rl_training.policies.export.program import refuse_large
from rl_training.runs.directory import read_summary
from rl_training.runs.saved import refuse_foreign_paths
from rl_training.sweeps.plan import run_status
from toy_logs import as_log, episodes


@dataclass(frozen=True)
class Inner:
    size: int = fact(least=1)


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    inner: Inner | None
    notes: Mapping[str, str] = fact()
    many: tuple[int, ...] = fact((), longest=2)
    on: bool = False


GOOD: dict[str, Any] = {"name": "x", "share": 1, "inner": {"size": 3}, "notes": {"a": "b"}, "many": [1, 2]}


def test_good_entries_become_an_object() -> None:
    assert read_facts(Outer, GOOD) == Outer("x", 1, Inner(3), {"a": "b"}, (1, 2))
    assert read_facts(Outer, {**GOOD, "inner": None, "on": True}).inner is None
    assert read_facts(Outer, {**GOOD, "more": 1}, others=True).name == "x"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": ...}, "name is required"),
        ({"name": 3}, "name must be text, got 3"),
        ({"share": float("nan")}, "share must be a finite number, got nan"),
        ({"share": 10**400}, "share must be a finite number, got 1000"),
        ({"share": True}, "share must be a finite number, got True"),
        ({"inner": {"size": 0}}, "inner.size must be >= 1, got 0"),
        ({"inner": {"size": "3"}}, "inner.size must be an integer, got '3'"),
        ({"inner": {"size": 1, "extra": 1}}, "inner.extra is not a known key"),
        ({"inner": [1]}, "inner must be a mapping or null, got [1]"),
        ({"notes": {"a": 1}}, "notes must be a mapping, got {'a': 1}"),
        ({"many": [1, 2, 3]}, "many must have at most 2 entries, got 3"),
        ({"many": [1, "a"]}, "many must be a list of integers, got [1, 'a']"),
        ({"surprise": 1}, "surprise is not a known key"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, Any], complaint: str) -> None:
    values = {key: value for key, value in {**GOOD, **change}.items() if value is not ...}
    with pytest.raises(SchemaProblem) as caught:
        read_facts(Outer, values)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_half_a_character_is_no_text() -> None:
    assert parse_yaml('"\\ud83d\\ude00"', "x") == parse_json('"\\ud83d\\ude00"') == "😀"
    with pytest.raises(ValueError, match="half a character"):
        parse_json('{"a": "\\ud83d"}')
    with pytest.raises(ConfigError, match="x is not valid YAML: line 1: holds half a character"):
        parse_yaml('{"\\ud83d": 1}', "x")
    assert printable("a\x1b[2Jb é") == "a\\x1b[2Jb é"


def test_a_summary_is_checked(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    file = tmp_path / "summary.json"
    for text, complaint in (
        ('{"metrics": [1]}', "metrics must be a mapping or null, got [1]"),
        ('{"timing": {"seconds": "long"}}', "timing.seconds must be a finite number or null"),
        ('{"surprise": 1}', "surprise is not a known key"),
        ("[" * 100_000, "nested too deeply"),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as caught:
            read_summary(tmp_path)
        assert complaint in str(caught.value) and str(file) in str(caught.value)
        assert run_status(tmp_path).state == "new"  # a sweep does such a run again


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ({"env_id": 3}, "env_id must be text or null"),
        ({"obs_dim": 0}, "obs_dim must be >= 1"),
        ({"obs_dim": 2, "action_low": [float("nan")], "action_high": [1.0]}, "action_low must be"),
        ({"units": "[1]"}, "units must be a mapping"),
        ({"observation_names": '{"a": 1}'}, "names must be a list of texts"),
        ([1], "it must be a mapping"),
    ],
)
def test_what_a_data_file_says_is_checked(stored: object, complaint: str) -> None:
    with pytest.raises(DataError) as caught:
        DataInfo.from_dict("log.npz", stored)
    assert "log.npz: what it says about itself" in str(caught.value) and complaint in str(caught.value)


def test_a_minari_set_does_not_make_its_environment(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    write_location(as_log(episodes([4, 3], [True, False])), DatasetLocation("minari", tmp_path, "toy/log-v0"))
    place, file = (
        DatasetLocation("minari", tmp_path, "toy/log-v0"),
        tmp_path / "toy/log-v0/data/metadata.json",
    )
    good = json.loads(file.read_text())
    spec = json.dumps({"id": "a:B-v0", "entry_point": "antigravity:Env"})
    space = json.loads(good["action_space"])
    for change, complaint in (
        ({"observation_space": ..., "env_spec": spec}, "observation_space is required"),
        ({"total_steps": "many"}, "total_steps must be an integer, got 'many'"),
        ({"rl_training": {"rows": -1}}, "rl_training.rows must be >= 0"),
        ({"action_space": json.dumps({**space, "shape": [10**12]})}, "must have a bound per number"),
        ({"action_space": json.dumps({**space, "type": "Discrete"})}, "only flat vectors (Box)"),
    ):
        file.write_text(json.dumps({k: v for k, v in {**good, **change}.items() if v is not ...}))
        with pytest.raises(DataError) as caught:
            read_location(place)
        assert complaint in str(caught.value) and "toy/log-v0" in str(caught.value)


def test_recognising_a_file_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demos.hdf5"
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other.create_group("data")
    with h5py.File(path, "w") as file:
        file.create_group("data")["demo_0"] = h5py.ExternalLink("other.hdf5", "data")
    assert recognised_format(path) == "hdf5"
    with pytest.raises(DataError, match=r"data/demo_0 is a link into another file \(other.hdf5\)"):
        read_location(DatasetLocation("robomimic", path))


def test_npz_members_are_packed_as_numpy_packs_them(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    write_location(as_log(episodes([4, 3], [True, False])), DatasetLocation("npz", path))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match="compressed in a way that numpy does not use"):
        read_location(DatasetLocation("npz", path))


def test_a_huge_product_is_refused_before_it_is_computed() -> None:
    shapes = {"row": (1, 60_000), "column": (60_000, 1), "w": (3, 4), "b": (4,)}
    refuse_large([("linear", ["obs", "w", "b"], "h"), ("tanh", ["h"], "action")], shapes, {"obs": 3})
    with pytest.raises(UserError, match=r"too large: 'much' would have the shape \(60000, 60000\)"):
        refuse_large([("multiply", ["row", "column"], "much")], shapes, {"obs": 3})
    with pytest.raises(UserError, match="too large"):
        refuse_large(
            [("linear", ["w", "w2"], f"x{n}") for n in range(9)],
            {"w": (4000, 4000), "w2": (4000, 4000)},
            {"obs": 3},
        )


def test_paths_of_a_file_from_anywhere_are_not_followed(tmp_path: Path) -> None:
    settings = {"dataset_path": "/etc/x.csv", "dataset_parts": [{"dataset_checkpoint": "b"}]}
    refuse_foreign_paths(tmp_path / "checkpoints" / "step_1.safetensors", settings, {})
    mailed = tmp_path / "mailed.safetensors"
    with pytest.raises(
        ConfigError, match=r"dataset_path '/etc/x.csv' comes from a checkpoint .* --data /etc/x.csv"
    ):
        refuse_foreign_paths(mailed, settings, {})
    with pytest.raises(ConfigError, match=r"dataset_parts\[0\].dataset_checkpoint 'b'"):
        refuse_foreign_paths(mailed, settings, {"dataset_path": "mine.csv"})
    refuse_foreign_paths(mailed, {"dataset_kind": "random", "dataset_path": None}, {})


def test_onnx_files_hold_only_what_exports_write() -> None:
    onnx = pytest.importorskip("onnx")
    from rl_training.policies.export.onnx import read_graph, read_properties

    def model(*nodes: Any, tensors: tuple[Any, ...] = ()) -> bytes:
        made = onnx.helper.make_model(onnx.helper.make_graph(list(nodes), "g", [], [], list(tensors)))
        onnx.helper.set_model_props(made, {"key": "text"})
        content: bytes = made.SerializeToString()
        return content

    weights = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    product = onnx.helper.make_node("MatMul", ["obs", "w"], ["action"])
    graph = read_graph(model(product, tensors=(weights,)))
    assert graph.steps == [("matmul", ["obs", "w"], "action")] and graph.constants == {"w": (3, 2)}
    assert read_properties(model(product)) == {"key": "text"}
    broken = onnx.numpy_helper.from_array(np.array([np.nan], np.float32), "w")
    away = onnx.TensorProto(name="w", dims=[3], data_type=1, data_location=1)
    away.external_data.add(key="location", value="secret")
    held = onnx.helper.make_node("Identity", ["x"], ["y"], held=weights)
    for content, complaint in (
        (model(onnx.helper.make_node("ConstantOfShape", ["w"], ["y"])), "the operator ConstantOfShape"),
        (model(onnx.helper.make_node("Add", ["w"], ["y"], domain="theirs")), "the operator theirs.Add"),
        (model(held), "numbers or a graph of its own"),
        (model(tensors=(broken,)), "w holds NaN or infinity"),
        (model(tensors=(away,)), "keeps its numbers in another file"),
        (model(product)[:-3], "it ends too early"),
    ):
        with pytest.raises(UserError, match=complaint):
            read_graph(content)
