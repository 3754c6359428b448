"""Steps through environments side by side, as transitions: one true row per step, none across a reset."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.spaces import FloatArray
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.types import Array, Facts, State
from rl_training.data.fields import Field
from rl_training.runtime.envs import (
    FAULT,
    EnvLike,
    GuardedEnv,
    Infos,
    describe_error,
    episode_seed,
    make_env,
    quiet_gymnasium,
    spaces_of,
)

BoolArray = npt.NDArray[np.bool_]

# As arrays: numpy converts a Python number anew in every call, which takes as long as the comparison.
LOWEST, HIGHEST = np.array(-1.0, dtype=np.float32), np.array(1.0, dtype=np.float32)


@dataclass(slots=True)
class FinishedEpisode:
    """What an episode that has just ended amounts to, in the environment's own rewards."""

    ret: float
    length: int
    cost: float | None = None
    """where the costs of steps are kept"""


@dataclass(slots=True)
class Steps:
    """One transition of every environment (first axis), and the episodes that ended with it.

    `next_obs` is the true successor, also where an episode ends. At most one of the two flags is set: an
    environment that reports both has terminated, and there is nothing to bootstrap from.
    """

    obs: FloatArray
    actions: FloatArray
    rewards: FloatArray
    next_obs: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    episodes: list[FinishedEpisode]
    fields: dict[str, FloatArray] = field(default_factory=dict)
    """fields from the environments' infos"""

    @property
    def dones(self) -> FloatArray:
        """1.0 where the bootstrap is cut: terminated, never truncated."""
        return self.terminated.astype(np.float32)


