"""The Markdown page that travels with an exported policy: what it is, how good it is, how to use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import Template

from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Facts
from rl_training.policies.scores import SeedEstimate, SeedScore, mean_interval, student_interval
from rl_training.policies.usage import CPP, LIBRARIES, PYTHON

PAGE = Template("""# $title

$summary

## What goes in, what comes out

| | |
|---|---|
| observation | $obs_dim numbers, float32, raw as $giver, shape `[batch, $obs_dim]` |
| action | $action_dim numbers, float32, in the $owner's units, inside the bounds |
| action bounds | low $low, high $high |
| inside the file | $inside |
| head | $head |
$features
## Scores

$scores

## Training

| | |
|---|---|
$training

## Limits

$limits
$guard
## Load it in Python

$libraries

```python
$python
```

## Load it in C++

```cpp
$cpp
```

Versions at export: $versions.
""")

ENVIRONMENT = {"giver": "the environment gives them", "owner": "environment"}
LOG = {"giver": "they stand in the log", "owner": "log"}

LIMITS = """- The policy is deterministic; $tried
- $watched
- `load_policy` checks the size of an observation and refuses NaN and infinity; it does not
  check units or order of features.
- $origin"""

SIMULATED = {
    "tried": "it was tried out in the environment named above and nowhere else.",
    "origin": "Scores come from simulated episodes. They say nothing about safety on hardware.",
}
UNMEASURED = {
    "tried": "it was not evaluated when it was trained.",
    "origin": "No score was measured; `rl-training evaluate` plays episodes with it.",
}
NEVER_TRIED = {
    "tried": "it was learned from a log and has never been tried out.",
    "origin": "No episode was played with it; `rl-training judge` estimates its value from a log.",
}


UNGUARDED = (
    "Observations far from the training data get an action like any other: nothing in the file notices them."
)
GUARDED = Template(
    "Observations unlike the data are noticed, not prevented: `novelty` is one more output, and beyond 1 an "
    "observation is flagged. It knows $points of $rows rows ($source) by $centres centres, not what is "
    "dangerous."
)
GUARD = Template("""
## Guard

| | |
|---|---|
| method | $method |
| looks at | $points, in the user's units |
| data | $source: $rows rows for $centres centres, $held_out_rows held out for the limit |
| limit | $percentile % of the held-out rows stay below novelty 1 (distance $threshold) |
| rows beyond the limit | $training_beyond of the training rows, $held_out_beyond of the held-out rows |
| fallback when flagged | $fallback |
""")


def model_card(
    metadata: Facts, file_name: str, format: str, seeds: Sequence[SeedScore | SeedEstimate] = ()
) -> str:
    """The page, from what is in the file and from the scores of the same config under other seeds."""
    spaces = metadata["spaces"]
    where = metadata["env_id"] or "the system that its log was recorded on"
    inside = ["observation normalisation"] if "normalize" in metadata["observation_steps"] else []
    inside += ["network", "action un-scaling", "clipping"]
    inside += ["mean and log std of the distribution"] if "log_std" in metadata["outputs"] else []
    names = {
        "file": file_name,
        "obs_dim": spaces["obs_dim"],
        "action_dim": len(spaces["action_low"]),
    }
    return PAGE.substitute(
        names | (ENVIRONMENT if metadata["env_id"] else LOG),
        title=f"{metadata['algo_class']} policy for {where}",
        summary=f"`{file_name}` acts on {where}; it was trained by {metadata['algo_class']}.",
        low=spaces["action_low"],
        high=spaces["action_high"],
        inside=", ".join(inside),
        head=metadata["actor"]["draws"],
        features=features_text(metadata),
        scores=scores_text(
            metadata,
            [each for each in seeds if isinstance(each, SeedScore)],
            [each for each in seeds if isinstance(each, SeedEstimate)],
        ),
        training=training_rows(metadata),
        limits=limits_text(metadata),
        guard=guard_text(metadata.get("guard")),
        libraries=LIBRARIES[format],
        python=Template(PYTHON[format]).substitute(names),
        cpp=Template(CPP[format]).substitute(names),
        versions=", ".join(f"{name} {version}" for name, version in metadata["versions"].items()),
    )


def features_text(metadata: Facts) -> str:
    """The numbers by name, in the order in which they go in and come out; empty where nobody named them."""
    features, spaces = FeatureNames.from_dict(metadata.get("features")), metadata["spaces"]
    if not features:
        return ""
    rows = [(f"observation {i}", name, "") for i, name in enumerate(features.listed("observation"))]
    bounds = list(zip(spaces["action_low"], spaces["action_high"], strict=True))
    rows += [
        (f"action {i}", name, f"{bounds[i][0]:g} to {bounds[i][1]:g}")
        for i, name in enumerate(features.listed("action")[: len(bounds)])
    ]
    lines = [f"| {place} | {name.replace('|', '/')} | {bound} |" for place, name, bound in rows]
    return "\n".join(["", "| place | name | bounds |", "|---|---|---|", *lines, ""])


def limits_text(metadata: Facts) -> str:
    guard, tried = metadata.get("guard"), bool(metadata["scores"].get("eval_episodes"))
    watched = UNGUARDED if guard is None else GUARDED.substitute(guard)
    known = NEVER_TRIED if metadata["env_id"] is None else SIMULATED if tried else UNMEASURED
    return Template(LIMITS).substitute(known, watched=watched)


def guard_text(guard: Facts | None) -> str:
    """The guard's method, limit and what it says of its own data."""
    if guard is None:
        return ""
    shares = {name: f"{100 * guard[name]:.2f} %" for name in ("training_beyond", "held_out_beyond")}
    numbers = {"threshold": f"{guard['threshold']:.3g}", "percentile": f"{guard['percentile']:g}"}
    told = {**guard, **shares, **numbers, "fallback": fallback_text(guard["fallback"])}
    return GUARD.substitute({name: str(value).replace("|", "/") for name, value in told.items()})


