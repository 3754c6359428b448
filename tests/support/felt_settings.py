"""How each setting is felt: a value other than the default, and what must be set beside it to feel it.

`LEARNER` holds the settings of learners and models, felt in a few updates on fixed batches. Those of the run
and its collection are in `felt_runs`, those of the data in `felt_data`: they are felt in a run of the
recording algorithm. A new setting needs a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DIFFERS, REFUSED, ALLOWED, SOUGHT = "differs", "refused", "allowed", "sought"
"""Felt in what comes out, as an error that names the setting, as the end of such an error,
or as an error that says what was looked for."""


@dataclass(frozen=True)
class Felt:
    """`values` are tried in turn, the first that is not the default is taken; `given` holds for both sides.

    Where the default itself makes no run, `given` names another value to start from.
    """

    values: tuple[Any, ...]
    given: dict[str, Any] = field(default_factory=dict)
    how: str = DIFFERS
    told: str | None = None
    """what the error says, where that is not the name of the setting (or what was looked for)"""


def to(*values: Any, how: str = DIFFERS, told: str | None = None, **given: Any) -> Felt:
    return Felt(values, given, how, told)


NETWORKS = {
    "hidden_sizes": to([8]),
    "network": to("residual"),
    "network_options": to({"expansion": 2}, network="residual"),
    "activation": to("tanh"),
    "layer_norm": to(True),
    "init": to("orthogonal_small"),
}
THIRD_STAGE = {"model_updates": 1, "behavior_updates": 1}
LEARNER: dict[str, Felt] = {
    **NETWORKS,
    **{
        f"{part}_{name}": felt
        for part in ("actor", "critic")
        for name, felt in NETWORKS.items()
        if name != "network_options"
    },
    # all learners
    "learning_rate": to(0.02),
    "actor_learning_rate": to(0.02),
    "critic_learning_rate": to(0.02),
    "gamma": to(0.5),
    "precision": to("bf16"),
    "tau": to(0.5),
    # SAC and its kin
    "alpha": to(0.1),
    "target_entropy": to(3.0),
    "temperature_loss": to("exp"),
    "actor_reduce": to("mean", "min"),
    "policy_delay": to(1, 2),
    "num_critics": to(3),
    "log_std_multiplier": to(0.5),
    "log_std_offset": to(0.5, log_std_multiplier=1.0),
    "num_quantiles": to(7),
    "top_quantiles_to_drop_per_net": to(1),
    "kappa": to(0.1),
    "subset_size": to(1),
    # TD3 and its kin
    "policy_noise": to(0.8),
    "noise_clip": to(0.01),
    "exploration_noise": to(0.5),
    "actor_bc_coef": to(1.0),
    "critic_bc_coef": to(1.0),
    "normalize_q": to(False),
    # DQN and discrete CQL
    "double": to(False),
    "td_loss": to("square"),
    "epsilon_start": to(0.5, epsilon_updates=1000),
    "epsilon_end": to(1.0, epsilon_updates=2),
    "epsilon_updates": to(2, epsilon_start=1.0, epsilon_end=0.0),
    # EDAC, FQL
    "eta": to(5.0),
    "flow_steps": to(3),
    "normalize_q_loss": to(True),
    "q_agg": to("min"),
    # LION: what is felt in its third stage starts from the end of the second
    "members": to(3),
    "probabilistic": to(True),
    "model_updates": to(1),
    "behavior_updates": to(1, 2, model_updates=1),
    "policy_updates": to(1, **THIRD_STAGE),
    "horizon": to(2, **THIRD_STAGE),
    "rollouts": to(2, **THIRD_STAGE),
    "dial": to(0.9),
    "dial_shape": to(5.0, **THIRD_STAGE),
    "pull": to(30.0, **THIRD_STAGE),
    "pessimism": to(30.0, free_disagreement=0.0, **THIRD_STAGE),
    "free_disagreement": to(0.0, **THIRD_STAGE),
    "reduction": to("minimum", **THIRD_STAGE),
    "model_noise": to(False, **THIRD_STAGE),
    "action_noise": to(0.5, **THIRD_STAGE),
    # MOPO, MOBILE
    "model_hidden_sizes": to([8]),
    "model_learning_rate": to(0.02),
    "imagined_share": to(0.5),
    "uncertainty": to("bellman", "aleatoric"),
    "penalty_coef": to(0.0),
    "penalty_samples": to(2, uncertainty="bellman"),
    # weighted imitation
    "policy": to("squashed"),
    "max_q_value": to(-1.0),
    "temperature": to(2.0),
    "weighting": to("softmax"),
    "max_advantage": to(-1.0),
    "max_advantage_weight": to(0.01),
    "baseline": to("mean_action"),
    "update_order": to("together"),
    "actor_weight_decay": to(0.1),
    "n_action_samples": to(3),
    "advantage_type": to("max"),
    "weight_type": to("binary"),
    "beta": to(0.5),
    "max_weight": to(0.01),
    "target_update": to("soft"),
    "target_update_interval": to(2),
    "act_with_target": to(False),
    "critic_weighted": to(True),
    "expectile": to(0.9),
    "actor_dropout": to(0.5),
    # CAPS
    "limit": to("1000 per episode"),
    "episode_steps": to(2, limit="3 per episode"),
    "cost_beta": to(0.5),
    # CQL, Cal-QL
    "cql_alpha": to(1.0),
    "cql_alpha_online": to(0.0, 1.0),
    "num_cql_samples": to(4),
    "action_sources": to(["current"]),
    "importance_weights": to(False),
    "cql_temperature": to(2.0),
    "clip_diff_min": to(50.0),
    "clip_diff_max": to(-50.0),
    "lagrange": to(True),
    "target_gap": to(5.0, lagrange=True),
    "lagrange_form": to("weighted", lagrange=True),
    "backup_entropy": to(True, False),
    "max_target_backup": to(True),
    "max_target_order": to("min_max", max_target_backup=True, num_critics=6, critic_init="orthogonal"),
    "bc_steps": to(3),
}
OF_ONE: dict[tuple[str, str], Felt] = {
    **{
        (algo, name): felt
        for algo in ("mopo", "mobile")
        for name, felt in {"model_updates": to(2), "horizon": to(2)}.items()
    },
    ("lion", "actor_learning_rate"): to(0.02, **THIRD_STAGE),
    ("lion", "penalty"): to({"heat": 3.0}),
    ("lion", "gamma"): to(0.5, **THIRD_STAGE),
    **{
        ("bc", f"critic_{name}"): Felt(felt.values, felt.given, REFUSED)
        for name, felt in {**NETWORKS, "learning_rate": to(0.02)}.items()
    },
    **{
        (algo, f"actor_{name}"): Felt(felt.values, felt.given, REFUSED)
        for algo in ("dqn", "discrete_cql")
        for name, felt in {**NETWORKS, "learning_rate": to(0.02)}.items()
    },
    **{(algo, "target_update"): to("hard") for algo in ("dqn", "discrete_cql")},
    **{(algo, "target_update_interval"): to(2, target_update="hard") for algo in ("dqn", "discrete_cql")},
    ("discrete_cql", "cql_alpha"): to(3.0),
    **{
        ("redq", name): Felt(LEARNER[name].values, {"policy_delay": 1})
        for name in ("actor_learning_rate", "target_entropy", "temperature_loss")
    },
    ("redq", "actor_reduce"): to("min", policy_delay=1),
    ("bc", "policy"): to("gaussian"),
    ("crr", "tau"): to(0.5, target_update="soft"),
}
"""Where a setting is felt otherwise in one algorithm."""

ALWAYS: dict[str, dict[str, Any]] = {
    algo: {"model_updates": 1, "model_hidden_sizes": [6]} for algo in ("mopo", "mobile")
}
"""What an algorithm is given on both sides, so that three updates reach all of it."""

OF_THE_DATA = {("bc", "gamma"), ("td3_bc", "exploration_noise")}
"""Settings of a learner that only its data or its collection feel: see them in `felt_data`, `felt_runs`."""
