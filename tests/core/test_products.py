"""Which library computes products: chosen where it is faster and as exact, set for us alone, and put back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from rl_training.algorithms import SAC, stack_learners, unstack_learners
from rl_training.algorithms.learner import losses_on
from rl_training.core import products
from rl_training.core.errors import ConfigError
from rl_training.core.products import Shape, Times, check_library, computed_by, fastest
from rl_training.models import MLPSACModel

BIG = Shape(2, 256, 256, 256)
ONEDNN = torch.backends.mkldnn
AMD, AMX, OLD = "fma avx2 avx512f avx512_bf16", "fma avx2 avx512f amx_tile amx_bf16", "sse4_2"


def word() -> str:
    """What torch does at the moment: `bf16` gives products to oneDNN, `ieee` and `none` to MKL."""
    return str(ONEDNN.matmul.fp32_precision)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that knows nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(products, "_known", {})
    return tmp_path / "rl_training" / "products.json"


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path, flags: str, times: Times) -> list[Shape]:
    """A processor with these flags and these times; the shapes that are measured on it."""
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: Some\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    measured: list[Shape] = []

    def measure(shape: Shape) -> Times:
        measured.append(shape)
        return times

    for function in (products._processor_facts, products.rounds_as_single):
        monkeypatch.setattr(function, "__defaults__", (file,))
    monkeypatch.setattr(products, "measure", measure)
    return measured


# ---- the switch


def test_it_is_set_inside_and_put_back_whatever_happens() -> None:
    before = word()
    with computed_by("onednn"):
        assert word() == "bf16"
        with computed_by("mkl"):  # the outer one decides
            assert word() == "bf16"
        assert word() == "bf16"
    assert word() == before
    with pytest.raises(RuntimeError, match="inside"), computed_by("onednn"):
        raise RuntimeError("inside")
    assert word() == before


@pytest.mark.parametrize(("set_by_user", "kept"), [("highest", "ieee"), ("high", "tf32"), ("medium", "bf16")])
def test_what_the_user_has_set_is_left_and_does_not_count_inside(set_by_user: str, kept: str) -> None:
    try:
        torch.set_float32_matmul_precision(set_by_user)
        with computed_by("mkl"):
            assert word() == "ieee"
        with computed_by("onednn"):
            assert word() == "bf16"
        assert (word(), torch.get_float32_matmul_precision()) == (kept, set_by_user)
    finally:
        torch.set_float32_matmul_precision("highest")
        ONEDNN.matmul.fp32_precision = "none"


def test_threads_that_want_different_libraries_take_turns_and_all_get_theirs() -> None:
    before, seen, inside = word(), set(), {"mkl": 0, "onednn": 0}
    together, both = [], threading.Barrier(2, timeout=20)

    def compute(library: products.Library) -> None:
        for _ in range(300):
            with computed_by(library):
                inside[library] += 1
                together.append(inside["mkl"] > 0 and inside["onednn"] > 0)
                seen.add((library, word()))
                inside[library] -= 1

    def meet() -> None:
        with computed_by("onednn"):
            both.wait()  # two that want the same are inside at once

    threads = [threading.Thread(target=compute, args=(name,)) for name in ("mkl", "onednn") * 2]
    threads += [threading.Thread(target=meet) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert seen == {("mkl", "ieee"), ("onednn", "bf16")} and not any(together)
    assert word() == before


# ---- the choice


@pytest.mark.parametrize(
    ("flags", "times", "chosen"),
    [
        (AMD, Times(2.0, 3e-7), "onednn"),
        (AMD, Times(1.05, 3e-7), "mkl"),  # not worth it
        (AMD, Times(2.0, 1e-4), "mkl"),  # rounded to bf16 all the same
        (AMX, Times(2.0, 3e-7), "mkl"),  # whatever was measured
        (OLD, Times(2.0, 3e-7), "mkl"),
    ],
)
def test_onednn_is_taken_where_it_is_faster_and_single_precision(
    flags: str, times: Times, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, tmp_path, flags, times)
    assert fastest(BIG) == chosen


def test_small_products_are_not_even_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = machine(monkeypatch, tmp_path, AMD, Times(9.0, 0.0))
    assert fastest(Shape(1, 255, 64, 64)) == "mkl" and not measured
    assert fastest(Shape(1, 256, 64, 64)) == "onednn" and measured


def test_it_is_measured_once_per_machine_and_shape(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = machine(monkeypatch, tmp_path, AMD, Times(2.0, 3e-7))
    assert [fastest(BIG), fastest(BIG), fastest(Shape(9, 4096, 999, 999))] == ["onednn"] * 3
    assert measured == [BIG]  # larger ones go the same way
    products._known.clear()  # another process
    assert fastest(BIG) == "onednn" and measured == [BIG]
    fastest(Shape(1, 256, 64, 64))
    assert len(json.loads(own_cache.read_text())) == 2


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "[]",
        '{"KEY": null}',
        '{"KEY": [2.0]}',
        '{"KEY": ["2", 0.0]}',
        '{"KEY": [NaN, 0.0]}',
        "[" * 9999,
    ],
)
def test_a_damaged_file_of_measurements_is_replaced(
    damaged: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = machine(monkeypatch, tmp_path, AMD, Times(2.0, 3e-7))
    fastest(BIG)
    (key,) = json.loads(own_cache.read_text())
    own_cache.write_text(damaged.replace("KEY", key))
    products._known.clear()
    assert fastest(BIG) == "onednn" and len(measured) == 2
    assert json.loads(own_cache.read_text()) == {key: [2.0, 3e-7]}


def test_without_a_place_to_write_each_process_measures_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    measured = machine(monkeypatch, tmp_path, AMD, Times(2.0, 3e-7))
    assert [fastest(BIG), fastest(BIG)] == ["onednn"] * 2 and measured == [BIG]


def test_a_library_is_refused_where_it_would_not_be_exact_or_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, tmp_path, AMX, Times(2.0, 3e-7))
    assert check_library("mkl", "cpu") == "mkl"
    with pytest.raises(ConfigError, match=r"products must be auto or mkl .*got 'onednn': .*bf16"):
        check_library("onednn", "cpu")
    with pytest.raises(ConfigError, match="products must be auto on cuda"):
        check_library("mkl", "cuda")


def test_a_real_measurement_is_that_of_single_precision_here() -> None:
    gain, error = products.measure(Shape(1, 64, 64, 64))
    assert gain > 0
    if products.rounds_as_single():
        assert error < products.LARGEST_ERROR


# ---- learners


def rows(count: int, lead: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(*lead, count, 9, generator=generator)
    names = {"obs": draw[..., :3], "next_obs": draw[..., 3:6], "actions": draw[..., 6:7].tanh()}
    return {**names, "rewards": draw[..., 7], "dones": (draw[..., 8] > 1).float()}


def learner(width: int = 8, kind: type[SAC] = SAC) -> SAC:
    return kind(MLPSACModel(3, 1, hidden_sizes=(width, width), generator=torch.Generator().manual_seed(1)))


class Watched(SAC):
    """Writes down what torch does during each of its updates."""

    words: list[str]

    def step(self, batch, noise, stage):  # type: ignore[no-untyped-def]
        self.words = [*getattr(self, "words", []), word()]
        return super().step(batch, noise, stage)


def test_updates_run_by_the_library_of_their_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, tmp_path, AMD, Times(2.0, 3e-7))
    before = word()
    for width, library, spoken in ((8, "mkl", "ieee"), (96, "onednn", "bf16")):
        watched = learner(width, Watched)
        assert watched.products is None
        watched.update(rows(256), global_step=0)
        losses_on(watched, rows(4))
        assert isinstance(watched, Watched)
        assert (watched.products, watched.words) == (library, [spoken] * 2)
    assert word() == before


def test_the_choice_is_part_of_the_state_and_of_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, tmp_path, AMD, Times(2.0, 3e-7))
    first = learner()
    first.products = "onednn"
    again = learner()
    again.load_state_dict(first.state_dict())
    assert again.products == "onednn"
    stack = stack_learners([first, again])
    assert [stack.products, *(each.products for each in unstack_learners(stack))] == ["onednn"] * 3
    old = learner()
    old.load_state_dict({name: part for name, part in first.state_dict().items() if name != "products"})
    assert old.products == "mkl"  # what was saved before there was a choice goes on bit for bit
    fresh = learner()
    fresh.load_state_dict({**first.state_dict(), "products": None})
    assert fresh.products is None
    machine(monkeypatch, tmp_path, AMX, Times(2.0, 3e-7))
    elsewhere = learner()
    elsewhere.load_state_dict(first.state_dict())
    assert elsewhere.products == "mkl"


@pytest.mark.skipif(not products.rounds_as_single(), reason="oneDNN would round to bf16 here")
def test_after_fifty_updates_both_libraries_have_learned_the_same() -> None:
    both = []
    for library in products.LIBRARIES:
        each = learner(48)
        each.products = library
        for step in range(50):
            each.update(rows(64), global_step=step)
        both.append(each.tensors())
    for name, tensor in both[0].items():
        torch.testing.assert_close(
            both[1][name], tensor, rtol=2e-3, atol=2e-5, msg=lambda text, n=name: n + text
        )
