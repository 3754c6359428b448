"""The Markdown page that travels with an exported policy: what it is, how good it is, how to use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from rl_training.core.errors import markdown_text, plain_text
from rl_training.core.signals import Signals
from rl_training.core.spaces import Choice, FeatureNames, choices_from, level_text
from rl_training.core.types import Facts
from rl_training.policies.acting import COUNTED


@dataclass(frozen=True)
class SeedScore:
    """The last evaluation of one seed."""

    seed: int
    mean: float
    std: float
    episodes: int


@dataclass(frozen=True)
class SeedEstimate:
    """What the log says of one seed's policy, which nobody has tried out."""

    seed: int
    value: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class DialValue:
    """What the log says of the policy with its dial at one position."""

    dial: float
    value: float
    low: float
    high: float
    verdict: str


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean; nothing can be said from fewer than two numbers."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return student_interval(mean, math.sqrt(variance), count, level)


def student_interval(mean: float, sample_std: float, count: int, level: float = 0.95) -> tuple[float, float]:
    from scipy.stats import t  # takes half as long to import as torch

    width = float(t.ppf((1.0 + level) / 2.0, count - 1)) * sample_std / math.sqrt(count)
    return mean - width, mean + width


# Ten lines each: how a policy file is loaded, per format and language (`string.Template` texts).


_LIGHT = """import numpy as np
import rl_training

policy = rl_training.load_policy("$file")
action = policy.predict(np.zeros($obs_dim, dtype=np.float32))    # one observation
actions = policy.predict(np.zeros((4, $obs_dim)))                # a batch
assert actions.shape == (4, $action_dim)"""

_ONNX = """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("$file")
obs = np.zeros((4, $obs_dim), dtype=np.float32)
(action,) = session.run(["action"], {"obs": obs$onnx_inputs})
assert action.shape == (4, $action_dim)

# or, with checked inputs: rl_training.load_policy("$file").predict(obs)"""

_TORCH = """import torch

policy = torch.jit.load("$file")
with torch.inference_mode():
    out = policy(torch.zeros(4, $obs_dim)$torch_inputs)
action = out[0] if isinstance(out, tuple) else out
assert action.shape == (4, $action_dim)"""

_ONNX_CPP = """#include <onnxruntime_cxx_api.h>
#include <vector>

int main() {
  Ort::Env env;
  Ort::Session session(env, "$file", Ort::SessionOptions{});
  std::vector<float> obs($obs_dim);
  const int64_t shape[] = {1, $obs_dim};
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
$cpp_inputs  const float* action = result[0].GetTensorData<float>();  // $action_dim numbers
}"""

_TORCH_CPP = """#include <torch/script.h>

int main() {
  torch::jit::Module policy = torch::jit::load("$file");
  torch::NoGradGuard no_grad;
  auto out = policy.forward({torch::zeros({1, $obs_dim})$torch_cpp_inputs});
  torch::Tensor action = out.isTuple() ? out.toTuple()->elements()[0].toTensor() : out.toTensor();
  return action.size(1) == $action_dim ? 0 : 1;
}"""

_OBS_ALONE = """  auto input = Ort::Value::CreateTensor<float>(memory, obs.data(), obs.size(), shape, 2);
  const char *in[] = {"obs"}, *out[] = {"action"};
  auto result = session.Run(Ort::RunOptions{}, in, &input, 1, out, 1);
"""

_LIGHT_STEPS = """import numpy as np
import rl_training

controller = rl_training.load_policy("$file").controller()
controller.reset()                                               # an episode begins
step = controller.act(np.zeros($obs_dim))                        # the action to play now: step.action
step = controller.act(np.zeros($obs_dim), applied=step.action)   # applied: what was really done before
assert step.action.shape == ($action_dim,)"""

