"""Which library computes single-precision matrix products: MKL, torch's usual one, or oneDNN beside it.

MKL takes slower code on processors that are not Intel's: on AMD's with AVX-512 oneDNN is twice as fast. Both
are in every build of torch. torch gives products to oneDNN only where it may round their factors to bf16;
processors without tiles for that (AMX) have nothing to gain by it, and round as single precision does. So the
switch is used only there, and only where an error measured on this machine says the same.
"""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.core.errors import ConfigError, UserError
from rl_training.core.files import write_text_atomic
from rl_training.core.machine import active

Library = Literal["mkl", "onednn"]
LIBRARIES: tuple[Library, ...] = ("mkl", "onednn")

PROCESSOR = Path("/proc/cpuinfo")

FEWEST_MULTIPLICATIONS = 2**20
"""Of a product, below which nothing is measured: a call of oneDNN costs 10 microseconds more."""
LARGEST = 256
"""Rows and columns that are measured: what is larger goes the same way."""
MOST_MEMBERS = 2
WORTHWHILE = 1.1
"""How much faster oneDNN must be. Where both are alike, a measurement that varies must not decide."""
LARGEST_ERROR = 2e-6
"""Of a sum of products, relative to their sizes: 3e-7 in single precision, 1e-4 with factors in bf16."""
SECONDS, FEWEST_TIMES = 0.005, 5
"""Time of a measurement, of which the fastest times count."""
MOST_KEPT = 500
"""Measurements in the file of a machine."""


class Shape(NamedTuple):
    """`members` products `[rows, width] @ [width, columns]`."""

    members: int
    rows: int
    width: int
    columns: int

    @property
    def multiplications(self) -> int:
        return math.prod(self)


# ---- the switch

_ONEDNN: Any = torch.backends.mkldnn  # torch's own types do not know its switches


class _Switch:
    """Who computes with which library at the moment: torch's switch is one for all threads of a process."""

    def __init__(self) -> None:
        self.entrance = threading.Lock()
        self.changed = threading.Condition()
        self.library: Library = "mkl"
        self.inside = 0
        self.before = "none"  # torch's own word for following what is set for all of it
        self.thread = threading.local()

    def enter(self, library: Library) -> None:
        """Threads that want the same library compute together; one that wants the other waits for them.

        The entrance is held meanwhile, so that those who come later do not overtake it for ever.
        """
        with self.entrance, self.changed:
            self.changed.wait_for(lambda: not self.inside or self.library == library)
            if not self.inside:
                self.before = _ONEDNN.matmul.fp32_precision
                _ONEDNN.matmul.fp32_precision = "bf16" if library == "onednn" else "ieee"
                self.library = library
            self.inside += 1

    def leave(self) -> None:
        with self.changed:
            self.inside -= 1
            if not self.inside:
                _ONEDNN.matmul.fp32_precision = self.before
                self.changed.notify_all()


_switch = _Switch()


@contextmanager
def computed_by(library: Library) -> Iterator[None]:
    """Single-precision products on the processor by this library; afterwards as the program had it.

    Inside another such block the outer one decides.
    """
    if getattr(_switch.thread, "inside", False):
        yield
        return
    _switch.enter(library)
    _switch.thread.inside = True
    try:
        yield
    finally:
        _switch.thread.inside = False
        _switch.leave()


# ---- the choice


@cache
def processor() -> str:
    """The processor in words: what rounding depends on beside the versions of libraries."""
    told = _processor_facts()
    if not told:
        return f"{platform.machine()} {platform.system()}"
    flags = told["flags"].split()
    known = [name for name in ("avx2", "avx512f", "amx_tile") if name in flags]
    numbers = f"family {told.get('cpu family')}, model {told.get('model')}"
    return f"{told.get('model name', 'unknown')} ({', '.join([numbers, *known])})"


def _processor_facts(file: Path = PROCESSOR) -> dict[str, str]:
    """What Linux says of the first processor of an x86 machine; nothing elsewhere."""
    try:
        lines = file.read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return told if "flags" in told else {}


def rounds_as_single(file: Path = PROCESSOR) -> bool:
    """Whether this processor has nothing that oneDNN would round to bf16 for."""
    flags = _processor_facts(file).get("flags", "").split()
    return "avx2" in flags and not any(flag.startswith("amx") for flag in flags)


def computes_bf16(file: Path = PROCESSOR) -> bool:
    """Whether this processor has instructions for products of factors in bf16."""
    flags = _processor_facts(file).get("flags", "").split()
    return any(flag in ("avx512_bf16", "amx_bf16") for flag in flags)