def fallback_text(fallback: Facts) -> str:
    told = {
        "none": "none: the policy's own action",
        "hold": "the last action again",
        "action": f"the action {fallback['action']}",
        "rate": f"towards the policy's action by at most {fallback['rate']} a step",
    }
    return f"{told[fallback['kind']]} (applied by `guarded()`; `action` itself is the policy's)"


def scores_text(metadata: Facts, seeds: Sequence[SeedScore], estimates: Sequence[SeedEstimate] = ()) -> str:
    """This policy's evaluation, then the other seeds of the same config; intervals are 95 % for the mean."""
    lines = [own_score(metadata)]
    if len(estimates) > 1 and not seeds:
        lines += ["", "The same config under other seeds, each estimated from the log, none measured:", ""]
        lines += ["| seed | estimated value | 90 % interval | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {each.seed} | {each.value:.4g} | [{each.low:.4g}, {each.high:.4g}] | {each.verdict} |"
            for each in estimates
        ]
        return "\n".join(lines)
    if len(seeds) > 1:
        lines += ["", "The same config under other seeds, last evaluation of each:", ""]
        lines += ["| seed | return, mean | std over episodes | episodes |", "|---|---|---|---|"]
        lines += [f"| {s.seed} | {s.mean:.1f} | {s.std:.1f} | {s.episodes} |" for s in seeds]
        interval = mean_interval([s.mean for s in seeds])
        assert interval is not None
        mean = math.fsum(s.mean for s in seeds) / len(seeds)
        lines += [
            "",
            f"Over {len(seeds)} seeds: {mean:.1f}, 95 % interval {shown_interval(interval)} (Student).",
        ]
    else:
        lines += ["", "One seed: how much returns vary between training runs is not known."]
    reference = metadata["reference_returns"]
    if reference is not None:
        lines += [
            "",
            f"Reference returns ({reference['source']}): score 0 is {reference['minimum']:.1f}, "
            f"score 100 is {reference['maximum']:.1f}.",
        ]
    return "\n".join(lines)


def estimated_score(scores: Facts) -> str:
    """What the run's judge says, and that nobody has measured it."""
    untried = "This policy was not tried out during training."
    if scores.get("judge_value") is None:
        note = scores.get("judge_note")
        return untried if note is None else f"{untried} Its value is {note}."
    value, low, high, behaviour = (scores[f"judge_{name}"] for name in ("value", "low", "high", "behaviour"))
    return (
        f"{untried} **Estimated, not measured**: value {value:.4g}, 90 % interval [{low:.4g}, {high:.4g}], "
        f"beside {behaviour:.4g} of the logged behaviour. {scores['judge_note']}"
    )


def own_score(metadata: Facts) -> str:
    scores, seed = metadata["scores"], metadata["training"]["seed"]
    mean, std, count = (scores.get(f"eval_{name}") for name in ("return_mean", "return_std", "episodes"))
    if not all(isinstance(each, int | float) for each in (mean, std, count)) or not count:
        return estimated_score(scores)
    text = f"Seed {seed}: mean return {mean:.1f} over {count} episode(s) (std {std:.1f})"
    if count > 1:
        interval = student_interval(mean, std * math.sqrt(count / (count - 1)), count)
        text += f", 95 % interval {shown_interval(interval)} over episodes of this one policy"
    score = scores.get("eval_normalized_score")
    return text + ("." if score is None else f"; normalised score {score:.1f}.")


def shown_interval(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.1f}, {interval[1]:.1f}]"


def training_rows(metadata: Facts) -> str:
    training = metadata["training"]
    rows = {
        "algorithm": f"{metadata['algo_class']} (`{metadata['algo']}`)",
        "run": training["run"] or "not kept",
        "seed": training["seed"],
        "steps": f"{training['global_step']} ({training['gradient_steps']} gradient steps)",
        **{
            f"data: {key}": value
            for key, value in (training["data"] or {}).items()
            if value is not None and key != "features"
        },
        **{
            f"setting: {key}": f"`{value}`"
            for key, value in training["config"]["algo_kwargs"].items()
            if value is not None
        },
        "trained with": ", ".join(f"{name} {version}" for name, version in training["versions"].items()),
    }
    return "\n".join(f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows.items())