_ONNX_STEPS = """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("$file")
given = {"previous_action": np.array([$first_action], np.float32), "first": np.ones((1, 1), np.float32)$zeros}
for obs in np.zeros((3, 1, $obs_dim), np.float32):
    out = session.run($outputs, {"obs": obs, **given$onnx_inputs})
    given = {"previous_action": out[0], "first": np.zeros((1, 1), np.float32)$kept}
assert out[0].shape == (1, $action_dim)"""

_TORCH_STEPS = """import torch

policy = torch.jit.load("$file")
previous, first$torch_state = torch.tensor([$first_action]), torch.ones(1, 1)$torch_zeros
with torch.inference_mode():
    for obs in torch.zeros(3, 1, $obs_dim):
        out = policy(obs, previous, first$torch_state$torch_inputs)
        out = out if isinstance(out, tuple) else (out,)
        previous, first$torch_state = out[0], torch.zeros(1, 1)$torch_kept
assert out[0].shape == (1, $action_dim)"""

_CPP_STEPS = """// As in Python: give obs, previous_action, first$cpp_state at every step,
// and keep what comes out for the next one."""

PYTHON_STEPS = {"safetensors": _LIGHT_STEPS, "onnx": _ONNX_STEPS, "torchscript": _TORCH_STEPS}
"""The same of a policy with a past."""
PYTHON = {"safetensors": _LIGHT, "onnx": _ONNX, "torchscript": _TORCH}
CPP = {
    "safetensors": "// C++ programs load the ONNX form: rl-training export --format onnx --out policy.onnx\n"
    + _ONNX_CPP.replace("$file", "policy.onnx"),
    "onnx": _ONNX_CPP,
    "torchscript": _TORCH_CPP,
}
LIBRARIES = {
    "safetensors": "Needs numpy and safetensors beside this package; neither torch nor Gymnasium.",
    "onnx": "Needs numpy and onnxruntime; neither this package, torch nor Gymnasium.",
    "torchscript": "Needs torch. TorchScript is a program: load it only from a source you trust.",
}


# The Markdown page that travels with an exported policy: what it is, how good it is, how to use it.


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
$inputs$features
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

_INSIDE_CODE = str.maketrans("`|", "'/")

LIMITS = """- The policy is deterministic; $tried
- $watched
- `load_policy` checks the size of an observation, and its `predict` refuses NaN and infinity; units and
  order of features are not checked.
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
| NaN, infinity or nothing in an observation | flagged, novelty is infinite; played: $missing |
""")


def model_card(
    metadata: Facts,
    file_name: str,
    format: str,
    seeds: Sequence[SeedScore | SeedEstimate] = (),
    dials: Sequence[DialValue] = (),
) -> str:
    """The page, from what is in the file, the scores of the same config under other seeds, and what was
    judged of positions of its dial.
    """
    spaces = metadata["spaces"]
    trainer = markdown_text(metadata["algo_class"])
    where = markdown_text(metadata["env_id"] or "the system that its log was recorded on")
    inside = ["observation normalisation"] if "normalize" in metadata["observation_steps"] else []
    inside += ["network", "action un-scaling", "clipping"]
    inside += ["mean and log std of the distribution"] if "log_std" in metadata["outputs"] else []
    names = {
        "file": file_name,
        "obs_dim": spaces["obs_dim"],
        "action_dim": len(spaces["action_low"]),
        **input_lines(metadata),
        **past_lines(metadata),
    }
    remembers = metadata.get("memory") is not None
    return PAGE.substitute(
        names | (ENVIRONMENT if metadata["env_id"] else LOG),
        title=f"{trainer} policy for {where}",
        summary=f"{code(file_name)} acts on {where}; it was trained by {trainer}.",
        low=spaces["action_low"],
        high=spaces["action_high"],
        inside=", ".join(inside),
        head=markdown_text(metadata["actor"]["draws"]),
        inputs=past_text(metadata) + inputs_text(metadata),
        features=features_text(metadata),
        scores=scores_text(
            metadata,
            [each for each in seeds if isinstance(each, SeedScore)],
            [each for each in seeds if isinstance(each, SeedEstimate)],
        )
        + dials_text(dials),
        training=training_rows(metadata),
        limits=limits_text(metadata),
        guard=guard_text(metadata.get("guard")),
        libraries=LIBRARIES[format],
        python=Template((PYTHON_STEPS if remembers else PYTHON)[format]).substitute(names),
        cpp=Template(_CPP_STEPS if remembers else CPP[format]).substitute(names),
        versions=versions_text(metadata["versions"]),
    )


