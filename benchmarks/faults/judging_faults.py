"""Faults that the tests of judging and choosing must notice: what each breaks, where, by which change."""

from __future__ import annotations

from planting import Fault

TESTS = {
    "fits": "tests/judging/test_fits_by_hand.py",
    "checks": "tests/judging/test_checks_by_hand.py",
    "properties": "tests/judging/test_judge_properties.py",
    "values": "tests/judging/test_judging_values.py",
    "runs": "tests/runs/test_self_judging.py",
    "selection": "tests/judging/test_selection.py",
    "estimates": "tests/report/test_estimates.py",
    "statistics": "tests/report/test_statistics.py",
    "hidden": "tests/judging/test_hidden.py",
    "data": "tests/data/test_unused.py",
}
FIT, FQE, MODEL, CHECKS = "judging/fit.py", "judging/fqe.py", "judging/model.py", "judging/checks.py"
JUDGE, WEIGHTS = "judging/judge_policies.py", "judging/importance.py"
HIDDEN, UNUSED_ROWS = "judging/hidden.py", "data/read.py"
CANDIDATES, RUNS = "judging/candidates.py", "runs/judge.py"
DYNAMICS = "algorithms/dynamics.py"
STATISTICS, TUNE = "report/statistics.py", "sweeps/tune.py"

