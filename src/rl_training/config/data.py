"""The dataset fields of a config: which kinds of data there are, where it lies, what is done to it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from rl_training.config.limits import Limit, parse_episode_length, parse_limits
from rl_training.config.model import ConfigModel, setting
from rl_training.config.run import ControlFields, FineTuneFields, RewardFields, SelfJudgingFields, ShareFields
from rl_training.core.errors import ConfigError, UserError, did_you_mean
from rl_training.core.expressions import MAX_ROWS_BACK, split_list
from rl_training.core.files import is_database, password_problem
from rl_training.core.registry import BUILTIN_FORMATS, Registry
from rl_training.core.schema import MAX_N_STEP, MAX_ROWS
from rl_training.core.spaces import Choice

THOUSANDS = (".", ",", "'", " ")
"""Marks that may stand between thousands."""

TABLE_KINDS = ("table", "csv", "parquet", "feather", "jsonl")
"""Formats whose columns have names of their own."""

FORMATS: Registry[object] = Registry("dataset_kind", "rl_training.formats", BUILTIN_FORMATS)
"""Formats by name, each a `rl_training.data.formats.Format`; a config is checked without importing any."""

COLLECTED_KINDS = ("random", "checkpoint")
"""Kinds whose rows are collected in an environment."""

AUTO = "auto"
MIX = "mix"
NO_DATA = "none"
"""An online run without data beside what it collects."""


def source_kinds() -> tuple[str, ...]:
    """Every kind that one part of a dataset can have."""
    return (AUTO, *COLLECTED_KINDS, *FORMATS.names())


def kind_problem(kind: str, *, mix: bool) -> str | None:
    """What is wrong with a `dataset_kind`; a `mix` cannot be part of a mix."""
    if kind in FORMATS.builtin or kind in (AUTO, *COLLECTED_KINDS) or (mix and kind == MIX):
        return None
    known = (*source_kinds(), *((MIX,) if mix else ()))
    if kind in known:
        return None
    return f"dataset_kind must be one of {', '.join(known)}, got {kind!r}{did_you_mean(kind, known)}"


_KINDS = f"{', '.join(COLLECTED_KINDS)}, {', '.join(FORMATS.builtin)}, or auto (recognises its format)"

DEFAULT_ROWS = 10_000
"""Rows that `random` and `checkpoint` collect when `dataset_size` is not given."""


class ColumnsConfig(ConfigModel):
    """Which columns of a table are what; `obs_*` stands for all that match, ordered by their numbers."""

    section: ClassVar[str] = "columns"

    observations: tuple[str, ...] = setting(
        (), "columns, or formulas such as T - T_set or lags(valve, 3), that make up the observation, in order"
    )
    actions: tuple[str, ...] = setting(
        (), "columns that make up the action, in this order; pump{off,on} is a choice among these levels"
    )
    levels: dict[str, tuple[str | float, ...]] = setting(
        {}, "levels of action columns that are choices, as the log writes them, such as {pump: [0, 1]}"
    )
    reward: str | None = setting(
        None, "reward of the step, a column or a formula; a log without one can only train bc"
    )
    next_observations: tuple[str, ...] = setting(
        (), "the observation after the step; without them it is the next row of the episode"
    )
    episode: str | None = setting(None, "number or text that is the same in all rows of an episode")
    time: str | None = setting(None, "time of the step: a number, a date and time, or ISO text")
    terminated: str | None = setting(
        None, "flag of rows where the task itself ended (0/1, true/false, yes/no), or a formula: level > 2.4"
    )
    truncated: str | None = setting(None, "flag of rows where only the recording ended")
    behavior_logprobs: str | None = setting(None, "log-probability of the action under the logging policy")
    operator: str | None = setting(
        None, "who acted: a name or number of a shift, a person, a controller; judged beside the policies"
    )
    fields: dict[str, tuple[str, ...]] = setting(
        {}, "columns of further fields, such as {energy: kWh}; fields are declared with register_field"
    )
    units: dict[str, str] = setting({}, "unit of a column, such as {T_tank: °C}; shown wherever it is named")

    @model_validator(mode="before")
    @classmethod
    def _levels_stand_with_actions(cls, values: object) -> object:
        return values if not isinstance(values, Mapping) else {**values, **split_levels(values)}

    @field_validator("observations", "actions", "next_observations", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("fields", mode="before")
    @classmethod
    def _one_name_of_a_field_is_a_list(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        words = {name: [given] if isinstance(given, str) else given for name, given in value.items()}
        return {name: tuple(given) if isinstance(given, list) else given for name, given in words.items()}


def columns_among(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Of keywords in one list: those that name columns, unless empty, and the other dataset fields."""
    known = ColumnsConfig.model_fields
    columns = {name: value for name, value in given.items() if name in known and value}
    return columns, {name: value for name, value in given.items() if name not in known}