def code(value: object) -> str:
    """A value in the type of code, from which no mark of it can break out."""
    return f"`{' '.join(plain_text(str(value)).split()).translate(_INSIDE_CODE)}`"


def versions_text(versions: Facts) -> str:
    return markdown_text(", ".join(f"{name} {version}" for name, version in versions.items()))


def past_text(metadata: Facts) -> str:
    """Rows of a policy that is asked with its past: with what, and what a program has to hand on."""
    past = metadata.get("memory")
    if past is None:
        return ""
    signals = Signals.from_dict(past)
    asked = ", ".join(code(name) for name in signals.program.names)
    first = ", ".join(f"{value:g}" for value in signals.first_action)
    rows = [
        ("asked with", asked),
        ("`previous_action`", f"what was really done in the step before; {first} where an episode begins"),
        ("`first`", "1 where an episode begins, else 0, shape `[batch, 1]`"),
    ]
    if size := signals.program.layout.size:
        told = f"the last `next_state`, float64, shape `[batch, {size}]`; zeros where an episode begins"
        rows.append(("`state`", told))
    pairs = zip(signals.program.actions, signals.rates, strict=False)
    limits = ", ".join(f"{code(name)} by {rate:g}" for name, rate in pairs if rate is not None)
    rows += [("moves in a step", f"at most {limits}")] if limits else []
    return "".join(f"| {name} | {text} |\n" for name, text in rows)


def past_lines(metadata: Facts) -> dict[str, str]:
    """What the programs of a policy with a past are made of."""
    past = metadata.get("memory")
    if past is None:
        return {}
    signals = Signals.from_dict(past)
    size = signals.program.layout.size
    outputs = ["action", "next_state"] if size else ["action"]
    lines = {"first_action": str(list(signals.first_action)), "outputs": str(outputs).replace("'", '"')}
    state = {
        "zeros": f', "state": np.zeros((1, {size}))',
        "kept": ', "state": out[1]',
        "torch_state": ", state",
        "torch_zeros": f", torch.zeros(1, {size}, dtype=torch.float64)",
        "torch_kept": ", out[-1]",
        "cpp_state": " and state",
    }
    return lines | {name: text if size else "" for name, text in state.items()}


def inputs_text(metadata: Facts) -> str:
    """A row for each number that is chosen or counted while it runs."""
    texts = (metadata.get("counter") or {}).get("signals", ())
    counted = {name: f", {code(text)}" for name, text in zip(COUNTED, texts, strict=False)}
    return "".join(
        f"| input {code(each['name'])} | of this episode before this step{counted.get(each['name'], '')}; "
        f"{'a controller of rl_training counts it' if counted else 'yours to count'}; shape `[batch, 1]` |\n"
        if each.get("counted")
        else f"| input {code(each['name'])} | one number from {each['low']:g} to {each['high']:g}, chosen at "
        f"every step; {each['default']:g} where nobody chooses; shape `[batch, 1]` |\n"
        for each in metadata.get("inputs", ())
    )


def dials_text(dials: Sequence[DialValue]) -> str:
    """Value against dial, where positions were judged."""
    if not dials:
        return ""
    rows = "".join(
        f"| {each.dial:g} | {each.value:.4g} [{each.low:.4g}, {each.high:.4g}] | {each.verdict} |\n"
        for each in dials
    )
    return (
        "\n\nWith its dial at other positions, each judged as a policy of its own by the log; estimated, not "
        f"measured:\n\n| dial | value | beside the logged behaviour |\n|---|---|---|\n{rows}"
    )


