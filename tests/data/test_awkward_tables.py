"""Tables as programs and people really write them: what is understood, and what is said where it is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.data import TableFields
from rl_training.core.errors import DataError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.reading import CHUNK_ROWS
from rl_training.data.tables.read import open_table

pa = pytest.importorskip("pyarrow")

COLUMNS: dict[str, Any] = {"observations": ["a", "b"], "actions": ["u"], "reward": "r", "episode": "e"}
TIMED = {**COLUMNS, "time": "t"}
FLAGGED = {**COLUMNS, "terminated": "f"}


def load(path: Path, columns: dict[str, Any] | None = None, **fields: Any) -> TransitionDataset:
    return load_transition_dataset(dataset_path=path, columns=columns or COLUMNS, **fields)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        'a,b,u,r,e\n"1,5",2,"0,25",3,x\n"2,5",3,"0,5",3,x\n',  # a decimal comma in quotes
        "a,b,u,r,e\r1.5,2,0.25,3,x\r2.5,3,0.5,3,x\r",  # lines that end as in old programs
        'a,b,u,r,e,note\n1.5,2,0.25,3,x,"two\nlines"\n2.5,3,0.5,3,x,\n',  # a line break in a cell
        "z,a,z,b,u,r,e,\n9,1.5,9,2,0.25,3,x,\n9,2.5,9,3,0.5,3,x,\n",  # a name twice, and none at all
        "a, b, u, r, e\n 1.5, 2, 0.25, 3, x\n 2.5, 3, 0.5, 3, x\n",  # spaces beside separators
    ],
)
def test_odd_ways_to_write_the_same_rows(tmp_path: Path, text: str) -> None:
    data = load(write(tmp_path / "log.csv", text))
    assert data.obs.tolist() == [[1.5, 2.0]] and data.next_obs.tolist() == [[2.5, 3.0]]
    assert data.actions.tolist() == [[0.25]] and data.rewards.tolist() == [3.0]


@pytest.mark.parametrize(
    "times",
    [
        ("2026-03-01T06:00:00", "2026-03-01T06:00:30", "2026-03-01T06:02:00"),
        ("2026-03-01 06:00:00.000000001", "2026-03-01 06:00:30.000000001", "2026-03-01 06:02:00"),
        ("2026-03-01T06:00:00Z", "2026-03-01T06:00:30Z", "2026-03-01T06:02:00Z"),
        (
            "2026-03-29T01:59:30+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T03:01:30+02:00",
        ),  # a clock put forward
        ("06:00:00", "06:00:30", "06:02:00"),
        ("0,5", "1,0", "2,5"),
        ("10", "11", "14"),
    ],
)
def test_times_in_every_usual_way(tmp_path: Path, times: tuple[str, ...]) -> None:
    rows = [f"{time};{i};{i};{i};0;x" for i, time in enumerate(times)]
    path = write(tmp_path / "log.csv", "\n".join(["t;a;b;u;r;e", *rows, ""]))
    with pytest.warns(UserWarning, match="differ from the median step"):
        data = load(path, TIMED)
    first, second = data.store.whole("durations").tolist()
    assert second / first == pytest.approx(3.0, rel=1e-5)


def test_an_empty_flag_is_not_set_where_values_are_held(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "f,a,b,u,r,e\n,1,1,1,0,x\n,2,2,2,0,x\nyes,3,3,3,0,x\n")
    with pytest.warns(UserWarning, match=r"2 of 3 rows have empty cells \(f 2\)"):
        assert load(path, FLAGGED, missing_values="hold").dones.tolist() == [0, 0, 1]
    path = write(tmp_path / "log.csv", "t,a,b,u,r,e\n1,1,1,1,0,x\n,2,2,2,0,x\n3,3,3,3,0,x\n")
    with pytest.raises(
        DataError, match=r"row 1 has no value in column 't', which cannot be held; set missing_values to"
    ):
        load(path, TIMED, missing_values="hold")


def test_a_vector_that_is_not_there_is_a_missing_value() -> None:
    columns: dict[str, Any] = {"s": [[1.0, 2.0], None, [3.0, 4.0]], "u": [1.0, 2.0, 3.0]}
    with pytest.raises(DataError, match="row 1 has no value in column 's'; set missing_values"):
        TransitionDataset.from_dataframe(pa.table(columns), observations="s", actions="u")
    with pytest.warns(UserWarning, match="filled"):
        held = TransitionDataset.from_dataframe(
            pa.table(columns), observations="s", actions="u", missing_values="hold"
        )
    assert held.obs.tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.csv", "a,b,u,r,e\n1,1,1,0,x\n1,inf,2,0,x\n", "log.csv: row 1 has infinity in column 'b'"),
        ("log.csv", "a,b,u,r,e\n1,1,1,0,x\n1,1,2\n", "log.csv: line 3 has 3 cells, the line of names has 5"),
        ("log.csv", "a~b~u~r~e\n1~1~1~0~x\n", "it has a~b~u~r~e; if these are several, set csv_separator"),
        (
            "log.csv",
            "a,b,b,u,r,e\n1,1,1,1,0,x\n",
            r"no column 'b' \(columns.observations\).* it has a, b \(1\), b \(2\)",
        ),
        (
            "log.csv",
            "a,b,u,r,e\n1,1,7,0,x\n2,2,7,0,x\n",
            "column 'u' holds 7 in every row, so there is no action to",
        ),
        (
            "log.jsonl",
            '{"a":1,"b":2,"u":1,"r":1,"e":1}\n{"a":1,"b":"hot","u":2,"r":1,"e":1}\n',
            "row 1 has 'hot' in the number column 'b'",
        ),
    ],
)
def test_mistakes_name_the_place_and_the_remedy(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        load(write(tmp_path / name, text))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_text_that_holds_numbers_is_numbers_and_other_text_is_named() -> None:
    frame = {"a": ["1.5", "2", None, "2.5"], "u": [1.0, 2.0, 3.0, 4.0]}
    with pytest.warns(UserWarning, match="dropped"):
        data = TransitionDataset.from_dataframe(frame, observations="a", actions="u", missing_values="drop")
    assert data.obs.tolist() == [[1.5]] and data.next_obs.tolist() == [[2.0]]
    frame["a"][1] = "warm"
    with pytest.raises(DataError, match="row 1 has 'warm' in the number column 'a'"):
        TransitionDataset.from_dataframe(frame, observations="a", actions="u")


def test_unequal_widths_name_file_and_row(tmp_path: Path) -> None:
    columns = {"observations": ["s"], "actions": ["u"]}
    lines = [json.dumps({"s": [1, 2], "u": u}) for u in range(3)]
    write(tmp_path / "1.jsonl", "\n".join(lines) + "\n")
    write(tmp_path / "2.jsonl", "\n".join(line.replace("[1, 2]", "[1, 2, 3]") for line in lines) + "\n")
    with pytest.raises(DataError, match=r"2.jsonl: s have 3 numbers per row, but 2 before"):
        load(tmp_path, columns)
    ragged = pa.table({"s": [[1.0], [1.0], [1.0, 2.0]], "u": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match="s has 2 numbers at row 2, but 1 before"):
        TransitionDataset.from_dataframe(ragged, observations="s", actions="u")


def test_frames_with_categories_and_views_of_text() -> None:
    """How pandas stores categories and polars stores text."""
    words = pa.array(["x", "x", "y", "y"])
    frame = {"a": [1.0, 2.0, 3.0, 4.0], "u": [1.0, 2.0, 3.0, 4.0]}
    flags = pa.array(["no", "no", "no", "yes"])
    for kind in (words.dictionary_encode(), words.cast(pa.string_view()), words.cast(pa.large_string())):
        table = pa.table({**frame, "e": kind, "f": flags.dictionary_encode()})
        data = TransitionDataset.from_dataframe(
            table, observations="a", actions="u", episode="e", terminated="f"
        )
        assert data.obs[:, 0].tolist() == [1, 3, 4] and data.dones.tolist() == [0, 0, 1]


def test_a_thousand_files_are_one_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.4f},{b:.4f},{u:.4f},{r:.4f},{i // 7}"
        for i, (a, b, u, r) in enumerate(rng.normal(size=(3000, 4)))
    ]
    (tmp_path / "days").mkdir()
    for index in range(1000):
        write(
            tmp_path / "days" / f"{index:04d}.csv", "\n".join(["a,b,u,r,e", *rows[3 * index : 3 * index + 3]])
        )
    whole = write(tmp_path / "all.csv", "\n".join(["a,b,u,r,e", *rows, ""]))
    one, many = load(whole), load(tmp_path / "days", files_end_episodes=False)
    assert len(one) == 3000 - 429
    for name in one.fields:
        assert one.store.whole(name).equal(many.store.whole(name)), name


def test_a_long_parquet_file_is_read_a_few_columns_at_a_time(tmp_path: Path) -> None:
    """Wide fields are split, those with vectors are not; what comes out is what was written, in its order."""
    rows = CHUNK_ROWS + 1000
    number = np.arange(rows)
    scalars = {f"obs_{i}": (number * 50 + i).astype(np.float32) for i in range(45)}
    others = {"a": np.sin(number), "gauges": list(np.stack([number, -number], 1).astype(np.float32))}
    ends = {"reward": number % 7, "episode": number // 500, "terminated": np.zeros(rows, np.int8)}
    path = tmp_path / "log.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({**others, **scalars, **ends}), path)
    fields = {"obs": list(scalars), "actions": list(others), **{name: [name] for name in ends}}
    groups = open_table(path, TableFields()).column_groups(fields)
    assert [{name: len(group) for name, group in together.items()} for together in groups] == [
        {"obs": 15},
        {"obs": 15},
        {"obs": 15, "actions": 2, "reward": 1, "episode": 1, "terminated": 1},
    ]
    columns = {"observations": ["obs_*"], "actions": list(others), **{name: name for name in ends}}
    data = load_transition_dataset(dataset_path=path, columns=columns)
    kept = np.flatnonzero(number % 500 != 499)[: len(data)]  # the last row of an episode has no successor
    expected = np.stack([values[kept] for values in scalars.values()], 1)
    assert np.array_equal(data.obs.numpy(), expected)
    assert np.allclose(data.actions.numpy(), np.stack([np.sin(kept), kept, -kept], 1))
    assert np.array_equal(data.rewards.numpy(), kept % 7)


@pytest.mark.parametrize("ids", [[[0], [0], [1]], [{"n": 0}, {"n": 0}, {"n": 1}]])
@pytest.mark.parametrize("field", ["episode", "time", "terminated"])
def test_lists_and_mappings_are_no_ids_no_times_and_no_flags(field: str, ids: list[Any]) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "u": [1.0, 2.0, 3.0], "odd": ids})
    with pytest.raises(DataError, match=r"odd must hold one value per row.* holds values of type"):
        TransitionDataset.from_dataframe(table, observations="a", actions="u", **{field: "odd"})  # type: ignore[arg-type]


def test_a_reward_is_one_number(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "u": [1.0, 2.0, 3.0], "r": [[1.0, 2.0]] * 3})
    with pytest.raises(DataError, match="r must hold one number per row, but holds 2"):
        TransitionDataset.from_dataframe(table, observations="a", actions="u", reward="r")


def test_vectors_without_a_number_are_refused() -> None:
    empty = pa.array([[]] * 3, pa.list_(pa.float64()))
    with pytest.raises(DataError, match=r"obs must have at least one number per row, got none"):
        TransitionDataset.from_dataframe(
            pa.table({"a": empty, "u": [1.0, 2.0, 3.0]}), observations="a", actions="u"
        )


def test_episodes_of_one_row_hold_no_transition() -> None:
    frame = {"a": [1.0, 2.0, 3.0], "u": [1.0, 2.0, 3.0], "e": [1, 2, 3]}
    with pytest.raises(DataError, match=r"no row has a successor \(3 episodes of one row each\)"):
        TransitionDataset.from_dataframe(frame, observations="a", actions="u", episode="e")