def split_levels(values: Mapping[str, object]) -> dict[str, object]:
    """`actions` and `levels` of what a user wrote: `pump{0,1}` and {name: pump, levels: [0, 1]} hold both."""
    given = values.get("actions", ())
    levels = dict(levels) if isinstance(levels := values.get("levels", {}), Mapping) else {}
    names = []
    for each in (
        [given] if isinstance(given, str | Mapping) else given if isinstance(given, list | tuple) else ()
    ):
        name, own = each, None
        if isinstance(each, Mapping) and each.keys() == {"name", "levels"}:
            name, own = each["name"], each["levels"]
        elif isinstance(each, str) and each.endswith("}"):
            name, _, text = each[:-1].partition("{")
            name, own = name.strip(), [plain_level(word) for word in split_list(text)]
        names.append(name)
        if own is not None:
            levels[name] = own
    for name, own in levels.items():
        levels[name] = check_levels(name, own)
    return {"actions": tuple(names), "levels": levels} if levels else {}


def check_levels(name: object, levels: object) -> tuple[object, ...]:
    if not isinstance(levels, list | tuple) or any(isinstance(level, bool) for level in levels):
        shown = str(levels).replace("True", "true").replace("False", "false")
        raise ValueError(
            f"levels of {name} must be a list of numbers or of names, got {shown} "
            "(YAML reads on, off, yes and no as true and false: put them in quotes)"
        )
    try:
        Choice(tuple(levels))
    except (UserError, TypeError, ValueError) as problem:
        raise ValueError(f"{problem} for {name}") from None
    return tuple(levels)


def plain_level(word: str) -> str | float:
    """A level as a number, if it reads as one."""
    text = word.strip("'\"")
    try:
        return float(text) if text == word else text
    except ValueError:
        return text


