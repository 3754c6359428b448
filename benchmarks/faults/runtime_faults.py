"""Faults that the tests of the runtime must notice: what each breaks, where, by which change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`old` stands once in `file` (under src/rl_training); `first` names the tests to run first."""

    breaks: str
    file: str
    old: str
    new: str
    first: str


LOOP, SCHEDULE = "runtime/loop.py", "runtime/callbacks.py"
EVALUATION, BASE = "runtime/callbacks.py", "runtime/callbacks.py"
RUN, SAVING, LOG = "runtime/callbacks.py", "runs/saving.py", "runs/metrics.py"
COLLECTOR, COLLECTION = "runtime/collect.py", "runtime/replay.py"
ROWS = "runtime/replay.py"
LEARNER, TRAINING = "algorithms/learner.py", "runs/train.py"
PLANS = "runs/train.py"
UNITS = "Units(self.rewards, self.observation_steps, self.action_limit)"

FAULTS = [
    # schedules
    Fault("warm-up: off by one", SCHEDULE, "(step + 1) / warmup_steps", "step / warmup_steps", "schedules"),
    Fault("warm-up: ignored", SCHEDULE, "if step < warmup_steps:", "if step < 0:", "schedules"),
    Fault(
        "schedule: starts before the warm-up is over",
        SCHEDULE,
        "(step - warmup_steps) / max(1, schedule_steps - warmup_steps)",
        "step / max(1, schedule_steps)",
        "schedules",
    ),
    Fault(
        "schedule: off by one",
        SCHEDULE,
        "(step - warmup_steps) /",
        "(step + 1 - warmup_steps) /",
        "schedules",
    ),
    Fault("schedule: runs past its end", SCHEDULE, "done = min(1.0, ", "done = max(0.0, ", "schedules"),
    Fault(
        "schedule: another cosine",
        SCHEDULE,
        "0.5 * (1.0 + math.cos(math.pi * done))",
        "math.cos(0.5 * math.pi * done)",
        "schedules",
    ),
    Fault(
        "schedule: resumed run spans its own total",
        TRAINING,
        "schedule_steps=stored or plan.settings",
        "schedule_steps=plan.settings",
        "schedules",
    ),
    Fault(
        "groups: by the optimiser's name",
        LEARNER,
        'if group in ("all", self.groups[name]):',
        'if group in ("all", name):',
        "schedules",
    ),
    Fault("groups: all follow", LEARNER, 'if group in ("all", self.groups[name]):', "if group:", "schedules"),
    Fault(
        "learning rates: swapped",
        LEARNER,
        'self.actor_learning_rate if group == "actor" else self.critic_learning_rate',
        'self.critic_learning_rate if group == "actor" else self.actor_learning_rate',
        "schedules",
    ),
    Fault(
        "learning rates: not restored",
        LEARNER,
        'optimizer.learning_rate.copy_(state["learning_rates"][name])',
        "pass",
        "schedules",
    ),
    # stopping
    Fault(
        "patience: off by one", EVALUATION, "self.waited >= self.rule", "self.waited > self.rule", "stopping"
    ),
    Fault(
        "patience: not renewed",
        EVALUATION,
        "self.best, self.waited = value, 0",
        "self.best = value",
        "stopping",
    ),
    Fault(
        "patience: lost on resume",
        EVALUATION,
        'self.waited = state["best"], state["waited"]',
        'self.waited = state["best"], 0',
        "stopping",
    ),
    Fault("min_delta: sign", EVALUATION, "> self.rule.min_delta", "> -self.rule.min_delta", "stopping"),
    Fault(
        "min_delta: reached is progress",
        EVALUATION,
        "> self.rule.min_delta",
        ">= self.rule.min_delta",
        "stopping",
    ),
    Fault("mode: ignored", EVALUATION, '1.0 if self.rule.mode == "max" else -1.0', "1.0", "stopping"),
    Fault(
        "target: must be passed",
        EVALUATION,
        "sign * value >= sign * self.rule.target",
        "sign * value > sign * self.rule.target",
        "stopping",
    ),
    Fault(
        "closing evaluation: counts as scheduled",
        EVALUATION,
        "self.evaluate(run, scheduled=False)",
        "self.evaluate(run, scheduled=True)",
        "stopping",
    ),
    Fault(
        "budget: one too many",
        LOOP,
        "self.counters.gradient_steps >= self.update_budget",
        "self.counters.gradient_steps > self.update_budget",
        "stopping",
    ),
    Fault("budget: spent again after a resume", LOOP, "self._keep_to_budget()  # a", "# a", "stopping"),
    Fault(
        "budget: epochs rounded down",
        PLANS,
        "math.ceil(rows / settings.batch_size)",
        "(rows // settings.batch_size)",
        "stopping",
    ),
    Fault("budget: the larger one", PLANS, "min(given) if given", "max(given) if given", "stopping"),
    Fault(
        "stop: the last reason counts",
        RUN,
        "self.stop_reason or reason",
        "reason or self.stop_reason",
        "stopping",
    ),
    Fault(
        "stop inside a round: the rest of it is lost",
        LOOP,
        "        if not counters.due_updates:\n",
        "        if True:\n",
        "stopping",
    ),
    # collection
    Fault(
        "learning starts: off by one",
        LOOP,
        "counters.env_steps > phase.learning_starts",
        "counters.env_steps >= phase.learning_starts",
        "collection",
    ),
    Fault(
        "updates: per round instead of per transition",
        LOOP,
        "phase.updates_per_step * stored",
        "phase.updates_per_step",
        "collection",
    ),
    Fault(
        "updates: owed ones dropped",
        LOOP,
        "counters.due_updates += counters.owed_updates",
        "counters.due_updates += phase.updates_per_step * stored",
        "collection",
    ),
    Fault(
        "train frequency: counts transitions",
        LOOP,
        "counters.rounds % phase.train_frequency",
        "counters.env_steps % phase.train_frequency",
        "collection",
    ),
    Fault(
        "random phase: one too long",
        COLLECTION,
        "explores = stored >= self.learning_starts",
        "explores = stored > self.learning_starts",
        "collection",
    ),
    Fault(
        "rewards: stored as they come",
        ROWS,
        "rewards if self.rewards.is_identity else self.rewards.apply_to_array(rewards)",
        "rewards",
        "collection",
    ),
    Fault(
        "rewards: clipped before the shift",
        "core/transforms.py",
        "transformed = values * self.scale + self.shift\n"
        "        return transformed if self.clip is None else transformed.clamp(*self.clip)",
        "transformed = values * self.scale\n"
        "        return (transformed if self.clip is None else transformed.clamp(*self.clip)) + self.shift",
        "collection",
    ),
    Fault(
        "dones: from truncation",
        COLLECTOR,
        "self.terminated.astype(np.float32)",
        "(self.terminated | self.truncated).astype(np.float32)",
        "collection",
    ),
    Fault(
        "next observation: that of the next episode",
        COLLECTOR,
        "observations = next_obs.copy()",
        "observations = next_obs",
        "collection",
    ),
    Fault(
        "episode return: not begun anew",
        COLLECTOR,
        "            self._returns[index] = 0.0\n",
        "",
        "collection",
    ),
    Fault(
        "episode seeds: all the same",
        COLLECTOR,
        "self._seed_of(index, episode + 1)",
        "self._seed_of(index, 0)",
        "collection",
    ),
    Fault(
        "episode mean: over steps",
        LOG,
        "for episode in episodes) / len(episodes)",
        "for episode in episodes) / sum(episode.length for episode in episodes)",
        "collection",
    ),
    Fault(
        "batches: never the newest row",
        ROWS,
        "(unit * len(rows)).long()",
        "(unit * max(1, len(rows) - 1)).long()",
        "collection",
    ),
    # evaluation, checkpoints, callbacks
    Fault(
        "evaluation: eval_seed ignored",
        RUN,
        "config.seed if settings.eval_seed is None else settings.eval_seed",
        "config.seed",
        "evaluation",
    ),
    Fault(
        "evaluation: the same episode again and again",
        "runtime/evaluate.py",
        'episode_seed(seed, "eval", episode)',
        'episode_seed(seed, "eval", 0)',
        "evaluation",
    ),
    Fault(
        "evaluation: always deterministic",
        RUN,
        "deterministic=settings.eval_deterministic",
        "deterministic=True",
        "evaluation",
    ),
    Fault(
        "evaluation: the last step twice",
        EVALUATION,
        "self.evaluated_step != run.global_step and",
        "True and",
        "evaluation",
    ),
    Fault("evaluation: also after Ctrl-C", EVALUATION, " and not run.interrupted", "", "evaluation"),
    Fault(
        "evaluators: not asked without an environment",
        EVALUATION,
        "return run.can_evaluate or bool(run.evaluators)",
        "return run.can_evaluate",
        "evaluation",
    ),
    Fault(
        "interval: misses a mark that is jumped over",
        BASE,
        "step // self.every == self.last // self.every",
        "step % self.every",
        "evaluation",
    ),
    Fault(
        "interval: counts from the last time",
        BASE,
        "step // self.every == self.last // self.every",
        "step - self.last < self.every",
        "evaluation",
    ),
    Fault(
        "best checkpoint: the last of equals", SAVING, "value <= self.best", "value < self.best", "evaluation"
    ),
    Fault(
        "best checkpoint: forgotten on resume",
        SAVING,
        'self.best = None if state["best"] is None else float(state["best"])',
        "self.best = None",
        "evaluation",
    ),
    Fault(
        "checkpoints: replay rows left in old ones",
        SAVING,
        "list_checkpoints(run.run_dir)[:-1]",
        "list_checkpoints(run.run_dir)[:-2]",
        "evaluation",
    ),
    Fault(
        "checkpoints: one too many kept",
        "core/checkpoints.py",
        "list_checkpoints(run_dir)[:-keep]",
        "list_checkpoints(run_dir)[: -keep - 1]",
        "evaluation",
    ),
    Fault("callbacks: state by class alone", RUN, 'f"{kind}.{seen[kind]}"', 'f"{kind}.0"', "callbacks"),
    Fault(
        "run.log: numbers stay for later rows",
        LOG,
        "own, run.logged = run.logged, {}",
        "own = run.logged",
        "callbacks",
    ),
    Fault(
        "resume: results forgotten", TRAINING, 'run.results = dict(saved["results"])', "pass", "evaluation"
    ),
    Fault(
        "resume: batches begin anew",
        LOOP,
        'self.batches.load_state_dict(state["streams"]["batches"])',
        "pass",
        "evaluation",
    ),
    Fault(
        "resume: episodes not yet logged are forgotten",
        COLLECTION,
        'self.episodes = [[FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]]',
        "self.episodes = [[]]",
        "collection",
    ),
    Fault(
        "compile: online updates counted as steps",
        TRAINING,
        "phase.steps * phase.updates_per_step",
        "phase.steps",
        "compiling",
    ),
    Fault(
        "compile: a resumed run chooses anew",
        "runtime/loop.py",
        "        wanted = stored\n",
        "        pass\n",
        "compiling",
    ),
    # what no test noticed when it was planted from outside
    Fault(
        "units: an online run beside data keeps raw observations",
        "runtime/sources.py",
        UNITS,
        UNITS.replace(
            "self.observation_steps", "() if type(self) is OnlineSource else self.observation_steps"
        ),
        "unnoticed",
    ),
    Fault(
        "units: an online run beside data keeps raw rewards",
        "runtime/sources.py",
        "self.take_data(prepared)\n        self.action_limit",
        "self.rewards = (self.rewards, self.take_data(prepared))[0]\n        self.action_limit",
        "unnoticed",
    ),
    Fault(
        "units: an online run without data keeps raw rewards",
        "runtime/sources.py",
        "self.rewards = reward_transform(settings)",
        "self.rewards = reward_transform(type(settings)())",
        "unnoticed",
    ),
    Fault(
        "units: fine-tuning keeps raw observations",
        "runtime/sources.py",
        UNITS,
        UNITS.replace(
            "self.observation_steps", "() if type(self) is OfflineSource else self.observation_steps"
        ),
        "unnoticed",
    ),
    Fault(
        "units: fine-tuning keeps raw rewards",
        "runtime/sources.py",
        UNITS,
        UNITS.replace("self.rewards", "RewardTransform() if type(self) is OfflineSource else self.rewards"),
        "unnoticed",
    ),
    Fault(
        "units: collected rewards stay raw",
        ROWS,
        "rewards if self.rewards.is_identity else self.rewards.apply_to_array(rewards)",
        "rewards",
        "unnoticed",
    ),
    Fault(
        "units: collected observations stay raw",
        ROWS,
        '"obs": self._observations(step.obs)',
        '"obs": step.obs',
        "unnoticed",
    ),
    Fault(
        "units: collected next observations stay raw",
        ROWS,
        '"next_obs": self._observations(step.next_obs)',
        '"next_obs": step.next_obs',
        "unnoticed",
    ),
    Fault(
        "exploration: leaves [-1, 1]",
        COLLECTION,
        "(chosen + self.noise * noise).clamp(-1.0, 1.0)",
        "chosen + self.noise * noise",
        "unnoticed",
    ),
    Fault(
        "guard: reset does nothing",
        "policies/acting.py",
        "self.last[chosen], self.state[chosen], self.first[chosen] = np.nan, 0.0, True",
        "self.state[chosen], self.first[chosen] = 0.0, True",
        "unnoticed",
    ),
    Fault(
        "guard: a live loop holds across episodes",
        "runtime/live.py",
        "self.controller.reset()",
        "pass",
        "unnoticed",
    ),
    Fault(
        "guard: limit from its own rows",
        "policies/guard_fitting.py",
        "np.percentile(novelties(plain, held_out)",
        "np.percentile(novelties(plain, points)",
        "unnoticed",
    ),
    Fault(
        "guard: fitted to the episodes held out",
        "runs/export.py",
        "return _points(first, config.actions), _points(second, config.actions)",
        "return _points(part, config.actions), _points(second, config.actions)",
        "unnoticed",
    ),
    Fault(
        "guard: fitted to the rows held out",
        "runs/export.py",
        "return points[order[held:]], points[order[:held]]",
        "return points, points[order[:held]]",
        "unnoticed",
    ),
    Fault(
        "fine-tuning: an early checkpoint taken for a finished one",
        "runs/resume.py",
        '"total_timesteps": max(1, run.facts.counters.global_step)',
        '"total_timesteps": config.total_timesteps',
        "unnoticed",
    ),
    Fault(
        "tables: a value held across an end that only a flag marks",
        "data/tables/steps.py",
        "missing = _hold(steps, ends | _flag_ends(steps))",
        "missing = _hold(steps, ends)",
        "unnoticed",
    ),
    Fault(
        "tables: a gap of exactly max_gap ends an episode",
        "data/tables/steps.py",
        "(elapsed > settings.max_gap)",
        "(elapsed >= settings.max_gap)",
        "unnoticed",
    ),
    Fault(
        "tables: the first row of a file blamed on the file before",
        "data/tables/build.py",
        'np.searchsorted(self.starts, row, side="right")',
        'np.searchsorted(self.starts, row, side="left").clip(1)',
        "unnoticed",
    ),
    Fault(
        "tables: decimal comma without evidence",
        "data/tables/text.py",
        'return "," if commas > points else "."',
        'return "," if commas >= points else "."',
        "unnoticed",
    ),
    Fault(
        "tables: empty actions not proposed to be held",
        "data/tables/guess.py",
        "used = [*columns.observations, *columns.actions, *",
        "used = [*columns.observations, *",
        "unnoticed",
    ),
    Fault(
        "RLDS: a step without is_last runs into the next episode",
        "data/formats/rlds.py",
        "counts = ~last[:-1] & ~first[1:]",
        "counts = ~last[:-1]",
        "unnoticed",
    ),
    Fault(
        "RLDS: no end where is_last is missing",
        "data/formats/rlds.py",
        "last[steps + 1] | ~np.append(counts[1:], False)[steps]",
        "last[steps + 1]",
        "unnoticed",
    ),
    Fault(
        "sweep: processes for what is done",
        "sweeps/sweep.py",
        "for task in tasks if not task.done]",
        "for task in tasks]",
        "unnoticed",
    ),
    Fault(
        "sweep: stopped by a signal counts as done",
        "sweeps/status.py",
        'if not reason.startswith("signal"):',
        'if reason != "signal":',
        "unnoticed",
    ),
    Fault(
        "sweep: the return of a finished run is not read",
        "sweeps/status.py",
        'Status("done", step, number(metrics.get("eval_return_mean")), metrics=metrics)',
        'Status("done", step, None, metrics=metrics)',
        "unnoticed",
    ),
    Fault(
        "sweep: a saved run begins anew",
        "sweeps/workers.py",
        "if run.status.can_resume:",
        "if False:",
        "unnoticed",
    ),
    Fault(
        "sweep: one attempt too many",
        "sweeps/workers.py",
        "attempt >= retries",
        "attempt > retries",
        "unnoticed",
    ),
    Fault("sweep: never tried again", "sweeps/workers.py", "attempt >= retries", "attempt >= 0", "unnoticed"),
    Fault(
        "sweep: small networks not stacked",
        "sweeps/plan.py",
        "max(widths) <= SMALL_LAYER",
        "max(widths) < SMALL_LAYER",
        "unnoticed",
    ),
    Fault(
        "sweep: long runs stacked unasked",
        "sweeps/plan.py",
        "config.total_timesteps <= SHORT_RUN",
        "config.total_timesteps <= 2 * SHORT_RUN",
        "unnoticed",
    ),
    Fault(
        "sweep: groups chosen anew",
        "sweeps/plan.py",
        "for names in _stored_groups(folder):",
        "for names in []:",
        "unnoticed",
    ),
    Fault(
        "sweep: variants without the grid",
        "sweeps/plan.py",
        "{**own, **overrides}",
        "own",
        "unnoticed",
    ),
]
