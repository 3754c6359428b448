"""Files made on purpose. Each must be refused, or opened without following what it asks for."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import opening
from damage import CANARY
from hostile_runs import CHECKS, FOLLOWS
from opening import Check
from samples import files_below
from trap import HUGE, NAMED, Traps

from rl_training.core.checkpoints import load_checkpoint, save_checkpoint


class FileTraps(Traps):
    """Configs, checkpoints, policies and run directories."""

    def set(self) -> None:
        self.configs()
        self.checkpoints()
        self.policies()
        self.onnx()
        self.runs()

    def configs(self) -> None:
        bomb = "algo: sac\na0: &a0 [1, 1]\n" + "".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
        )
        huge = "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 1\nalgo_kwargs: {batch_size: 100000000000}"
        tag = "algo: !!python/object/apply:os.system ['true']"
        for name, text in (
            ("alias bomb", bomb),
            ("nesting", "algo: " + "[" * 10_000),
            ("huge batch", huge),
            ("tag", tag),
        ):
            self.add(name, {"config.yaml": text.encode()}, opening.config, opening.sweep, opening.tune)

    def checkpoints(self) -> None:
        def tensors(state: dict[str, Any]) -> Any:
            return next(iter(state["policy"]["tensors"].values()))

        everything = (opening.predict("c.safetensors"), opening.evaluate, opening.resume, opening.export)
        changes: list[tuple[str, Callable[[dict[str, Any]], Any], tuple[Check, ...]]] = [
            ("NaN weights", lambda s: tensors(s).fill_(float("nan")), everything),
            ("NaN bounds", lambda s: s["policy"]["spaces"].update(action_low=[float("nan")]), everything),
            (
                "NaN scaling",
                lambda s: _first_tensor(s["policy"]["observation_steps"]).fill_(float("nan")),
                everything,
            ),
            ("huge network", lambda s: s["policy"]["actor"].update(obs_dim=HUGE), everything),
            ("negative steps", lambda s: s["counters"].update(global_step=-1), everything),
            ("text for a number", lambda s: s["counters"].update(phase="one"), everything),
            ("an extra entry", lambda s: s.update(surprise=1), everything),
            (
                "importing env_id",
                lambda s: s["config"].update(env_id=NAMED),
                (opening.evaluate, opening.resume, opening.finetune),
            ),
            (
                "importing wrapper",
                lambda s: s["config"].update(wrappers=[f"{CANARY}:wrap"]),
                (opening.evaluate, opening.resume),
            ),
            (
                "path among keywords",
                lambda s: s["config"].update(env_id=FOLLOWS, env_kwargs={"model": "../outside/secret.csv"}),
                CHECKS,
            ),
            (
                "a window",
                lambda s: s["config"].update(env_id=FOLLOWS, env_kwargs={"render_mode": "human"}),
                CHECKS,
            ),
            (
                "path of data",
                lambda s: _data_from(s, dataset_path="../outside/secret.csv"),
                (opening.resume, opening.finetune),
            ),
            (
                "path of a policy",
                lambda s: _data_from(s, dataset_kind="checkpoint", dataset_checkpoint="../outside"),
                (opening.resume,),
            ),
        ]
        good = load_checkpoint(self.samples.checkpoint)
        for name, change, checks in changes:
            state = copy.deepcopy(good)
            change(state)
            self.add(name, {"c.safetensors": self.pack(state)}, *checks)
        state = copy.deepcopy(good)
        state["config"]["output_dir"] = "../outside/chosen"
        self.add("place to write", {"c.safetensors": self.pack(state)}, _resume_anywhere, refused=False)

    def pack(self, state: dict[str, Any]) -> bytes:
        place = self.samples.root / "planted.safetensors"
        save_checkpoint(place, state)
        return place.read_bytes()

    def policies(self) -> None:
        from safetensors.numpy import load, save

        path = self.samples.policies[0]
        good = path.read_bytes()
        metadata = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])["__metadata__"]
        arrays, (key, text) = load(good), next(iter(metadata.items()))

        def write(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> dict[str, bytes]:
            changed, told = {name: values.copy() for name, values in arrays.items()}, json.loads(text)
            change(changed, told)
            return {path.name: save(changed, {key: json.dumps(told)})}

        check = opening.predict(path.name)
        wide = {"wide": np.ones((1, 60_000), np.float32), "tall": np.ones((60_000, 1), np.float32)}
        product = [["multiply", ["tall", "wide"], "much", {}], ["multiply", ["much", "much"], "more", {}]]
        named = {"env_id": NAMED}
        self.add("importing env_id", write(lambda a, m: m.update(named)), check, refused=False)
        self.add("NaN weights", write(lambda a, m: next(iter(a.values())).fill(np.nan)), check)
        self.add(
            "an operation of theirs",
            write(lambda a, m: m["program"]["nodes"].insert(0, ["eval", ["obs"], "x", {}])),
            check,
        )
        self.add(
            "a huge product",
            write(lambda a, m: (a.update(wide), m["program"]["nodes"].extend(product))),
            check,
        )
        self.add("no spaces", write(lambda a, m: m.pop("spaces")), check)
        self.add("an extra entry", write(lambda a, m: m.update(surprise=1)), check)

    def onnx(self) -> None:
        good = self.samples.policies[1].read_bytes()

        def write(change: Callable[[Any], Any]) -> dict[str, bytes]:
            model = onnx.load_from_string(good)
            change(model)
            return {"policy.onnx": model.SerializeToString()}

        def elsewhere(model: Any) -> None:
            tensor = model.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="secret.csv")

        def poison(model: Any) -> None:
            first = next(
                each for each in model.graph.initializer if each.data_type in (1, 11) and len(each.dims) == 2
            )
            first.raw_data = b"\xff" * len(first.raw_data)

        def endless(model: Any) -> None:
            shape = onnx.numpy_helper.from_array(np.array([HUGE]), "shape")
            model.graph.initializer.append(shape)
            model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["shape"], ["much"]))

        def described(model: Any) -> None:
            told = json.loads(model.metadata_props[0].value)
            model.metadata_props[0].value = json.dumps({**told, "env_id": NAMED})

        check = opening.predict("policy.onnx")
        self.add("numbers in another file", write(elsewhere), _in_folder_of_secrets(check))
        self.add("NaN weights", write(poison), check)
        self.add("an operator of theirs", write(endless), check)
        self.add("importing env_id", write(described), check, refused=False)

    def runs(self) -> None:
        files = {
            name: text
            for name, text in files_below(self.samples.run).items()
            if name.endswith((".yaml", "json", "jsonl"))
        }
        bomb = self.found[0][1].files["config.yaml"]
        everything = (opening.report, opening.compare)
        self.add("alias bomb", {**files, "config.yaml": bomb}, *everything)
        self.add("deep summary", {**files, "summary.json": b"[" * 100_000}, *everything)
        self.add(
            "summary of a list", {**files, "summary.json": b'{"metrics": [1], "timing": 3}'}, *everything
        )
        self.add(
            "summary of a list",
            {**files, "summary.json": b'{"stop_reason": 1, "metrics": [1]}'},
            opening.sweep_status,
        )
        named = files["config.yaml"].replace(b"Pendulum-v1", NAMED.encode())
        self.add("importing env_id", {**files, "config.yaml": named}, *everything, refused=False)


def _first_tensor(tree: Any) -> Any:
    if hasattr(tree, "fill_"):
        return tree
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return next((found for each in inner if (found := _first_tensor(each)) is not None), None)


def _data_from(state: dict[str, Any], **fields: str) -> None:
    state["config"]["algo_kwargs"].update(fields)
    state["dataset"].pop("fingerprint", None)


def _resume_anywhere(folder: Path) -> None:
    from rl_training.runs.resume import resume_training

    resume_training(folder / "c.safetensors", total_timesteps=12, quiet=True)


def _in_folder_of_secrets(check: Check) -> Check:
    def inside(folder: Path) -> None:
        (folder / "secret.csv").write_bytes(np.ones(10_000, np.float32).tobytes())
        check(folder)

    return inside
