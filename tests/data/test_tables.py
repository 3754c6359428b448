"""Tables with columns of their own: what comes out of them, and what is said about mistakes."""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.disk import CACHE_VARIABLE
from rl_training.data.reading import DataWarning

pa = pytest.importorskip("pyarrow")

HEADER = "when;run;who;T;level;valve;score;trip"
ROWS = [
    "2026-03-01T06:00:00;R0;ann;1,5;10;0;-1;no",
    "2026-03-01T06:00:30;R0;ann;2,5;11;50;-2;no",
    "2026-03-01T06:01:00;R0;bob;3,5;12;100;-3;yes",
    "2026-03-01T06:05:00;R1;bob;4,5;13;25;-4;no",
    "2026-03-01T06:05:30;R1;bob;5,5;14;75;-5;no",
]
COLUMNS = {
    "observations": ["T", "level"],
    "actions": ["valve"],
    "reward": "score",
    "episode": "run",
    "terminated": "trip",
}


def write(path: Path, lines: list[str], header: str = HEADER, encoding: str = "utf-8") -> Path:
    path.write_bytes("\n".join([header, *lines, ""]).encode(encoding))
    return path


def load(path: Path, columns: dict[str, Any] | None = None, **fields: Any) -> TransitionDataset:
    return load_transition_dataset(dataset_path=path, columns=columns or COLUMNS, **fields)


def change(row: int, column: str, text: str) -> list[str]:
    index = HEADER.split(";").index(column)
    rows = [line.split(";") for line in ROWS]
    rows[row][index] = text
    return [";".join(cells) for cells in rows]


def test_a_plant_log_as_it_is(tmp_path: Path) -> None:
    """Semicolons, decimal commas, ISO times, text ids, yes/no and a column that nobody needs."""
    data = load(write(tmp_path / "log.csv", ROWS))
    assert data.obs.tolist() == [[1.5, 10], [2.5, 11], [3.5, 12], [4.5, 13]]
    assert data.actions.tolist() == [[0], [50], [100], [25]]
    assert data.rewards.tolist() == [-1, -2, -3, -4]
    assert data.dones.tolist() == [0, 0, 1, 0]
    assert data.truncations is not None and data.truncations.tolist() == [0, 0, 0, 1]
    assert data.next_obs[[0, 1, 3]].tolist() == [[2.5, 11], [3.5, 12], [5.5, 14]]
    assert data.episode_returns().tolist() == [
        -6,
        -9,
    ]  # the last reward counts though its row has no successor
    assert data.info.observation_names == ("T", "level") and data.info.action_names == ("valve",)


@pytest.mark.parametrize(
    ("name", "separator", "decimal", "encoding"),
    [
        ("a.csv", ",", ".", "utf-8"),
        ("a.csv", ";", ",", "utf-8-sig"),
        ("a.tsv", "\t", ",", "cp1252"),
        ("a.csv", "|", ".", "utf-16"),
    ],
)
def test_the_way_text_is_written_is_detected(
    tmp_path: Path, name: str, separator: str, decimal: str, encoding: str
) -> None:
    lines = [line.replace(",", decimal).replace("ann", "änne") for line in ROWS]
    path = write(
        tmp_path / name,
        [line.replace(";", separator) for line in lines],
        HEADER.replace(";", separator).replace("T", "T °C"),
        encoding,
    )
    data = load(path, {**COLUMNS, "observations": ["T °C", "level"]})
    assert data.obs[:, 0].tolist() == [1.5, 2.5, 3.5, 4.5]


def test_compressed_text_and_settings_that_overrule_detection(tmp_path: Path) -> None:
    plain = write(tmp_path / "log.csv", ROWS)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert load(tmp_path / "log.csv.gz").obs.tolist() == load(plain).obs.tolist()
    settings = {"csv_separator": ";", "csv_decimal": ",", "csv_encoding": "utf-8"}
    assert load(plain, **settings).obs.tolist() == load(plain).obs.tolist()
    with pytest.raises(DataError, match=r"row 0 \(line 2\) has '1,5' in the number column 'T'"):
        load(plain, csv_decimal=".")
    with pytest.raises(ConfigError, match="csv_separator must be a single character, got ';;'"):
        load(plain, csv_separator=";;")


