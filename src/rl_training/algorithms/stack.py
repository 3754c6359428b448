"""Several learners as one: a leading seed axis on every tensor, and back again."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import ConfigError
from rl_training.core.streams import join_streams
from rl_training.core.types import State


def stack_learners(learners: Sequence[Learner]) -> Learner:
    """One learner that updates all of `learners` at once on `[S, B, …]` batches; they stay as they are."""
    first = learners[0]
    for other in learners[1:]:
        if type(other) is not type(first) or other.config != first.config or other.updates != first.updates:
            raise ConfigError("only learners of one class, configuration and age can be stacked")
    stacked = type(first)(copy.deepcopy(first.model), **first.config.model_dump())
    members = [learner.tensors() for learner in learners]
    for name, tensor in stacked.tensors().items():
        tensor.data = torch.stack([member[name].detach() for member in members])
    for kind, stream in stacked.streams.items():
        states = [learner.streams[kind].state_dict() for learner in learners]
        stacked.streams[kind] = join_streams(states, stream.kind, first.device)
    copy_shared(first, stacked)
    stacked.last_metrics = {
        name: torch.stack([learner.last_metrics[name] for learner in learners]) for name in first.last_metrics
    }
    return stacked


def unstack_learners(stacked: Learner) -> list[Learner]:
    """The single learners of a stack, each going on exactly from where the stack is."""
    count = len(stacked.streams["normal"].generators)
    return [unstack_member(stacked, index) for index in range(count)]


def keep_members(stacked: Learner, members: Sequence[int]) -> Learner:
    """The learner of some seeds of a stack; of one seed alone, without a seed axis."""
    singles = [unstack_member(stacked, index) for index in members]
    return singles[0] if len(singles) == 1 else stack_learners(singles)


def unstack_member(stacked: Learner, index: int) -> Learner:
    model = copy.deepcopy(stacked.model)
    for tensor in model.state_dict(keep_vars=True).values():
        tensor.data = tensor.data[index].clone()
    single = type(stacked)(model, **stacked.config.model_dump())
    for name, tensor in single.tensors().items():
        tensor.data = stacked.tensors()[name].detach()[index].clone()
    for kind, stream in single.streams.items():
        stream.load_state_dict(stacked.streams[kind].member(index))
    copy_shared(stacked, single)
    single.last_metrics = {name: value[index].clone() for name, value in stacked.last_metrics.items()}
    return single


def learner_state(learner: Learner, member: int | None) -> State:
    """The state of a learner, or of one member of a stack."""
    return (learner if member is None else unstack_member(learner, member)).state_dict()


def copy_shared(source: Learner, target: Learner) -> None:
    """What all seeds of a stack have in common: units, age, products, optimiser steps, learning rates."""
    target.updates, target.products = source.updates, source.products
    if "policy" in vars(source):  # one that nobody asked for has no units to pass on
        target.policy.memory, target.policy.counter = source.policy.memory, source.policy.counter
        target.policy.set_units(source.policy.spaces, source.policy.observation_steps)
    for name, optimizer in source.optimizers.items():
        target.optimizers[name].step_count.copy_(optimizer.step_count)
        target.optimizers[name].learning_rate.copy_(optimizer.learning_rate)
