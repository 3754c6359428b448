"""Data files and folders made on purpose: links out of them, huge claims, names of modules."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import opening
from damage import CANARY
from samples import MINARI_ID
from trap import HUGE, NAMED, Traps


class DataTraps(Traps):
    """HDF5, npz, Minari and LeRobot."""

    def set(self) -> None:
        self.hdf5()
        self.npz()
        self.folders()

    def hdf5(self) -> None:
        def flat(change: Callable[[Any], Any]) -> dict[str, bytes]:
            return {"log.hdf5": changed_hdf5(self.samples.data("hdf5")["log.hdf5"], change)}

        def demos(change: Callable[[Any], Any]) -> dict[str, bytes]:
            return {"demos.hdf5": changed_hdf5(self.samples.data("robomimic")["demos.hdf5"], change)}

        def minari(change: Callable[[Any], Any]) -> dict[str, bytes]:
            files, name = dict(self.samples.data("minari")), f"{MINARI_ID}/data/main_data.hdf5"
            return {**files, name: changed_hdf5(files[name], change)}

        places = (
            (flat, "rewards", "hdf5"),
            (demos, "data/demo_1/actions", "robomimic"),
            (minari, "episode_1/actions", "minari"),
        )
        for write, name, kind in places:
            for told, change in HDF5_TRICKS.items():
                self.add(
                    f"{told} ({kind})",
                    write(lambda file, n=name, c=change: c(file, n)),
                    opening.inspect(kind),
                    opening.use(kind),
                )
        link = demos(
            lambda file: file["data"].__setitem__(
                "demo_9", h5py.ExternalLink("../outside/secret.hdf5", "data")
            )
        )
        self.add("a linked demonstration", link, opening.inspect("robomimic"))
        named = flat(lambda file: file.attrs.__setitem__("env_id", NAMED))
        self.add(
            "importing env_id",
            named,
            opening.inspect("hdf5"),
            opening.command("data", "inspect", "{}/log.hdf5", "--no-plot"),
            refused=False,
        )
        without = flat(
            lambda file: [file.attrs.__delitem__("action_low"), file.attrs.__setitem__("env_id", NAMED)]
        )
        self.add(
            "importing env_id", without, opening.command("train", "--algo", "iql", "--data", "{}/log.hdf5")
        )

    def npz(self) -> None:
        arrays = dict(np.load(io.BytesIO(self.samples.data("npz")["log.npz"])))

        def write(name: str, member: bytes, how: int = zipfile.ZIP_DEFLATED) -> dict[str, bytes]:
            held = io.BytesIO()
            with zipfile.ZipFile(held, "w", how) as archive:
                for key, values in arrays.items():
                    if key != name:
                        archive.writestr(f"{key}.npy", npy(values))
                archive.writestr(f"{name}.npy", member)
            return {"log.npz": held.getvalue()}

        both = (opening.inspect("npz"), opening.use("npz"))
        claim = (
            b"\x93NUMPY\x01\x00v\x00"
            + f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({HUGE},), }}".encode().ljust(117)
            + b"\n"
        )
        self.add("a huge shape", write("rewards", claim), *both)
        self.add("a pickled object", write("rewards", npy(np.array([{}] * 24, object))), *both)
        self.add("a pickled name", write("env_id", npy(np.array({}, object))), *both)
        self.add(
            "a bzip2 bomb", write("rewards", npy(np.zeros(1 << 26, np.float32)), zipfile.ZIP_BZIP2), *both
        )
        self.add("NaN bounds", write("action_low", npy(np.array([np.nan]))), *both)
        self.add("importing env_id", write("env_id", npy(np.array(NAMED))), *both, refused=False)

    def folders(self) -> None:
        """Metadata of Minari and LeRobot."""
        files, name = dict(self.samples.data("minari")), f"{MINARI_ID}/data/metadata.json"
        told = json.loads(files[name])
        spec = {**json.loads(told.get("env_spec") or "{}"), "id": NAMED, "entry_point": f"{CANARY}:Env"}
        for what, change, refused in (
            ("importing env_spec", {"env_spec": json.dumps(spec)}, False),
            ("a huge count", {"total_steps": HUGE, "rl_training": {"rows": HUGE}}, True),
            ("another storage", {"data_format": f"{CANARY}:Storage"}, True),
        ):
            changed = {**files, name: json.dumps({**told, **change}).encode()}
            self.add(f"{what} (minari)", changed, opening.inspect("minari"), refused=refused)
        bare = {key: value for key, value in told.items() if not key.endswith("_space")}
        changed = {**files, name: json.dumps({**bare, "env_spec": json.dumps(spec)}).encode()}
        self.add("an environment instead of spaces (minari)", changed, opening.inspect("minari"))
        for place in ("../outside/secret-v0", "/etc/secret-v0", "toy/../../outside/secret-v0"):
            self.add(
                "an id that leaves its root",
                files,
                opening.command("data", "inspect", f"minari:{place}", "--minari-root", "{}"),
            )
        robot = dict(self.samples.data("lerobot"))
        info = {**json.loads(robot["meta/info.json"]), "data_path": "../outside/{episode_index}.parquet"}
        changed = {**robot, "meta/info.json": json.dumps(info).encode()}
        self.add(
            "a template that leaves its folder (lerobot)", changed, opening.inspect("lerobot"), refused=False
        )


def changed_hdf5(good: bytes, change: Callable[[Any], Any]) -> bytes:
    held = io.BytesIO(good)
    with h5py.File(held, "r+") as file:
        change(file)
    return held.getvalue()


def npy(values: Any) -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array(held, np.asarray(values))
    return held.getvalue()


def _virtual(file: Any, name: str) -> None:
    shape = file[name].shape
    layout = h5py.VirtualLayout(shape=shape, dtype="f8")
    layout[...] = h5py.VirtualSource("../outside/secret.hdf5", "rewards", shape=shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def _external(file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, dtype="u1", external=[("../outside/secret.csv", 0, h5py.h5f.UNLIMITED)])


def _replaced(file: Any, name: str, by: Any) -> None:
    del file[name]
    file[name] = by


def _huge(file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, (HUGE, *shape[1:]), dtype="f4", chunks=(1024, *shape[1:]))


HDF5_TRICKS: dict[str, Callable[[Any, str], None]] = {
    "external storage": _external,
    "an external link": lambda file, name: _replaced(
        file, name, h5py.ExternalLink("../outside/secret.hdf5", "rewards")
    ),
    "a dangling link": lambda file, name: _replaced(file, name, h5py.SoftLink("/nowhere")),
    "a link to itself": lambda file, name: _replaced(file, name, h5py.SoftLink(f"/{name}")),
    "a virtual dataset": _virtual,
    "a huge shape": _huge,
}