@pytest.mark.parametrize("ending", ["parquet", "feather", "jsonl"])
def test_every_kind_of_file_gives_the_same(tmp_path: Path, ending: str) -> None:
    import pyarrow.feather as feather
    import pyarrow.parquet as parquet

    expected = load(write(tmp_path / "log.csv", ROWS))
    cells = [line.replace(",", ".").split(";") for line in ROWS]
    records = [
        {
            name: float(cell) if name in ("T", "level", "valve", "score") else cell
            for name, cell in zip(HEADER.split(";"), row, strict=True)
        }
        for row in cells
    ]
    path = tmp_path / f"log.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif ending == "parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        feather.write_feather(pa.Table.from_pylist(records), path)
    found = load(path)
    for name in expected.fields:
        assert found.store.whole(name).tolist() == expected.store.whole(name).tolist(), name


def test_vectors_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"state": [i, i + 0.5], "u": i, "r": 1, "done": i == 2, "e": 7} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load(
        path,
        {"observations": ["state"], "actions": ["u"], "reward": "r", "terminated": "done", "episode": "e"},
    )
    assert data.obs.tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]] and data.dones.tolist() == [0, 0, 1]


def test_a_folder_and_a_pattern_are_one_log(tmp_path: Path) -> None:
    """The files are sorted; an episode may go on in the next file where its id and its time say so."""
    folder, timed = tmp_path / "logs", {**COLUMNS, "time": "when"}
    folder.mkdir()
    whole = load(write(tmp_path / "whole.csv", ROWS), timed)
    for index, part in enumerate((ROWS[:1], ROWS[1:4], ROWS[4:])):
        write(folder / f"{index}.csv", part)
    for path in (folder, folder / "*.csv"):
        with pytest.warns(DataWarning, match="2 times an episode of column 'run' goes on in the next file"):
            found = load(path, timed)
        for name in found.fields:
            assert found.store.whole(name).tolist() == whole.store.whole(name).tolist(), name
    joined = load(folder, files_end_episodes=False)
    assert joined.obs.tolist() == whole.obs.tolist() and joined.dones.tolist() == whole.dones.tolist()
    cut = load(folder, files_end_episodes=True)
    assert cut.episode_returns().tolist() == [-5]  # first and last episode lost their only row
    without_ids = {key: value for key, value in COLUMNS.items() if key != "episode"}
    assert np.flatnonzero(load(folder, without_ids).episode_ends()).tolist() == [1]


IDS: dict[str, Any] = {"observations": ["x"], "actions": ["u"], "episode": "run", "time": "t"}


def write_runs(folder: Path, files: list[list[tuple[object, float]]]) -> None:
    """One file per list of (id, time) rows; x counts the rows of all files."""
    folder.mkdir(exist_ok=True)
    count = 0
    for number, rows in enumerate(files):
        lines = []
        for run, time in rows:
            lines.append(f"{run};{time};{count};{count % 7}")
            count += 1
        write(folder / f"{number}.csv", lines, "run;t;x;u")


@pytest.mark.parametrize(
    ("files", "timed", "said", "ends"),
    [  # ends: first x of every episode
        ([[(1, 0), (1, 1), (1, 2)]] * 3, False, "stands in another file again 2 times", [0, 3, 6]),
        ([[(1, 0), (1, 1), (1, 2)]] * 3, True, "its time does not go on there", [0, 3, 6]),
        ([[(1, 0), (1, 1), (2, 0), (2, 1)]] * 2, False, "again 2 times", [0, 2, 4, 6]),
        ([[(1, 0), (1, 1)], [(1, 2), (1, 3), (2, 4), (2, 5)]], True, "1 times an episode", [0, 4]),
        ([[(1, 0), (1, 1)], [(1, 3600), (1, 3601)]], True, "its time does not go on", [0, 2]),
        ([[(1, 0), (1, 1)], [(2, 0), (2, 1)], [(1, 2), (1, 3)]], True, "again 1 times", [0, 2, 4]),
    ],
)
def test_ids_count_in_their_own_file_unless_time_goes_on(
    tmp_path: Path, files: list[list[tuple[object, float]]], timed: bool, said: str, ends: list[int]
) -> None:
    """No transition leads from one file to the next because two files use the same id."""
    write_runs(tmp_path / "logs", files)
    columns = IDS if timed else {key: name for key, name in IDS.items() if key != "time"}
    with pytest.warns(DataWarning, match=said):
        found = load(tmp_path / "logs", columns)
    starts = found.obs[np.concatenate([[True], found.episode_ends()[:-1]]), 0].tolist()
    assert starts == ends
    assert (found.next_obs - found.obs).tolist() == [[1.0]] * len(found)
    assert len(found) == sum(map(len, files)) - len(ends)  # the last row of each has no successor