FAULTS = [
    # fits
    Fault(
        "resamples: all members share one",
        DYNAMICS,
        "torch.randint(episodes, (members, episodes), generator=generator)",
        "torch.randint(episodes, (1, episodes), generator=generator).expand(members, -1)",
        "fits",
    ),
    Fault(
        "kept fits: gamma is not part of the key",
        FIT,
        '*("gamma", "discount_by_time"',
        '*("discount_by_time"',
        "fits",
    ),
    Fault(
        "values: the behaviour bootstraps over a cut-off end",
        FQE,
        "(*(each.rows for each in operators), log.has_successor)",
        "(*(each.rows for each in operators), np.ones(len(log)))",
        "fits",
    ),
    Fault(
        "values: rows that are not usable count",
        FQE,
        'self.row_weights(batch["episodes"]) * batch["usable"].unsqueeze(-2)',
        'self.row_weights(batch["episodes"])',
        "fits",
    ),
    Fault(
        "values: no upper clip of targets",
        FQE,
        "target.clamp(self.config.lowest, self.config.highest)",
        "target.clamp(self.config.lowest)",
        "fits",
    ),
    Fault(
        "values: first values ignore their own resample",
        FQE,
        "(weights * q).sum(-1) / weights.sum(-1)",
        "q.mean(-1)",
        "fits",
    ),
    Fault(
        "values: held-out ones from members that saw the episode",
        FQE,
        "unseen = learner.row_weights(episodes[part].expand(len(actions), -1)) == 0",
        "unseen = learner.row_weights(episodes[part].expand(len(actions), -1)) > 0",
        "fits",
    ),
    Fault(
        "values: what follows an episode is the value of its last state",
        FQE,
        'final = _held_out(learner, log, log.columns["next_obs"][last], there[:, last], last)[:-1]',
        'final = _held_out(learner, log, log.columns["obs"][last], here[:, last], last)[:-1]',
        "fits",
    ),
    Fault(
        "values: drift is always zero",
        FQE,
        "abs(entry[0] - 2 * self.updates / 3)",
        "abs(entry[0] - self.updates)",
        "fits",
    ),
    Fault("values: residual without the horizon", FQE, ".mean())) * horizon", ".mean()))", "fits"),
    Fault(
        "values: residual counts rows without a successor",
        FQE,
        'counted = unseen * batch["usable"].unsqueeze(-2)',
        "counted = unseen",
        "fits",
    ),
    Fault(
        "model: members see all episodes",
        DYNAMICS,
        "loss = (weights * errors).mean(-1).sum(-1)",
        "loss = errors.mean(-1).sum(-1)",
        "fits",
    ),
    Fault(
        "weights: mu over pi",
        WEIGHTS,
        "split(log_pi), split(self.log_density), *",
        "split(self.log_density), split(log_pi), *",
        "fits",
    ),
    Fault(
        "weights: the value is that of a resample",
        WEIGHTS,
        "Interval(float(values[0]),",
        "Interval(float(values[1]),",
        "fits",
    ),
    Fault("weights: a one-sided interval", WEIGHTS, "(tail, 100.0 - tail)", "(tail, 50.0)", "fits"),
    Fault(
        "density: the best weights are an alias",
        WEIGHTS,
        "{name: value.clone() for name, value in learner.model.state_dict().items()}",
        "dict(learner.model.state_dict())",
        "fits",
    ),
    Fault(
        "density: held-out episodes are fitted",
        WEIGHTS,
        "np.flatnonzero(~held_out), np",
        "np.arange(len(log)), np",
        "fits",
    ),
    Fault(
        "density: the best is chosen on fitted rows",
        WEIGHTS,
        "if len(unseen) else rows\n",
        "if not len(unseen) else rows\n",
        "fits",
    ),
    # what is hidden
    Fault(
        "unused columns: the fit is asked of its own episodes",
        HIDDEN,
        "guess[~fitted] = design[~fitted] @ ridge(design[fitted], target[fitted])\n        base",
        "guess[~fitted] = design[~fitted] @ ridge(design[~fitted], target[~fitted])\n        base",
        "hidden",
    ),
    Fault(
        "unused columns: any that is sure is named",
        HIDDEN,
        "None, False, ENOUGH * share",
        "None, False, 0.0",
        "hidden",
    ),
    Fault(
        "unused columns: no slopes of their own",
        HIDDEN,
        "    if shaped.shape[1] * plain.shape[1] <= MOST_COEFFICIENTS:\n",
        "    if False:\n",
        "hidden",
    ),
    Fault(
        "unused columns: read as their places",
        UNUSED_ROWS,
        "numbers[codes.astype(np.int64)]",
        "codes",
        "data",
    ),
    Fault(
        "unused columns: rows of other episodes",
        HIDDEN,
        "values = np.asarray(column.values, dtype=np.float64)[rows]",
        "values = np.roll(np.asarray(column.values, dtype=np.float64)[rows], len(rows) // 3)",
        "hidden",
    ),
    # checks and verdicts
    Fault(
        "falsification: rows are compared with themselves",
        CHECKS,
        "    returns = held_out_returns(log, values)\n    known =",
        "    returns = values\n    known =",
        "checks",
    ),
    Fault(
        "falsification: one-sided",
        CHECKS,
        "if abs(error) > config.falsification_error_limit",
        "if error > config.falsification_error_limit",
        "checks",
    ),
    Fault(
        "convergence: drift never refuses",
        CHECKS,
        'if numbers["drift"] > config.drift_limit:',
        "if False:",
        "checks",
    ),
    Fault(
        "coverage: the furthest neighbour instead of the mean",
        CHECKS,
        ".values.mean(-1)\n",
        ".values.amax(-1)\n",
        "checks",
    ),
    Fault(
        "difference: unpaired",
        JUDGE,
        "members = self.fitted.values[index] - self.fitted.values[-1]",
        "members = self.fitted.values[index] - self.fitted.values[-1][::-1]",
        "checks",
    ),
    Fault(
        "difference: the error of the level is left out",
        JUDGE,
        "return interval(members, self.config.confidence, error)",
        "return interval(members, self.config.confidence)",
        "checks",
    ),
    Fault(
        "coverage: draws are paired with the states of other rows",
        JUDGE,
        "np.repeat(self.log.obs[rows], draws, axis=0)",
        "np.tile(self.log.obs[rows], (draws, 1))",
        "checks",
    ),
    Fault(
        "rollouts: not clamped to the log",
        MODEL,
        "dynamics.within_range(following), reward.double()",
        "following, reward.double()",
        "checks",
    ),
    Fault(
        "rollouts: the end is asked of the state before",
        MODEL,
        "dynamics.end_odds(state, scaled, following)",
        "dynamics.end_odds(state, scaled, state)",
        "checks",
    ),
    Fault(
        "rollouts: what follows is dropped",
        MODEL,
        "if log.gamma < 1.0:\n        value +=",
        "if False:\n        value +=",
        "checks",
    ),
    # runs and choices
    Fault(
        "runs: every stacked seed is judged as the first",
        RUNS,
        "run.policy for index, run in enumerate(runs)",
        "runs[0].policy for index, run in enumerate(runs)",
        "runs",
    ),
    Fault(
        "runs: every seed is told what the first was",
        RUNS,
        "told_judgement(judgement, judgement.policies[index], where)",
        "told_judgement(judgement, judgement.policies[0], where)",
        "runs",
    ),
    Fault(
        "runs: every file holds the first judgement",
        RUNS,
        "judgement.policies[index : index + 1]",
        "judgement.policies[:1]",
        "runs",
    ),
    Fault(
        "candidates: one refused run is overlooked",
        CANDIDATES,
        'return "refused" in self.verdicts',
        'return set(self.verdicts) == {"refused"}',
        "estimates",
    ),
    Fault(
        "candidates: the noise is that of the first run",
        CANDIDATES,
        "noise = fmean(map(half_width, judged))",
        "noise = half_width(judged[0])",
        "estimates",
    ),
    Fault(
        "search: least is ignored",
        TUNE,
        'direction="maximize" if settings.mode == "max" else "minimize"',
        'direction="maximize"',
        "selection",
    ),
    Fault(
        "statistics: tasks and sides draw the same rows",
        STATISTICS,
        "    generator = np.random.default_rng(seed)\n    return [sample[generator.integers(",
        "    return [sample[np.random.default_rng(seed).integers(",
        "statistics",
    ),
]