class Collector:
    """`num_envs` copies of an environment, each somewhere in an episode of its own.

    Episode k of environment i starts from a seed made of (seed, i, k), so an unfinished episode is described
    by its number and the actions so far, and can be lived through again elsewhere. Environments and episodes
    count from 0, steps from 1.
    """

    def __init__(
        self,
        env: EnvLike,
        env_kwargs: Mapping[str, object] | None,
        num_envs: int,
        seed: int,
        *,
        async_envs: bool = False,
        fields: Sequence[Field] = (),
    ) -> None:
        """`fields` are taken from the infos of every step, which must have them."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be >= 1, got {num_envs}")
        self.env_id = str(env)
        self.num_envs = num_envs
        self.seed, self.fields = seed, tuple(fields)
        self.spaces = spaces_of(env, env_kwargs)
        self._random = RandomStream([torch_generator(seed, "env", "random_actions")], "uniform")
        self._episodes = [-1] * num_envs
        self._returns = [0.0] * num_envs
        self._keeps_costs = any(each.name == "costs" for each in self.fields)
        self._costs = [0.0] * num_envs
        # Actions of the unfinished episodes, as bytes: grows without bound only if an episode does.
        self._played = [bytearray() for _ in range(num_envs)]
        self._problem: EnvironmentProblem | None = None
        self._in_call = False
        self._begun: tuple[FloatArray, FloatArray] | None = None
        """actions under way, in [-1, 1] and in the environments' own units"""
        self._envs = make_vector_env(
            env, env_kwargs or {}, num_envs, async_envs=async_envs, fields=self.fields
        )
        try:
            everyone = list(range(num_envs))
            self._observations = self._reset(everyone)
            self._enter_next_episode(everyone)
        except BaseException:
            self.close()
            raise

    @property
    def observations(self) -> FloatArray:
        """What every environment shows now: `[num_envs, obs_dim]`, to be acted on and not to be changed."""
        return self._observations

    def step(
        self, actions: Array | None = None, limited: Callable[[FloatArray], FloatArray] | None = None
    ) -> Steps:
        """Play one action (in [-1, 1]) in every environment, uniformly random ones if none are given, as far
        as they may run (`limited`).

        When this raises, `state_dict` still describes the moment before the step.
        """
        if self._problem is not None:
            raise self._problem
        try:
            self.begin(self.random_actions(limited) if actions is None else actions)
            return self.finish()
        except BaseException:
            if actions is None:
                self._random.give_back()
            self._begun = None
            raise

    def random_actions(self, limited: Callable[[FloatArray], FloatArray] | None = None) -> FloatArray:
        """Uniform ones, as far as they may run."""
        size = (self.num_envs, self.spaces.action_columns)
        unit = self._random.next(size[0] * size[1]).numpy().reshape(size)
        drawn = self.spaces.random(unit, self._observations)
        return drawn if limited is None else limited(drawn)

    def begin(self, actions: Array) -> None:
        """Let every environment play its action (in [-1, 1]), in processes of its own beside the caller.

        Until `finish`, also where that fails, `state_dict` describes this step as one to be begun again.
        """
        if self._problem is not None:
            raise self._problem
        unit = self._check_actions(actions)
        played = self.spaces.to_env(unit)
        self._begun = unit, played
        self._ask(self._envs.step_async, played)

    @property
    def under_way(self) -> bool:
        """Whether a step was begun and not finished."""
        return self._begun is not None

    def finish(self) -> Steps:
        """What came of the actions that were begun."""
        if self._problem is not None:
            raise self._problem
        assert self._begun is not None
        unit, played = self._begun
        obs, rewards, terminated, truncated, infos = self._ask(self._envs.step_wait)
        if FAULT in infos:
            raise self._step_failed(played, infos[FAULT])
        next_obs = observations = obs.astype(np.float32)
        terminated, truncated = terminated.copy(), truncated.copy()
        flags = zip(terminated.tolist(), truncated.tolist(), strict=True)
        ended = [index for index, (by_itself, by_limit) in enumerate(flags) if by_itself or by_limit]
        if ended:
            truncated &= ~terminated
            observations = next_obs.copy()
            observations[ended] = self._reset(ended)
        # From here on nothing can fail: the step has happened.
        rows = (self._observations, unit, rewards.astype(np.float32), next_obs, terminated, truncated)
        self._observations, self._begun = observations, None
        for index, reward in enumerate(rewards.tolist()):
            self._returns[index] += reward
            self._played[index] += played[index].tobytes()
        if self._keeps_costs:
            for index, costs in enumerate(infos["costs"]):
                self._costs[index] += float(costs.sum())
        episodes = [
            FinishedEpisode(
                self._returns[index], self._length(index), self._costs[index] if self._keeps_costs else None
            )
            for index in ended
        ]
        self._enter_next_episode(ended)
        return Steps(*rows, episodes, {each.name: infos[each.name] for each in self.fields})

    def state_dict(self) -> State:
        """Where every environment is: its episode and the actions played in it so far."""
        lengths = [self._length(index) for index in range(self.num_envs)]
        actions = np.frombuffer(b"".join(self._played), dtype=np.float32)
        return {
            "episodes": list(self._episodes),
            "lengths": lengths,
            "actions": actions.reshape(sum(lengths), self.spaces.action_columns).copy(),
            "returns": list(self._returns),
            **({"costs": list(self._costs)} if self._keeps_costs else {}),
            "observations": self._observations.copy(),
            "random": self._random.state_dict(),
            **({} if self._begun is None else {"begun": self._begun[0].copy()}),
        }

    def load_state_dict(self, state: Facts) -> None:
        """Go where `state_dict` says, by replaying every unfinished episode from its seed.

        An environment that does not come out where it was is not a function of its seed and actions. That
        costs the exactness of the resumed run, not the run: it goes on from wherever the replay led.
        """
        if len(state["episodes"]) != self.num_envs:
            raise ValueError(
                f"num_envs must be {len(state['episodes'])} as in the saved collector, got {self.num_envs}"
            )
        self._random.load_state_dict(state["random"])
        self._episodes = [int(episode) for episode in state["episodes"]]
        self._returns = [float(ret) for ret in state["returns"]]
        self._costs = [float(cost) for cost in state.get("costs", [0.0] * self.num_envs)]
        cuts = np.cumsum(state["lengths"])[:-1]
        actions = np.split(np.asarray(state["actions"], dtype=np.float32), cuts)
        self._played = [bytearray(rows.tobytes()) for rows in actions]
        self._problem = None
        self._replay(actions, np.asarray(state["observations"], dtype=np.float32))
        self._begun = None
        if "begun" in state:
            self.begin(np.asarray(state["begun"], dtype=np.float32))

    def close(self) -> None:
        """Close the environments; workers interrupted in a call, say by Ctrl-C, are ended at once."""
        self._envs.close(terminate=self._in_call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reset(self, indices: list[int]) -> FloatArray:
        """Reset these environments with the seeds of their next episodes; their first observations."""
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[indices] = True
        seeds = [self._seed_of(index, episode + 1) for index, episode in enumerate(self._episodes)]
        obs, infos = self._ask(self._envs.reset, seed=seeds, options={"reset_mask": mask})
        if infos:
            index, fault = next((i, text) for i, text in enumerate(infos[FAULT]) if text is not None)
            raise self._stop(f"environment {index} (episode {self._episodes[index] + 1}, reset)", fault)
        first: FloatArray = obs[indices].astype(np.float32)
        return first

    def _replay(self, actions: list[FloatArray], expected: FloatArray) -> None:
        seeds = [self._seed_of(index, episode) for index, episode in enumerate(self._episodes)]
        results = self._ask(self._envs.call, "replay", seeds, actions)
        for index, (_, _, fault) in enumerate(results):
            if fault is not None:
                place = f"environment {index} (episode {self._episodes[index]}, replayed on resume)"
                raise self._stop(place, fault)
        self._observations = np.stack([obs for obs, _, _ in results]).astype(np.float32)
        ended = [index for index, (_, over, _) in enumerate(results) if over]
        if ended or not np.array_equal(self._observations, expected):
            warnings.warn(
                f"environment {self.env_id!r} is not deterministic given its seed and actions; "
                "the resumed run continues from a different state",
                stacklevel=3,
            )
        if ended:
            self._observations[ended] = self._reset(ended)
            self._enter_next_episode(ended)

    def _enter_next_episode(self, indices: list[int]) -> None:
        for index in indices:
            self._episodes[index] += 1
            self._returns[index] = 0.0
            self._costs[index] = 0.0
            self._played[index] = bytearray()

    def _seed_of(self, index: int, episode: int) -> int:
        return episode_seed(self.seed, "env", index, episode)

    def _length(self, index: int) -> int:
        """Steps so far in the current episode of an environment."""
        return len(self._played[index]) // (4 * self.spaces.action_columns)

    def _check_actions(self, actions: Array) -> FloatArray:
        wanted = (self.num_envs, self.spaces.action_dim)
        if actions.shape != wanted:
            raise ValueError(f"actions must have shape {list(wanted)}, got {list(actions.shape)}")
        clipped: FloatArray = np.minimum(np.maximum(actions, LOWEST, dtype=np.float32), HIGHEST)
        return clipped

    def _ask(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the vector environment. It does not raise by itself, unless a worker process has died."""
        self._in_call = True
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            raise self._stop(failing_part(self._envs), f"failed: {describe_error(error)}") from error
        self._in_call = False
        return result

    def _step_failed(self, actions: FloatArray, faults: Sequence[str | None]) -> EnvironmentProblem:
        index, fault = next((i, text) for i, text in enumerate(faults) if text is not None)
        if not np.isfinite(actions[index]).all():
            fault = f"was given the action {actions[index].tolist()}, which is not finite"
        step = self._length(index) + 1
        return self._stop(f"environment {index} (episode {self._episodes[index]}, step {step})", fault)

    def _stop(self, place: str, event: str) -> EnvironmentProblem:
        """The error to raise now, and again should anyone try to go on."""
        self._problem = EnvironmentProblem(f"{place} of {self.env_id!r} {event}")
        return self._problem


# ---- several environments side by side, in this process or one process each, that are never reset unasked

GRACE_SECONDS = 3
"""How long a worker process outlives a request to terminate, and how long closing waits for an answer."""


def make_vector_env(
    env_id: EnvLike,
    env_kwargs: Mapping[str, object],
    num_envs: int,
    *,
    async_envs: bool = False,
    fields: Sequence[Field] = (),
) -> SerialVectorEnv | WorkerVectorEnv:
    """`num_envs` copies of an environment; `async_envs` gives each a process of its own.

    Steps tell the `fields` in their infos, by name.
    """
    factories = [EnvFactory(env_id, env_kwargs, index, fields) for index in range(num_envs)]
    if not async_envs:
        return SerialVectorEnv(factories)
    try:
        return WorkerVectorEnv(factories)
    except EnvironmentProblem:
        raise
    except Exception as error:
        problem = describe_error(error)
    # Raised out here so that no traceback keeps the half-built vector environment, and its workers, alive.
    raise EnvironmentProblem(
        f"a worker process could not create environment {str(env_id)!r} ({problem}); register it in a module "
        "that workers can import and write 'module:EnvId', or leave out async_envs and collect_ahead"
    )


def failing_part(envs: SerialVectorEnv | WorkerVectorEnv) -> str:
    """What to blame when a vector environment itself raises: the worker that died, if one did."""
    if isinstance(envs, WorkerVectorEnv):
        for index, process in enumerate(envs.processes):
            process.join(timeout=0.1)
            if not process.is_alive():
                return f"the process of environment {index} (exit code {process.exitcode})"
    return "the set of environments"


class EnvFactory:
    """Creates sub-environment `index`, in whatever process it is to live."""

    def __init__(
        self, env_id: EnvLike, env_kwargs: Mapping[str, object], index: int, fields: Sequence[Field] = ()
    ) -> None:
        self.env_id, self.env_kwargs, self.index, self.fields = env_id, dict(env_kwargs), index, fields
        self.owner = os.getpid()

    def __call__(self) -> GuardedEnv:
        if os.getpid() != self.owner:
            leave_signals_to_the_parent()
        return GuardedEnv(make_env(self.env_id, self.env_kwargs), self.index, self.fields)


def leave_signals_to_the_parent() -> None:
    """Let a worker survive Ctrl-C, and survive SIGTERM for long enough.

    A terminal sends Ctrl-C to every process of the run, `timeout` and batch systems do so with SIGTERM, while
    the parent wants to finish its step and save. The alarm sees to it that a worker asked to terminate does
    end, also where the parent's own handler was inherited.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """Sub-environments that live in a process each."""

    def __init__(self, factories: Sequence[Callable[[], GuardedEnv]]) -> None:
        with quiet_gymnasium():
            super().__init__(factories, copy=False, autoreset_mode=AutoresetMode.DISABLED)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the workers close their environments, or, with `terminate`, kill them.

        Also those are killed that have died or give no answer. Killed, because a worker that loses its
        connection prints a traceback, and one that is told to terminate waits for a while.
        """
        if not terminate:
            try:
                with quiet_gymnasium():
                    super().close_extras(timeout=GRACE_SECONDS)
            except Exception:
                terminate = True
        if terminate:
            for process in self.processes:
                process.kill()
            for process in self.processes:
                process.join()


class SerialVectorEnv(VectorEnv[Any, Any, Any]):
    """Sub-environments that are stepped one after the other, in this process.

    What `gymnasium.vector.SyncVectorEnv` does, for flat boxes only: without its generality a step costs
    4 µs instead of 14 µs on top of the environment's own (15 µs for Pendulum), checks included.
    """

    def __init__(self, factories: Sequence[Callable[[], GuardedEnv]]) -> None:
        self.envs: list[GuardedEnv] = []
        try:
            self.envs.extend(factory() for factory in factories)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(self.envs)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        shape = self.single_observation_space.shape or ()
        self._obs = np.zeros((self.num_envs, *shape), dtype=self.single_observation_space.dtype)
        self._actions: Array = self._obs
        self._rewards = np.zeros(self.num_envs)
        self._terminated = np.zeros(self.num_envs, dtype=np.bool_)
        self._truncated = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Infos | None = None
    ) -> tuple[Array, Infos]:
        """Reset all, or those where `options["reset_mask"]` is set, each with its own entry of `seed`."""
        seeds = seed if isinstance(seed, Sequence) else [seed] * self.num_envs
        mask = options["reset_mask"] if options else np.ones(self.num_envs, dtype=np.bool_)
        told: dict[int, Infos] = {}
        for index, env in enumerate(self.envs):
            if mask[index]:
                self._obs[index], info = env.reset(seed=seeds[index])
                if info:
                    told[index] = info
        return self._obs, self._as_infos(told) if told else {}

    def step_async(self, actions: Array) -> None:
        """As vector environments with processes have it; here nothing happens before `step_wait`."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]:
        """Step all; none may be finished."""
        actions = self._actions
        obs, rewards, terminated, truncated = self._obs, self._rewards, self._terminated, self._truncated
        told: dict[int, Infos] = {}
        for index, env in enumerate(self.envs):
            obs[index], rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            if info:
                told[index] = info
        return obs, rewards, terminated, truncated, self._as_infos(told) if told else {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The method `name` of every sub-environment, with the same arguments."""
        return tuple(getattr(env, name)(*args, **kwargs) for env in self.envs)

    def close_extras(self, *, terminate: bool = False) -> None:
        for env in self.envs:
            env.close()

    def _as_infos(self, told: Mapping[int, Infos]) -> Infos:
        """Faults of any, else the fields of all."""
        if any(FAULT in info for info in told.values()):
            return {FAULT: [told.get(index, {}).get(FAULT) for index in range(self.num_envs)]}
        return {name: np.stack([info[name] for info in told.values()]) for name in told[0]}