def test_one_long_episode_out_of_many_files_is_said(tmp_path: Path) -> None:
    write_runs(tmp_path / "logs", [[(1, 3 * n), (1, 3 * n + 1), (1, 3 * n + 2)] for n in range(4)])
    with pytest.warns(DataWarning) as caught:
        assert len(load(tmp_path / "logs", IDS)) == 11
    told = "all 4 files together are one episode of 12 rows: is that so?"
    assert [told in str(each.message) for each in caught] == [False, True]
    without_time = {key: name for key, name in IDS.items() if key != "time"}
    with pytest.warns(DataWarning, match=told):
        assert len(load(tmp_path / "logs", without_time, files_end_episodes=False)) == 11


@pytest.mark.parametrize("by_file", [None, True])
def test_an_id_that_comes_back_in_its_own_file_is_refused(tmp_path: Path, by_file: bool | None) -> None:
    write_runs(tmp_path / "logs", [[(1, 0), (1, 1)], [(1, 2), (2, 3), (1, 4)]])
    with pytest.raises(DataError, match=r"1.csv: row 2 goes back to an episode .* 1.csv: row 0 and had"):
        load(tmp_path / "logs", IDS, files_end_episodes=by_file)


def test_missing_values_by_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", change(1, "T", ""))
    with pytest.raises(
        DataError, match=r"log.csv: row 1 has no value in column 'T'; set missing_values to drop"
    ):
        load(path)
    with pytest.warns(
        DataWarning, match=r"1 of 5 rows have empty cells \(T 1\): filled with the episode's last"
    ):
        held = load(path, missing_values="hold")
    assert held.obs[:, 0].tolist() == [1.5, 1.5, 3.5, 4.5]
    with pytest.warns(DataWarning, match="dropped, their episodes split there"):
        dropped = load(path, missing_values="drop")
    # row 0 lost its successor, row 2 terminates and needs none
    assert dropped.obs[:, 0].tolist() == [3.5, 4.5] and dropped.rewards.tolist() == [-3, -4]