class TableFields(ConfigModel):
    """How rows of a table become steps of episodes."""

    section: ClassVar[str] = "data"

    columns: ColumnsConfig = setting(
        ColumnsConfig(), "which columns are what: observations, actions, reward, episode, time, terminated, …"
    )
    missing_values: Literal["error", "drop", "hold"] = setting(
        "error", "empty cells: refuse, drop the step and split the episode, or hold the episode's last value"
    )
    files_end_episodes: bool | None = setting(
        None,
        "whether an episode ends where its file ends; null = unless its id and its time go on in the next",
    )
    max_gap: float | None = setting(
        None, "a longer time between two rows ends the episode as a time-out (seconds for dates)", gt=0
    )
    episode_length: str | None = setting(
        None,
        "cuts a continuous log into episodes: 24h, 90min, 500 rows, day, or shifts 06:00,14:00,22:00",
    )
    time_zone: str | None = setting(
        None, "zone of clock times without one, such as Europe/Berlin: its hour that comes twice is two"
    )
    date_order: Literal["day", "month"] | None = setting(
        None, "what comes first in dates such as 03/04/2026; null = told from the dates, where they tell"
    )
    discount_by_time: bool = setting(
        False, "discount a step of duration Δt by gamma^(Δt / median Δt) instead of gamma; needs columns.time"
    )
    history: int = setting(
        0,
        "rows of the past that the policy is asked with: lags(x, history) of every observation and action",
        ge=0,
        most=MAX_ROWS_BACK,
    )
    rate: dict[str, float] = setting(
        {},
        "by how much an action may move in a step, in its units, such as {valve: 5}; its last value becomes "
        "an observation",
    )
    costs: dict[str, str] = setting(
        {},
        "what must not happen too often, by name: a column or a formula, such as {overheat: T_tank > 80}; "
        "'cost' is what an environment tells in info",
    )
    limits: dict[str, float | str] = setting(
        {}, "the most that a cost may be: {overheat: 0.01} on average per step, or {overheat: 3 per episode}"
    )
    csv_separator: str | None = setting(None, "character between cells of text tables; null = detected")
    csv_decimal: Literal[".", ","] | None = setting(None, "decimal mark of text tables; null = detected")
    csv_encoding: str | None = setting(None, "encoding of text tables, such as cp1252; null = detected")
    csv_thousands: str | None = setting(
        None, "mark between thousands of text tables (. , ' or a space); null = detected"
    )
    csv_header: bool = setting(
        True, "false: text tables have no line of names; their columns are column_1, column_2, …"
    )
    sheet: str | None = setting(None, "sheet of Excel workbooks; null = the only one that is not empty")
    missing_columns: Literal["error", "empty"] = setting(
        "error", "columns that not all files have: refuse, or take as empty cells in the files without them"
    )
    pivot: str | None = setting(
        None,
        "tag=value: a narrow table with a row per reading is made wide, a column per tag, with columns.time",
    )
    pivot_step: str | None = setting(
        None,
        "time between rows of a pivot, such as 30s or 5min; null = a row at every time of a reading",
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _columns_are_built(cls, value: object) -> object:
        return ColumnsConfig.build(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _table_is_readable(self) -> Self:
        for name, rate in self.rate.items():
            if not 0.0 < rate < float("inf"):
                raise ValueError(f"rate of {name} must be > 0, got {rate:g}")
        parse_limits(self.limits)
        if self.episode_length is not None:
            parse_episode_length(self.episode_length)
        if self.csv_thousands is not None and self.csv_thousands not in THOUSANDS:
            raise ValueError(f"csv_thousands must be . , ' or a space, got {self.csv_thousands!r}")
        if self.pivot is not None and not all(self.pivot.partition("=")):
            raise ValueError(f"pivot must be TAG=VALUE, two columns, got {self.pivot!r}")
        if self.pivot_step is not None and (
            self.pivot is None or parse_episode_length(self.pivot_step).seconds is None
        ):
            raise ValueError(
                f"pivot_step must be a time such as 30s, beside pivot: tag=value, got {self.pivot_step!r}"
            )
        if self.csv_separator is not None and len(self.csv_separator) != 1:
            raise ValueError(f"csv_separator must be a single character, got {self.csv_separator!r}")
        return self

    @property
    def stated_limits(self) -> tuple[Limit, ...]:
        """The limits as they were read."""
        return parse_limits(self.limits)


ASKED_FIELDS = ("history", "rate", "costs", "limits")
"""What a policy is asked with beside what is seen, how fast it may move, what must not happen too often: for
any data."""

TABLE_FIELDS = tuple(
    name for name in TableFields.model_fields if name not in ("discount_by_time", *ASKED_FIELDS)
)
"""What only a table with columns of the user's own needs."""


class DatasetSource(TableFields):
    """Where rows come from; shared by a whole dataset and by one part of a mix."""

    dataset_path: str | None = setting(
        None,
        "file, or for tables also a folder, a pattern such as logs/*.csv or a database such as "
        "postgresql://host/db or sqlite:plant.db; for minari the directory that holds the datasets",
    )
    dataset_id: str | None = setting(None, "id of a local Minari dataset, such as D4RL/door/human-v2")
    query: str | None = setting(None, "rows of a database: a query, such as select … order by run, time")
    table: str | None = setting(
        None, "rows of a database: all of a table or view, sorted by columns.episode and columns.time"
    )
    query_timeout: float = setting(600.0, "seconds after which a database is no longer waited for", gt=0)
    dataset_size: int | None = setting(
        None,
        "rows: collected by random and checkpoint (null = 10000), first ones of a file, total of a mix",
        ge=1,
        most=MAX_ROWS,
    )
    dataset_seed: int = setting(0, "seed of the data: collection, and the rows that a mix draws", ge=0)
    dataset_checkpoint: str | None = setting(
        None, "run directory or checkpoint whose policy the kind checkpoint rolls out"
    )
    dataset_noise: float = setting(
        0.0, "standard deviation of the Gaussian noise on rolled-out actions, in units of [-1, 1]", ge=0
    )
    dataset_random_share: float = setting(
        0.0, "share of rolled-out actions that are replaced by uniform random ones", ge=0, le=1
    )

    @model_validator(mode="after")
    def _place_is_sound(self) -> Self:
        place = self.dataset_path or ""
        if problem := password_problem(place):
            raise ValueError(problem)
        if self.query is not None and self.table is not None:
            raise ValueError(f"query and table must not be given together, got table {self.table!r}")
        for name in ("query", "table"):
            elsewhere = (place or self.dataset_id) and not is_database(place)
            if getattr(self, name) is not None and elsewhere:
                raise ValueError(
                    f"{name} needs a database as dataset_path (--data), such as postgresql://host/db or "
                    "sqlite:plant.db"
                )
        return self

    @property
    def rows_to_collect(self) -> int:
        return DEFAULT_ROWS if self.dataset_size is None else self.dataset_size


class DatasetPart(DatasetSource):
    """One part of a mix."""

    dataset_kind: str = setting(..., f"where the part comes from: {_KINDS}")
    weight: float | None = setting(None, "share of the mix relative to the other parts' weights", gt=0)
    rows: int | None = setting(
        None, "rows that the mix draws from the part (instead of a weight)", ge=1, most=MAX_ROWS
    )

    @model_validator(mode="after")
    def _source_is_named(self) -> Self:
        if problems := _source_problems(self.dataset_kind, self):
            raise ValueError("\n".join(problems))
        return self


class OfflineDataFields(DatasetSource, RewardFields):
    """Every dataset field of an offline algorithm's `algo_kwargs`."""

    dataset_kind: str = setting(
        "random",
        f"where the data comes from: mix, {_KINDS}; where a path or id is given, auto is the default",
    )
    dataset_parts: tuple[DatasetPart, ...] = setting(
        (), "parts of the kind mix: mappings of these dataset_ fields with a `weight` or `rows` each"
    )
    dataset_in_memory: bool = setting(
        True, "false keeps the rows on disk, memory-mapped from a flat cache that processes share"
    )
    normalize_reward: bool = setting(
        False, "first scale rewards by 1000 / (largest - smallest episode return), as IQL does"
    )
    returns_to_go: Literal["auto", "given"] = setting(
        "auto", "auto computes them where the algorithm needs them; given takes those of the data as they are"
    )
    failure_reward: float | None = setting(
        None,
        "raw reward of failing: an episode of nothing else gets returns-to-go failure / (1 - gamma) (Cal-QL)",
    )
    episodes_within_limits: bool = setting(
        False, "keep only episodes that kept every one of limits: what bc then imitates is safe"
    )
    top_fraction: float = setting(1.0, "share of episodes kept, those with the highest return", gt=0, le=1)
    n_step: int = setting(1, "steps summed into one transition", ge=1, most=MAX_N_STEP)
    validation_share: float | Literal["auto"] = setting(
        0.0,
        "share of whole episodes held out of training, drawn with dataset_seed; auto: a fifth, and of fewer "
        "than 100 episodes more, so that a judgement has the 20 that it needs where 40 were logged",
        ge=0,
        lt=1,
    )
    normalize_observations: bool = setting(
        False, "(obs - mean) / (std + 1e-3) over the data, saved with the policy"
    )
    action_clip: float | None = setting(
        None, "largest magnitude of a data action scaled to [-1, 1], such as 0.99999", gt=0, le=1
    )
    out_of_bounds: Literal["error", "clip", "rescale"] = setting(
        "error", "data actions outside the bounds: refuse, clip, or map the data's own range to the bounds"
    )
    action_bounds: Literal["stated", "data"] = setting(
        "stated",
        "data takes the smallest and largest logged action as the bounds, where nobody knows better ones",
    )
    action_low: tuple[float, ...] | None = setting(
        None, "lower action bounds, when neither an environment nor the data gives them"
    )
    action_high: tuple[float, ...] | None = setting(
        None, "upper action bounds, when neither an environment nor the data gives them"
    )
    reference_min_return: float | None = setting(
        None, "return that a normalised score of 0 stands for (usually random actions)"
    )
    reference_max_return: float | None = setting(
        None, "return that a normalised score of 100 stands for (usually an expert)"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_path_is_recognised(cls, values: object) -> object:
        """Where only a place is given, its format is found out."""
        if not isinstance(values, dict) or "dataset_kind" in values:
            return values
        given = values.get("dataset_path") is not None or values.get("dataset_id") is not None
        return {**values, "dataset_kind": AUTO} if given else values

    @field_validator("dataset_parts", mode="before")
    @classmethod
    def _parts_are_built(cls, value: object) -> object:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return value
        parts, mistakes = [], []
        for index, part in enumerate(value):
            try:
                parts.append(DatasetPart.build(part) if isinstance(part, Mapping) else part)
            except ConfigError as error:
                mistakes += [f"dataset_parts[{index}].{line}" for line in str(error).splitlines()]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return tuple(parts)

    @model_validator(mode="after")
    def _recipe_is_complete(self) -> Self:
        problems = [*self._recipe_problems(), *self._range_problems()]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _recipe_problems(self) -> list[str]:
        if self.dataset_kind != MIX:
            parts = ["dataset_parts is used by dataset_kind 'mix' only"] if self.dataset_parts else []
            return parts + _source_problems(self.dataset_kind, self, mix=True)
        if unused := _unused_fields(MIX, self):
            return [f"{name} of a mix is set in each part of dataset_parts" for name in unused]
        for name in ASKED_FIELDS:
            if any(getattr(part, name) for part in self.dataset_parts):
                return [f"{name} of a mix is set once, beside dataset_parts, for all of them"]
        if self.discount_by_time:
            return ["discount_by_time of a mix is set in each part of dataset_parts"]
        if len(self.dataset_parts) < 2:
            return [f"dataset_parts must have at least 2 parts, got {len(self.dataset_parts)}"]
        chosen = [(part.weight is not None, part.rows is not None) for part in self.dataset_parts]
        if len(set(chosen)) > 1 or chosen[0] == (True, True):
            return ["dataset_parts must all have a weight, or all have rows, or all have neither"]
        if self.dataset_size is not None and not chosen[0][0]:
            return ["dataset_size of a mix needs a weight in every part of dataset_parts"]
        return []

    def _range_problems(self) -> list[str]:
        problems = []
        if self.episodes_within_limits and not self.limits:
            problems.append("episodes_within_limits needs limits, such as limits: {overheat: 0.01}")
        if (self.action_low is None) != (self.action_high is None):
            problems.append("action_low and action_high must be given together")
        if self.action_low is not None and self.action_bounds == "data":
            problems.append("action_bounds must be 'stated' where action_low and action_high are given")
        minimum, maximum = self.reference_min_return, self.reference_max_return
        if (minimum is None) != (maximum is None):
            problems.append("reference_min_return and reference_max_return must be given together")
        elif minimum is not None and maximum is not None and not minimum < maximum:
            problems.append(f"reference_max_return must be > reference_min_return ({minimum}), got {maximum}")
        return problems


class OfflineFields(ControlFields, FineTuneFields, SelfJudgingFields, OfflineDataFields):
    """How an offline run gets its data and trains on it, and how it goes on in an environment."""


class OnlineDataFields(OfflineDataFields, ShareFields):
    """Logged data beside what an online run collects (RLPD); none unless `dataset_kind` says so."""

    dataset_kind: str = setting(
        NO_DATA, f"where data beside the collected transitions comes from: none, mix, {_KINDS}"
    )

    def _recipe_problems(self) -> list[str]:
        return [] if self.dataset_kind == NO_DATA else super()._recipe_problems()

    def _range_problems(self) -> list[str]:
        """What an online run has no use for: its environment has bounds, its updates take no returns."""
        unused = {
            "action_low": "the environment has the bounds",
            "action_high": "the environment has the bounds",
            "action_bounds": "the environment has the bounds",
            "returns_to_go": "no update takes them",
            "failure_reward": "no update takes returns-to-go",
            "episodes_within_limits": "there are no limits",
        }
        fields, words = OfflineDataFields.model_fields, {None: "null", False: "false"}
        if self.limits:
            return [
                "limits must be {} online: no algorithm learns in an environment under a limit; set penalty: "
                f"{{{next(iter(self.limits))}: …}}, or learn from a log (lion, caps)"
            ]
        problems = [
            f"{name} must be {words.get(default, default)} online ({reason}), got {getattr(self, name)!r}"
            for name, reason in unused.items()
            if getattr(self, name) != (default := fields[name].default)
        ]
        return problems or super()._range_problems()


def _unused_fields(kind: str, source: DatasetSource) -> list[str]:
    """Fields that say something which nothing of this kind listens to."""
    place, rolled_out = ("dataset_path", "dataset_id"), ("dataset_noise", "dataset_random_share")
    unused: tuple[str, ...] = ("dataset_checkpoint", *rolled_out)
    if kind in (*COLLECTED_KINDS, MIX):
        unused = (
            *TABLE_FIELDS,
            "query",
            "table",
            "query_timeout",
            *place,
            *(() if kind == "checkpoint" else unused),
        )
    return [name for name in unused if getattr(source, name) != DatasetSource.model_fields[name].default]


def _source_problems(kind: str, source: DatasetSource, *, mix: bool = False) -> list[str]:
    wrong = kind_problem(kind, mix=mix)
    if wrong is not None:
        return [wrong]
    if source.discount_by_time and kind in COLLECTED_KINDS:
        return [f"discount_by_time needs logged times, which dataset_kind '{kind}' does not have"]
    if unused := _unused_fields(kind, source):
        return [f"{name} is not used by dataset_kind '{kind}': leave it out" for name in unused]
    if kind == "random":
        return []
    if kind == AUTO:
        given = source.dataset_path is not None or source.dataset_id is not None
        return [] if given else ["dataset_path (or dataset_id) is required by dataset_kind 'auto'"]
    name = {"minari": "dataset_id", "checkpoint": "dataset_checkpoint"}.get(kind, "dataset_path")
    return [f"{name} is required by dataset_kind '{kind}'"] if getattr(source, name) is None else []
