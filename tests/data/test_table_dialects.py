"""Tables as plants, historians and spreadsheets write them: dates, marks, words, sheets, narrow tables."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.config.data import DatasetSource
from rl_training.config.limits import parse_episode_length
from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset, read_log
from rl_training.data.disk import CACHE_VARIABLE, cached_log
from rl_training.data.reading import DataWarning
from rl_training.data.tables.cells import times
from rl_training.data.tables.files import check_target, copy_folder
from rl_training.data.tables.steps import local_times

pa = pytest.importorskip("pyarrow")

COLUMNS: dict[str, Any] = {"observations": ["T"], "actions": ["valve"], "reward": "score"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path | str, columns: dict[str, Any] = COLUMNS, **fields: Any) -> TransitionDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return read_log(path, **columns, **fields)


def notes(path: Path | str, columns: dict[str, Any] = COLUMNS, **fields: Any) -> str:
    with pytest.warns(DataWarning) as told:
        read_log(path, **columns, **fields)
    return "\n".join(str(note.message) for note in told)


# ---- dates


def seconds(*texts: str | None, order: str | None = None) -> list[float]:
    found: list[float] = times(pa.array(texts), "when", "log.csv", 0, order).tolist()
    return found


def utc(*numbers: int) -> float:
    return (datetime(*numbers) - datetime(1970, 1, 1)).total_seconds()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("31.12.2026 06:00", utc(2026, 12, 31, 6)),
        ("1.2.2026", utc(2026, 2, 1)),
        ("01.02.26 6:05:30", utc(2026, 2, 1, 6, 5, 30)),
        ("01.02.2026 06:00:00,250", utc(2026, 2, 1, 6) + 0.25),
        ("14/03/2026 06:00", utc(2026, 3, 14, 6)),
        ("03/14/2026 6:00 PM", utc(2026, 3, 14, 18)),
        ("03/14/2026 12:30 AM", utc(2026, 3, 14, 0, 30)),
        ("2026-03-01 06:00:00 Europe/Berlin", utc(2026, 3, 1, 5)),
        ("2026-07-01 06:00:00 Europe/Berlin", utc(2026, 7, 1, 4)),
        ("2026-03-01 06:00:00 CET", utc(2026, 3, 1, 5)),
        ("01.03.2026 06:00 MESZ", utc(2026, 3, 1, 4)),
        ("2026-03-01 06:00 UTC", utc(2026, 3, 1, 6)),
    ],
)
def test_dates_as_people_write_them(text: str, meant: float) -> None:
    assert seconds(text, None, text)[::2] == [meant, meant]
    assert np.isnan(seconds(text, None)[1])


def test_zones_that_change_with_the_clock() -> None:
    assert np.diff(seconds("2026-10-25 02:59:00 CEST", "2026-10-25 02:01:00 CET")).tolist() == [120.0]


def test_a_date_that_could_be_two_is_asked_about() -> None:
    with pytest.raises(DataError, match=r"dates such as 03/04 in column 'when' .*; set date_order"):
        seconds("03/04/2026 06:00")
    assert seconds("03/04/2026", order="day") == [utc(2026, 4, 3)]
    assert seconds("03/04/2026", order="month") == [utc(2026, 3, 4)]
    assert seconds("03/04/2026", "03/14/2026") == [utc(2026, 3, 4), utc(2026, 3, 14)]


@pytest.mark.parametrize("wrong", ["garbage", "32.12.2026 06:00", "01.02.2026 25:00", "2026-02-01"])
def test_a_cell_that_is_no_date_is_named(wrong: str) -> None:
    with pytest.raises(DataError, match=r"log.csv: row \d has '.*' in the time column 'when'"):
        seconds("01.02.2026 06:00", wrong)


def test_an_hour_that_comes_twice_is_two_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    real = [datetime(2026, 10, 24, 22, tzinfo=ZoneInfo("UTC")) + timedelta(minutes=10 * k) for k in range(40)]
    clock = [each.astimezone(berlin).replace(tzinfo=None) for each in real]
    on_the_wall = np.array([(each - datetime(1970, 1, 1)).total_seconds() for each in clock])
    assert (np.diff(on_the_wall) < 0).sum() == 1
    found = local_times(on_the_wall, "Europe/Berlin", "log.csv")
    np.testing.assert_allclose(np.diff(found), 600.0)
    assert found[0] == real[0].timestamp()
    with pytest.raises(DataError, match="time_zone must be a name such as Europe/Berlin, got 'Berlin'"):
        local_times(on_the_wall, "Berlin", "log.csv")


def test_the_zone_and_the_order_are_settings(tmp_path: Path) -> None:
    rows = ["25/10/2026 02:30", "25/10/2026 02:00", "25/10/2026 02:30", "25/10/2026 03:00"]
    lines = [f"{when},{index},{index},0" for index, when in enumerate(rows)]
    path = write(tmp_path / "log.csv", "\n".join(["at,T,valve,score", *lines]) + "\n")
    timed = {**COLUMNS, "time": "at"}
    with pytest.raises(DataError, match="time runs backwards"):
        load(path, timed)
    assert len(load(path, timed, time_zone="Europe/Berlin")) == 3
    with pytest.raises(DataError, match="time_zone needs the time of steps"):
        load(path, time_zone="Europe/Berlin")


# ---- how text is written


@pytest.mark.parametrize(
    ("cells", "separator", "numbers"),
    [
        (["1.234,5", "12,25"], ";", [1234.5, 12.25]),
        (["1,234.5", "1,234,567"], ";", [1234.5, 1234567.0]),
        (["1'234.5", "2"], ";", [1234.5, 2.0]),
        (["1 234,5", "2,5"], ";", [1234.5, 2.5]),
        (["1.234.567", "8"], ";", [1234567.0, 8.0]),
        (["1.234", "2.5"], ";", [1.234, 2.5]),
        (["1,234", "2,5"], ";", [1.234, 2.5]),
    ],
)
def test_marks_between_thousands_are_seen_where_they_are_plain(
    tmp_path: Path, cells: list[str], separator: str, numbers: list[float]
) -> None:
    lines = [separator.join([cell, str(index), "0"]) for index, cell in enumerate([*cells, "0"])]
    path = write(tmp_path / "log.csv", "\n".join([separator.join(("T", "valve", "score")), *lines]) + "\n")
    assert load(path).obs[:, 0].tolist() == pytest.approx(numbers, rel=1e-6)


def test_marks_are_said_and_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "T;valve;score\n1.234;1;0\n5.678;2;0\n9;3;0\n")
    assert load(path, csv_thousands=".").obs[:, 0].tolist() == [1234.0, 5678.0]
    assert "numbers are read as 1.234,5 for 1234.5" in notes(path, csv_thousands=".")
    late = write(tmp_path / "late.csv", "T;valve;score\n" + "7;1;0\n" * 9000 + "1'234;2;0\n7;1;0\n")
    with pytest.raises(DataError, match=r"has \"1'234\" in the number column 'T'; set csv_thousands"):
        load(late)
    with pytest.raises(ConfigError, match=r"csv_thousands must be \. , ' or a space"):
        load(path, csv_thousands="x")
    with pytest.raises(DataError, match="csv_thousands and csv_decimal must differ"):
        load(path, csv_thousands=".", csv_decimal=".")


def test_blanks_of_any_width_separate(tmp_path: Path) -> None:
    lines = ["  T   valve\tscore ", *(f"{index / 2:8.2f}  {index % 3}   -1" for index in range(50_000))]
    data = load(write(tmp_path / "log.dat.csv", "\n".join(lines)))
    assert len(data) == 49_999 and data.obs[-1, 0] == pytest.approx(49_998 / 2)


def test_a_table_without_names(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "1.5,0,-1\n2.5,1,-2\n3.5,0,-3\n")
    with pytest.raises(DataError, match=r"first line holds numbers .*--no-csv-header"):
        load(path)
    columns = {"observations": ["column_1"], "actions": ["column_2"], "reward": "column_3"}
    for _ in range(2):
        assert load(path, columns, csv_header=False).obs[:, 0].tolist() == [1.5, 2.5]
    write(tmp_path / "log2.csv", "4.5,0,-1\n5.5,1,oops\n")
    with pytest.raises(DataError, match=r"log2.csv: row 1 \(line 2\) has 'oops'"):
        load(tmp_path / "*.csv", columns, csv_header=False)


def test_words_for_on_and_off_are_numbers_and_flags(tmp_path: Path) -> None:
    text = "T,pump,valve,score,trip\n1,ON,0,0,nein\n2,OFF,1,0,nein\n3,,0,0,ja\n4,on,1,0,nein\n"
    path = write(tmp_path / "log.csv", text)
    columns = {**COLUMNS, "observations": ["T", "pump"], "terminated": "trip"}
    data = load(path, columns, missing_values="hold")
    assert data.obs.tolist() == [[1, 1], [2, 0], [3, 0]]
    assert data.dones.tolist() == [0, 0, 1]


# ---- other sources


def test_a_sheet_of_a_workbook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    workbook.active.title = "notes"
    workbook.active.append(["nothing here"])
    sheet = workbook.create_sheet("log")
    sheet.append(["at", "T", "valve", "score", "comment"])
    for row in range(4):
        at = datetime(2026, 3, 1, 6) + timedelta(seconds=30 * row)
        sheet.append([at, 1.5 + row, row % 2, None if row == 2 else -row, "fine"])
    workbook.save(tmp_path / "log.xlsx")
    timed = {**COLUMNS, "time": "at"}
    data = load(tmp_path / "log.xlsx", timed, sheet="log", missing_values="hold")
    assert data.obs[:, 0].tolist() == [1.5, 2.5, 3.5] and data.rewards.tolist() == [0, -1, -1]
    with pytest.raises(DataError, match=r"say which sheet: --sheet NAME \(it has notes, log\)"):
        load(tmp_path / "log.xlsx", timed)
    with pytest.raises(DataError, match=r"no sheet 'logs' \(did you mean 'log'\?\)"):
        load(tmp_path / "log.xlsx", timed, sheet="logs")
    assert main(["data", "inspect", str(tmp_path / "log.xlsx"), "--sheet", "log"]) == 0
    assert "--sheet log --obs" in capsys.readouterr().out
    (tmp_path / "bad.xlsx").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"bad.xlsx: cannot be read as an Excel workbook; it is damaged"):
        load(tmp_path / "bad.xlsx", timed)
    with pytest.raises(DataError, match="sheet is for Excel workbooks"):
        load(write(tmp_path / "log.csv", "T,valve,score\n1,2,3\n"), sheet="log")


READINGS = """at,tag,value
2026-03-01T06:00:00,T,20.0
2026-03-01T06:00:00,valve,50
2026-03-01T06:00:10,T,21.0
2026-03-01T06:00:25,score,-1
2026-03-01T06:00:30,valve,60
2026-03-01T06:00:45,T,22.0
2026-03-01T06:01:00,valve,70
"""


def test_a_narrow_table_is_made_wide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "readings.csv", READINGS)
    timed = {**COLUMNS, "time": "at"}
    fields = {"pivot": "tag=value", "pivot_step": "30s", "missing_values": "drop"}
    data = load(path, timed, **fields)
    assert data.obs[:, 0].tolist() == [21.0] and data.actions[:, 0].tolist() == [60.0]
    assert data.next_obs[0, 0].item() == 22.0
    assert "7 readings of 3 tags became 3 rows; each tag keeps its last value" in notes(path, timed, **fields)
    every = load(path, timed, pivot="tag=value", missing_values="drop")
    assert every.obs[:, 0].tolist() == [21.0, 21.0, 22.0]  # at 25, 30 and 45 seconds; that at 60 is next
    assert main(["data", "inspect", str(path)]) == 0
    assert "--pivot tag=value --time at" in capsys.readouterr().out
    options = ["--pivot", "tag=value", "--pivot-step", "30s", "--time", "at"]
    assert main(["data", "inspect", str(path), *options]) == 0
    assert "--pivot tag=value --pivot-step 30s" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"no column 'tags' \(pivot\) \(did you mean 'tag'\?\)"):
        load(path, timed, pivot="tags=value")
    with pytest.raises(DataError, match="pivot needs the time of readings"):
        load(path, pivot="tag=value")
    with pytest.raises(ConfigError, match="pivot must be TAG=VALUE"):
        load(path, timed, pivot="tag")
    with pytest.raises(ConfigError, match="pivot_step must be a time such as 30s, beside pivot"):
        load(path, timed, pivot_step="30s")


def test_columns_that_not_all_files_have(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "T,level,valve,score\n1,5,0,0\n2,5,1,0\n3,5,0,0\n")
    write(tmp_path / "2.csv", "T,valve,score\n4,0,0\n5,1,0\n6,0,0\n")
    columns = {**COLUMNS, "observations": ["T", "level"]}
    with pytest.raises(
        DataError, match=r"2.csv: no column 'level', which .*1.csv has; missing_columns: empty"
    ):
        load(tmp_path / "*.csv", columns)
    dropped = load(tmp_path / "*.csv", columns, missing_columns="empty", missing_values="drop")
    assert dropped.obs[:, 0].tolist() == [1, 2]
    held = load(
        tmp_path / "*.csv", columns, missing_columns="empty", missing_values="hold", files_end_episodes=False
    )
    assert held.obs.tolist() == [[1, 5], [2, 5], [3, 5], [4, 5], [5, 5]]
    assert "2.csv has no column level: its cells are taken as empty" in notes(
        tmp_path / "*.csv", columns, missing_columns="empty", missing_values="drop"
    )


def test_files_that_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own addresses of local files go the way of every other file system."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache" / "datasets"))
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for day in (1, 2):
        write(bucket / f"{day}.csv", f"T,valve,score\n{day},0,0\n{day + 1},1,0\n{day + 2},0,0\n")
    write(bucket / "readme.txt", "no table")
    one = load(f"file://{bucket}/1.csv")
    assert one.obs[:, 0].tolist() == [1, 2] and one.info.source == f"file://{bucket}/1.csv"
    every = load(f"file://{bucket}/*.csv")
    assert every.obs[:, 0].tolist() == [1, 2, 2, 3]
    source = DatasetSource.build({"dataset_path": f"file://{bucket}/*.csv", "columns": COLUMNS})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert cached_log("table", source).obs[:, 0].tolist() == [1, 2, 3, 2, 3, 4]
    copies = sorted(path.name for path in (tmp_path / "cache" / "fetched").rglob("*.csv"))
    assert copies == ["1.csv", "1.csv", "2.csv"]
    with pytest.raises(DataError, match=r"file://.*/9.csv: cannot be read \(no such file or folder\)"):
        load(f"file://{bucket}/9.csv")
    with pytest.raises(DataError, match=r"file://.*\.tsv: no file there"):
        load(f"file://{bucket}/*.tsv")


# ---- episodes out of a continuous log


def continuous(path: Path, rows: int, minutes: int = 30) -> Path:
    start = datetime(2026, 3, 1, 5)
    lines = [f"{start + timedelta(minutes=minutes * row)},{row},{row % 3},0" for row in range(rows)]
    return write(path, "\n".join(["at,T,valve,score", *lines]) + "\n")


@pytest.mark.parametrize(
    ("length", "lengths"),
    [
        ("12h", [24, 24, 24, 24]),
        ("500min", [17, 17, 16, 17, 17, 12]),
        ("40 rows", [40, 40, 16]),
        ("day", [38, 48, 10]),
        ("shifts 06:00,14:00,22:00", [2, 16, 16, 16, 16, 16, 14]),
    ],
)
def test_a_continuous_log_is_cut(tmp_path: Path, length: str, lengths: list[int]) -> None:
    path = continuous(tmp_path / "log.csv", 96)
    data = load(path, {**COLUMNS, "time": "at"}, episode_length=length)
    assert len(data) == 96 - len(lengths)  # the last row of each has no successor of its own
    assert data.truncations is not None
    assert (np.diff(np.flatnonzero(data.truncations), prepend=-1) + 1).tolist() == lengths


def test_a_cut_is_said_with_what_it_means(tmp_path: Path) -> None:
    path = continuous(tmp_path / "log.csv", 96)
    told = notes(path, {**COLUMNS, "time": "at"}, episode_length="12h")
    assert "cuts the log into 4 episodes of 24 rows" in told and "judge" in told
    assert len(load(path, episode_length="24 rows")) == 92
    with pytest.raises(DataError, match="episode_length '12h' needs the time of steps"):
        load(path, episode_length="12h")


def test_episodes_that_are_known_are_cut_from_their_own_beginning(tmp_path: Path) -> None:
    lines = [f"R{row // 10},{row},{row % 3},0" for row in range(20)]
    path = write(tmp_path / "log.csv", "\n".join(["run,T,valve,score", *lines]) + "\n")
    data = load(path, {**COLUMNS, "episode": "run"}, episode_length="4 rows")
    assert [row for row in range(20) if row not in data.obs[:, 0].tolist()] == [3, 7, 9, 13, 17, 19]


@pytest.mark.parametrize(
    "wrong", ["", "24", "h", "1 rows", "0h", "shifts", "shifts 25:00", "shifts 14:00,06:00"]
)
def test_a_length_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"episode_length must be a time .* got"):
        parse_episode_length(wrong)


def test_a_folder_is_copied_to_another_file_system(tmp_path: Path) -> None:
    folder, target = tmp_path / "found", tmp_path / "bucket" / "results"
    (folder / "runs" / "bc").mkdir(parents=True)
    (folder / "auto.html").write_text("page")
    (folder / "runs" / "bc" / "weights").write_bytes(b"\x00\x01")
    (tmp_path / "secret").write_text("not found here")
    for name, place in (("outside", tmp_path), ("file", tmp_path / "secret")):
        (folder / name).symlink_to(place)
    for _ in range(2):  # again, over what is there
        copy_folder(folder, f"file://{target}")
    copies = sorted(str(each.relative_to(target)) for each in target.rglob("*") if each.is_file())
    assert copies == ["auto.html", "runs/bc/weights"]
    assert (target / "runs/bc/weights").read_bytes() == b"\x00\x01"
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^file://.*/file/x: cannot be written \("):
        copy_folder(folder, f"file://{tmp_path}/file/x")
    for address, said in (("results", "copy_to must be an address"), ("s3://a:b@bucket/x", "a password")):
        with pytest.raises(DataError, match=said):
            check_target(address)