def test_a_value_is_not_held_across_episodes(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", change(3, "T", "NA"))
    with pytest.warns(DataWarning, match="filled"):
        held = load(path, missing_values="hold")
    assert held.obs[:, 0].tolist() == [
        1.5,
        2.5,
        3.5,
    ]  # nothing to hold at the start of R1: that step is left out


def test_time_gaps_end_episodes_and_uneven_steps_are_reported(tmp_path: Path) -> None:
    columns = {key: value for key, value in COLUMNS.items() if key not in ("episode", "terminated")}
    path = write(tmp_path / "log.csv", ROWS)
    with pytest.warns(
        DataWarning, match=r"1 of 4 steps differ from the median step of 30 \(shortest 30, longest 240"
    ):
        whole = load(path, {**columns, "time": "when"})
    assert len(whole.episode_returns()) == 1
    assert whole.store.whole("durations").tolist() == [1, 1, 8, 1]
    with pytest.warns(DataWarning, match=r"1 gaps longer than max_gap \(60\)"):
        split = load(path, {**columns, "time": "when"}, max_gap=60.0)
    assert split.episode_returns().tolist() == [-6, -9]


def test_the_discount_of_a_step_follows_its_duration() -> None:
    """gamma .9, durations .5, 2, 1, rewards 1, 2, 3: returns 5.202667, 4.43, 3."""
    frame = {"t": [0.0, 0.5, 2.5, 3.5], "x": [0.0, 1.0, 2.0, 3.0], "u": [0.1, 0.2, 0.3, 0.4]}
    frame["r"] = [1.0, 2.0, 3.0, 0.0]
    with pytest.warns(DataWarning, match="differ from the median step of 1"):
        data = TransitionDataset.from_dataframe(frame, observations="x", actions="u", reward="r", time="t")
    returns = data.with_discounted_returns_to_go(0.9, by_time=True).returns_to_go
    assert returns is not None
    np.testing.assert_allclose(returns.numpy(), [5.202667, 4.43, 3.0], rtol=1e-6)
    from rl_training.data import with_n_step

    two = with_n_step(data, 2, 0.9, by_time=True)
    np.testing.assert_allclose(two.rewards.numpy(), [1 + 0.9**0.5 * 2, 2 + 0.9**2 * 3, 3], rtol=1e-6)
    assert two.discounts is not None
    np.testing.assert_allclose(two.discounts.numpy(), [0.9**2.5, 0.9**3, 0.9], rtol=1e-6)


@pytest.mark.parametrize(
    ("lines", "columns", "words"),
    [
        (
            ROWS,
            {**COLUMNS, "reward": "scroe"},
            r"no column 'scroe' \(columns.reward\) \(did you mean 'score'\?\)",
        ),
        (
            ROWS,
            {**COLUMNS, "observations": ["x_*"]},
            r"no column 'x_\*' \(columns.observations\); it has when, run",
        ),
        (change(2, "T", "hot"), COLUMNS, r"row 2 \(line 4\) has 'hot' in the number column 'T'"),
        (change(2, "trip", "maybe"), COLUMNS, r"row 2 has 'maybe' in the flag column 'trip'"),
        (change(2, "trip", "2"), COLUMNS, r"row 2 has '2' in the flag column 'trip'"),
        (
            change(4, "run", "R0"),
            COLUMNS,
            r"row 4 goes back to an episode of column 'run' that began at log.csv: row 0",
        ),
        (
            change(1, "when", "2026-03-01T05:00:00"),
            {**COLUMNS, "time": "when"},
            r"row 1: time runs backwards in .*'when'",
        ),
        (
            change(1, "when", "early"),
            {**COLUMNS, "time": "when"},
            r"row 1 has 'early' in the time column 'when'",
        ),
        (change(1, "run", ""), COLUMNS, r"row 1 has no value in column 'run'"),
        (ROWS, {**COLUMNS, "actions": ["T"]}, r"column 'T' is mapped twice, to obs and to actions"),
        (ROWS, {"reward": "score"}, r"missing key 'observations', 'action'; it has"),
        ([*ROWS, "1;2;3"], COLUMNS, r"line 7 has 3 cells, the line of names has 8"),
        ([], COLUMNS, r"the dataset is empty"),
    ],
)
def test_mistakes_name_file_row_and_column(
    tmp_path: Path, lines: list[str], columns: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "log.csv", lines)
    with pytest.raises(DataError, match=words) as caught:
        load(path, columns)
    assert "log.csv" in str(caught.value) and "\n" not in str(caught.value)


def test_files_of_a_log_must_have_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", ROWS[:3])
    write(tmp_path / "2.csv", ROWS[3:], HEADER.replace("valve", "ventil"))
    with pytest.raises(DataError, match=r"2.csv: no column 'valve', which .*1.csv has"):
        load(tmp_path)
    write(tmp_path / "2.csv", [line + ";1" for line in ROWS[3:]], "extra;" + HEADER)
    with pytest.raises(DataError):  # a header that does not fit its rows
        load(tmp_path)
    write(tmp_path / "2.csv", ["1;" + line for line in ROWS[3:]], "extra;" + HEADER)
    assert len(load(tmp_path)) == 4
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="holds tables of several kinds"):
        load(tmp_path)
    with pytest.raises(DataError, match="no file matches this pattern"):
        load(tmp_path / "*.tsv")


