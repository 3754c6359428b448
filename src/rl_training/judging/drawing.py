"""What a policy does in given states: its deterministic actions, or draws from its own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rl_training.core.streams import torch_generator
from rl_training.judging.judgement import Check
from rl_training.judging.log import FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Subject
from rl_training.judging.values import PolicyActions


def actions_in_the_log(
    subjects: Sequence[Subject], log: JudgedLog, config: JudgeConfig
) -> list[PolicyActions]:
    """Drawn once for the whole log, as the behaviour's next actions were: rows average the chance out.

    All policies use the same noise, so that their order does not depend on luck of their own. A policy that
    cannot be drawn from beside one that can repeats its action.
    """
    draws = config.action_draws if any(each.can_draw for each in subjects) else 0

    def actions(subject: Subject, obs: FloatArray, name: str) -> FloatArray:
        if not draws or not subject.can_draw:
            return np.repeat(subject.actions(obs)[:, None], max(1, draws), axis=1)
        generator = torch_generator(config.seed, "judge", "drawn actions", name)
        return subject.drawn(obs, torch.randn((len(obs), draws, subject.action_dim), generator=generator))

    return [
        PolicyActions(actions(each, log.obs, "here"), actions(each, log.next_obs, "there"))
        for each in subjects
    ]


class RolloutActions:
    """A policy inside the model: one action per row and step, a fresh draw where it is judged by draws."""

    def __init__(self, subject: Subject, worlds: int, config: JudgeConfig) -> None:
        self.subject, self.worlds = subject, worlds
        self.noise = torch_generator(config.seed, "judge", "rollout actions")
        self.draws = config.action_draws > 0 and subject.can_draw

    def __call__(self, obs: FloatArray) -> FloatArray:
        """`[worlds * n, obs_dim]` -> `[worlds * n, action_dim]`; worlds share their noise."""
        if not self.draws:
            return self.subject.actions(obs)
        shape = (len(obs) // self.worlds, 1, self.subject.action_dim)
        noise = torch.randn(shape, generator=self.noise).repeat(self.worlds, 1, 1)
        return self.subject.drawn(obs, noise)[:, 0]


def draws_check(subject: Subject, config: JudgeConfig) -> Check:
    """Whether the policy was judged as was asked: by its draws."""
    if subject.can_draw:
        return Check("passed", f"Judged as it draws its actions, {config.action_draws} draws per state.")
    reason = "It says nothing of how it draws its actions: judged by the deterministic ones."
    return Check("warned", reason)