def is_safe(library: Library) -> bool:
    """Whether the products of this library have the error of single precision on this machine."""
    return library == "mkl" or (rounds_as_single() and _measured(_REFERENCE).error <= LARGEST_ERROR)


def fastest(shape: Shape) -> Library:
    """The library that is faster for products of this shape; measured once per machine."""
    if shape.multiplications < FEWEST_MULTIPLICATIONS or not rounds_as_single():
        return "mkl"
    bounds = (MOST_MEMBERS, LARGEST, LARGEST, LARGEST)
    times = _measured(Shape(*(min(pair) for pair in zip(shape, bounds, strict=True))))
    return "onednn" if times.error <= LARGEST_ERROR and times.gain >= WORTHWHILE else "mkl"


def check_library(library: Library, device: str) -> Library:
    """A library that somebody asks for by name: it has to be used, and to round as single precision does."""
    if device != "cpu":
        raise ConfigError(f"products must be auto on {device}, they belong to processors, got {library!r}")
    if not is_safe(library):
        raise ConfigError(
            f"products must be auto or mkl on this processor ({processor()}), got {library!r}: its oneDNN "
            "would round the factors of products to bf16"
        )
    return library


# ---- the measurement


class Times(NamedTuple):
    """How many times as fast oneDNN is, and how far its products are from exact ones."""

    gain: float
    error: float


_REFERENCE = Shape(1, 256, 256, 256)
_known: dict[str, Times] = {}
"""What this process has measured or read."""


def _measured(shape: Shape) -> Times:
    mkl = "MKL's code for Intel" if active() else "MKL as it is"
    conditions = f"{processor()}, torch {torch.__version__}, {mkl}, {torch.get_num_threads()} threads"
    key = f"{conditions}, {'x'.join(map(str, shape))}"
    if key not in _known:
        _known.update(_kept(cache_file()))
    if key not in _known:
        _known[key] = measure(shape)
        _keep(cache_file())
    return _known[key]


def measure(shape: Shape) -> Times:
    """The three products of a layer, forwards and backwards, by both libraries in turn."""
    generator = torch.Generator().manual_seed(0)
    members, rows, width, columns = shape
    x = torch.randn(members, rows, width, generator=generator)
    weight = torch.randn(members, width, columns, generator=generator)
    gradient = torch.randn(members, rows, columns, generator=generator)

    def layer() -> Tensor:
        torch.bmm(gradient, weight.mT)
        torch.bmm(x.mT, gradient)
        return torch.bmm(x, weight)

    with torch.inference_mode():
        times: dict[Library, list[float]] = {name: [] for name in LIBRARIES}
        outputs: dict[Library, Tensor] = {}
        for name in LIBRARIES:
            with computed_by(name):
                outputs[name] = layer()  # oneDNN writes its code at the first call
        end = time.perf_counter() + SECONDS
        while len(times["onednn"]) < FEWEST_TIMES or time.perf_counter() < end:
            for name in LIBRARIES:
                with computed_by(name):
                    times[name].append(_seconds(layer))
        part = slice(0, 16)
        exact = torch.bmm(x[:, part].double(), weight.double())
        size = torch.bmm(x[:, part].double().abs(), weight.double().abs())
        error = (outputs["onednn"][:, part] - exact).abs() / size
    return Times(min(times["mkl"]) / min(times["onednn"]), float(error.max()))


def _seconds(run: Callable[[], object]) -> float:
    """Of a single thread its own time, as other programs may interrupt it."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def cache_file() -> Path:
    """Where a machine's measurements are kept between processes."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder, "rl_training", "products.json")


def _kept(file: Path) -> dict[str, Times]:
    """The measurements in a file; of a file that makes no sense, those that do."""
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: times for key, values in entries.items() if (times := _as_times(values)) is not None}


def _as_times(values: Any) -> Times | None:
    if not isinstance(values, list) or len(values) != len(Times._fields):
        return None
    numbers = [value for value in values if isinstance(value, float) and math.isfinite(value) and value >= 0]
    return Times(*numbers) if len(numbers) == len(values) else None


def _keep(file: Path) -> None:
    """For the next process; where nothing can be written, each measures for itself."""
    entries = {**_kept(file), **_known}
    newest = dict(list(entries.items())[-MOST_KEPT:])
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text_atomic(file, json.dumps(newest, indent=0))
    except (OSError, UserError):
        return