def test_an_error_in_one_of_many_small_files_names_that_file(tmp_path: Path) -> None:
    for index in range(5):
        write(tmp_path / f"{index}.csv", ROWS if index != 3 else change(2, "T", "hot"))
    with pytest.raises(DataError, match=r"3.csv: row 2 \(line 4\) has 'hot'"):
        load(tmp_path, files_end_episodes=True)
    write(tmp_path / "3.csv", [*ROWS[:2], "", *ROWS[2:]])  # an empty line is no row
    assert len(load(tmp_path, files_end_episodes=True)) == 20


def test_data_frames_of_any_maker(tmp_path: Path) -> None:
    """Anything that speaks Arrow's protocol is a frame; lists of columns and patterns choose what is used."""
    table = pa.table(
        {"o_10": [3.0, 4.0], "o_9": [1.0, 2.0], "u": [0, 1], "e": ["a", "a"], "note": ["x", None]}
    )

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.__arrow_c_stream__(requested_schema)

    for frame in (
        table,
        Frame(),
        table.to_batches()[0],
        {name: table[name].to_pylist() for name in table.column_names},
    ):
        data = TransitionDataset.from_dataframe(frame, observations="o_*", actions=["u"], episode="e")
        assert data.obs.tolist() == [[1, 3]] and data.next_obs.tolist() == [[2, 4]]
        assert not data.info.rewards_known and data.info.observation_names == ("o_9", "o_10")
    with pytest.raises(DataError, match="a frame must be a pandas, polars or Arrow table"):
        TransitionDataset.from_dataframe(3, observations="o", actions="u")
    with pytest.raises(ConfigError, match="mising_values is not a known key"):
        TransitionDataset.from_dataframe(table, observations="o_9", actions="u", mising_values="drop")


def test_rows_on_disk_are_the_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = write(tmp_path / "log.csv", change(1, "T", ""))
    for policy in ("hold", "drop"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            one, two = (load(path, missing_values=policy, in_memory=where) for where in (True, False))
        for name in one.fields:
            assert one.store.whole(name).tolist() == two.store.whole(name).tolist(), (policy, name)
        assert two.info.observation_names == ("T", "level")
    assert len(list((tmp_path / "cache").glob("*/obs.npy"))) == 2  # the policy is part of the key


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_tables_come_back_as_their_arrays(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the order of columns, whatever else the table holds, in one file or in several."""
    folder = tmp_path_factory.mktemp("table")
    rows, width = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    obs = rng.normal(size=(rows, width)).astype(np.float32)
    actions, rewards = rng.normal(size=(rows, 2)).astype(np.float32), rng.normal(size=rows).astype(np.float32)
    ids = np.sort(rng.integers(0, 4, size=rows))
    terminated = rng.random(rows) < 0.2
    columns: dict[str, Any] = {f"s{i}": obs[:, i] for i in range(width)}
    columns |= {"u1": actions[:, 0], "u2": actions[:, 1], "r": rewards, "id": ids}
    columns |= {
        "end": np.where(terminated, "true", "FALSE"),
        "junk": ["?x"] * rows,
        "more": rng.normal(size=rows),
        "clock": np.arange(rows),
    }
    names = data.draw(st.permutations(list(columns)))
    separator = data.draw(st.sampled_from([",", ";", "\t"]))
    lines = [separator.join(str(columns[name][row]) for name in names) for row in range(rows)]
    cut = data.draw(st.integers(1, rows))
    header = separator.join(names)
    write(folder / "a.csv", lines[:cut], header)
    if cut < rows:
        write(folder / "b.csv", lines[cut:], header)
    mapping = {
        "observations": ["s*"],
        "actions": ["u1", "u2"],
        "reward": "r",
        "episode": "id",
        "time": "clock",
        "terminated": "end",
    }
    ends = np.append(ids[1:] != ids[:-1], True)
    assume((~ends | terminated).any())  # a row with a successor, or that needs none
    expected = {"observations": obs, "actions": actions, "rewards": rewards, "terminals": terminated}
    wanted = TransitionDataset.from_dict({**expected, "timeouts": ends & ~terminated})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # an episode that goes on in the second file
        found = load(folder, mapping)
    assert len(found) == len(wanted)
    for name in wanted.fields:
        np.testing.assert_array_equal(found.store.whole(name).numpy(), wanted.store.whole(name).numpy(), name)