def input_lines(metadata: Facts) -> dict[str, str]:
    """How a program gives them beside the observation, in each language; nothing where there are none."""
    inputs = [(each["name"], f"{each['default']:g}") for each in metadata.get("inputs", ())]
    many, floats = [], []
    for name, value in inputs:
        floats.append(f"  std::vector<float> {name}{{{float(value)}f}};\n")
        many.append(f"Ort::Value::CreateTensor<float>(memory, {name}.data(), 1, one, 2)")
    listed = ", ".join(["Ort::Value::CreateTensor<float>(memory, obs.data(), obs.size(), shape, 2)", *many])
    names = ", ".join(f'"{name}"' for name in ("obs", *(name for name, _ in inputs)))
    several = (
        f"  const int64_t one[] = {{1, 1}};\n{''.join(floats)}"
        f"  Ort::Value inputs[] = {{{listed}}};\n"
        f'  const char *in[] = {{{names}}}, *out[] = {{"action"}};\n'
        f"  auto result = session.Run(Ort::RunOptions{{}}, in, inputs, {1 + len(inputs)}, out, 1);\n"
    )
    return {
        "onnx_inputs": "".join(
            f', "{name}": np.full((4, 1), {value}, dtype=np.float32)' for name, value in inputs
        ),
        "torch_inputs": "".join(f", torch.full((4, 1), {float(value)})" for _, value in inputs),
        "torch_cpp_inputs": "".join(f", torch::full({{1, 1}}, {float(value)})" for _, value in inputs),
        "cpp_inputs": several if inputs else _OBS_ALONE,
    }


def levels_text(choice: Choice, shares: Facts) -> str:
    """What each number of a choice stands for, and how often the log took it."""
    words = [level_text(level) for level in choice.levels]
    means = [
        f"{number:g} = {word}" if choice.named else word
        for word, number in zip(words, choice.numbers, strict=True)
    ]
    told = [f", {shares[word]:.1%} of the log" if word in shares else "" for word in words]
    return markdown_text("; ".join(f"{mean}{share}" for mean, share in zip(means, told, strict=True)))


def features_text(metadata: Facts) -> str:
    """The numbers by name, in the order in which they go in and come out; empty where nobody named them."""
    features, spaces = FeatureNames.from_dict(metadata.get("features")), metadata["spaces"]
    if not features:
        return ""
    rows = [(f"observation {i}", name, "") for i, name in enumerate(features.listed("observation"))]
    ranges = [
        f"{low:g} to {high:g}" for low, high in zip(spaces["action_low"], spaces["action_high"], strict=True)
    ]
    names = features.listed("action")[: len(ranges)]
    shares = (metadata["training"]["data"] or {}).get("level_shares") or {}
    for index, choice in enumerate(choices_from(spaces.get("action_levels") or ())):
        if choice is not None and index < len(names):
            ranges[index] = levels_text(choice, shares.get(names[index], {}))
    rows += [(f"action {i}", name, ranges[i]) for i, name in enumerate(names)]
    lines = [f"| {place} | {markdown_text(name)} | {bound} |" for place, name, bound in rows]
    return "\n".join(["", "| place | name | bounds or levels |", "|---|---|---|", *lines, ""])


def limits_text(metadata: Facts) -> str:
    guard, tried = metadata.get("guard"), bool(metadata["scores"].get("eval_episodes"))
    watched = UNGUARDED if guard is None else GUARDED.substitute(guard, source=markdown_text(guard["source"]))
    known = NEVER_TRIED if metadata["env_id"] is None else SIMULATED if tried else UNMEASURED
    return Template(LIMITS).substitute(known, watched=watched)


def guard_text(guard: Facts | None) -> str:
    """The guard's method, limit and what it says of its own data."""
    if guard is None:
        return ""
    shares = {name: f"{100 * guard[name]:.2f} %" for name in ("training_beyond", "held_out_beyond")}
    numbers = {"threshold": f"{guard['threshold']:.3g}", "percentile": f"{guard['percentile']:g}"}
    texts = {name: markdown_text(guard[name]) for name in ("source", "method")}
    played = fallback_texts(guard["fallback"])
    kind = guard["fallback"]["kind"]
    told = {**guard, **shares, **numbers, **texts}
    when_flagged = f"{played[kind]} (applied by `guarded()`; `action` itself is the policy's)"
    return GUARD.substitute(
        told, fallback=when_flagged, missing=played["action" if kind == "action" else "hold"]
    )


def fallback_texts(fallback: Facts) -> dict[str, str]:
    """What is played under each kind of fallback, with the numbers of this one."""
    action, rate = (
        f"[{', '.join(f'{number:.6g}' for number in fallback[name] or ())}]" for name in ("action", "rate")
    )
    return {
        "none": "none: the policy's own action",
        "hold": f"the last action again; before there is one, {action}",
        "action": f"the action {action}",
        "rate": f"towards the policy's action by at most {rate} a step from the last one; before there is "
        f"one, {action}",
    }


def scores_text(metadata: Facts, seeds: Sequence[SeedScore], estimates: Sequence[SeedEstimate] = ()) -> str:
    """This policy's evaluation, then the other seeds of the same config; intervals are 95 % for the mean."""
    lines = [own_score(metadata)]
    if len(estimates) > 1 and not seeds:
        lines += ["", "The same config under other seeds, each estimated from the log, none measured:", ""]
        lines += ["| seed | estimated value | 90 % interval | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {each.seed} | {each.value:.4g} | [{each.low:.4g}, {each.high:.4g}] | "
            f"{markdown_text(each.verdict)} |"
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
            f"Reference returns ({markdown_text(reference['source'])}): score 0 is "
            f"{reference['minimum']:.1f}, score 100 is {reference['maximum']:.1f}.",
        ]
    return "\n".join(lines)


def estimated_score(scores: Facts) -> str:
    """What the run's judge says, and that nobody has measured it."""
    untried = "This policy was not tried out during training."
    note = markdown_text(str(scores.get("judge_note") or ""))
    numbers = [scores.get(f"judge_{name}") for name in ("value", "low", "high", "behaviour")]
    value, low, high, behaviour = (each if isinstance(each, int | float) else math.nan for each in numbers)
    if not math.isfinite(value + low + high + behaviour):
        return f"{untried} Its value is {note}." if note else untried
    return (
        f"{untried} **Estimated, not measured**: value {value:.4g}, 90 % interval [{low:.4g}, {high:.4g}], "
        f"beside {behaviour:.4g} of the logged behaviour. {note}"
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


def cost_text(facts: Facts) -> str:
    """What rows and episodes of the log cost, and how many episodes kept the limit."""
    told = f"{facts['per_step']:.4g} per step, {facts['per_episode']:.4g} per episode"
    if facts.get("limit") is None:
        return told
    limit = markdown_text(str(facts["limit"]))
    return f"{told}; limit {limit}, which {facts['episodes_within']:.0%} of the episodes kept"


def training_rows(metadata: Facts) -> str:
    training = metadata["training"]
    data, settings = training["data"] or {}, training["config"]["algo_kwargs"]
    costs = data.get("costs") or {}
    rows = {
        "algorithm": f"{markdown_text(metadata['algo_class'])} ({code(metadata['algo'])})",
        "run": markdown_text(training["run"] or "not kept"),
        "seed": training["seed"],
        "steps": f"{training['global_step']} ({training['gradient_steps']} gradient steps)",
        **{
            f"data: {markdown_text(key)}": markdown_text(str(value))
            for key, value in data.items()
            if value is not None and key not in ("features", "observed", "level_shares", "costs")
        },
        **{f"cost of the data: {code(name)}": cost_text(facts) for name, facts in costs.items()},
        **{f"setting: {key}": code(value) for key, value in settings.items() if value is not None},
        "trained with": versions_text(training["versions"]),
    }
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())
