"""How good a policy is: whole episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import EnvironmentProblem, UserError
from rl_training.core.types import Array
from rl_training.policies.acting import ActingPolicy
from rl_training.runtime.columns import check_spaces
from rl_training.runtime.envs import FAULT, EnvLike, GuardedEnv, episode_seed, make_env

POLICY_ROWS = 8
"""Episodes played at a time, and rows in every call of the policy.

A matrix product rounds differently for 8 rows than for 3, which chaotic environments turn into other returns.
Always asking for the same number of rows makes an episode's result independent of how many are played.
"""


@dataclass(frozen=True)
class EvalResult:
    """Undiscounted returns, in the environment's own rewards, and lengths, by episode number."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    @property
    def return_mean(self) -> float:
        return float(self.returns.mean())

    @property
    def return_std(self) -> float:
        """Spread over these episodes (population form)."""
        return float(self.returns.std())


class EpisodePlayer:
    """One environment in which episode after episode is played."""

    def __init__(self, env: EnvLike, env_kwargs: Mapping[str, object] | None) -> None:
        self.env_id = str(env)
        self.env = GuardedEnv(make_env(env, env_kwargs))
        self.episode, self.ret, self.length = 0, 0.0, 0

    def begin(self, episode: int, seed: int) -> Array:
        self.episode, self.ret, self.length = episode, 0.0, 0
        obs, info = self.env.reset(seed=episode_seed(seed, "eval", episode))
        if info:
            raise EnvironmentProblem(f"evaluation episode {episode} (reset) of {self.env_id!r} {info[FAULT]}")
        return np.asarray(obs)

    def play(self, action: Array) -> tuple[Array, bool]:
        """The next observation, and whether the episode has ended with it."""
        self.length += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        if info:
            sound = np.isfinite(action).all()
            event = info[FAULT] if sound else f"was given the action {action.tolist()}, which is not finite"
            place = f"evaluation episode {self.episode} (step {self.length})"
            raise EnvironmentProblem(f"{place} of {self.env_id!r} {event}")
        self.ret += reward
        return obs, bool(terminated or truncated)

    def close(self) -> None:
        self.env.close()


def open_players(
    env: EnvLike, env_kwargs: Mapping[str, object] | None, count: int, closing: ExitStack
) -> list[EpisodePlayer]:
    """`count` environments, each closed with `closing` even if a later one cannot be created."""
    players = []
    for _ in range(count):
        players.append(EpisodePlayer(env, env_kwargs))
        closing.callback(players[-1].close)
    return players


OpenPlayers = Callable[[EnvLike, Mapping[str, object] | None, int, ExitStack], Sequence[EpisodePlayer]]
"""Opens up to so many environments that play side by side."""


def evaluate_policy(
    policy: ActingPolicy,
    env: EnvLike,
    env_kwargs: Mapping[str, object] | None,
    num_episodes: int,
    seed: int,
    *,
    deterministic: bool = True,
    on_episode: Callable[[int, float, int], None] | None = None,
    max_episode_steps: int = 100_000,
    open_players: OpenPlayers = open_players,
) -> EvalResult:
    """Play `num_episodes` episodes; `on_episode(number, return, length)` hears of each as it ends.

    Episode k starts from a seed made of (seed, k), and its result depends neither on other episodes nor on
    any global random state (a stochastic policy draws from its own generator, in the order of the calls).
    `max_episode_steps` cuts the episodes of an environment that has no time limit of its own.
    """
    if num_episodes < 1:
        raise UserError(f"num_episodes must be >= 1, got {num_episodes}")
    returns, lengths = np.zeros(num_episodes), np.zeros(num_episodes, dtype=np.int64)
    cut = 0
    with ExitStack() as closing:
        players = open_players(env, env_kwargs, min(num_episodes, POLICY_ROWS), closing)
        for player, ended in played_in_lock_step(
            policy, players, num_episodes, seed, deterministic, max_episode_steps
        ):
            returns[player.episode], lengths[player.episode] = player.ret, player.length
            cut += not ended
            if on_episode is not None:
                on_episode(player.episode, player.ret, player.length)
    if cut:
        warnings.warn(
            f"{cut} evaluation episodes of {str(env)!r} were cut after {max_episode_steps} steps; "
            "give the environment a time limit (env_kwargs: max_episode_steps)",
            stacklevel=2,
        )
    return EvalResult(returns, lengths)


def played_in_lock_step(
    policy: ActingPolicy,
    players: Sequence[EpisodePlayer],
    num_episodes: int,
    seed: int,
    deterministic: bool,
    max_steps: int,
) -> Iterator[tuple[EpisodePlayer, bool]]:
    """Each player when its episode is over, and whether the environment ended it.

    One call of the policy serves all players; a player's result has to be read before asking for the next.
    """
    env = players[0].env
    obs_dim = check_spaces(players[0].env_id, env.observation_space, env.action_space).obs_dim
    obs = np.zeros((POLICY_ROWS, obs_dim), dtype=np.float32)
    for row, player in enumerate(players):
        obs[row] = player.begin(row, seed)
    controller = policy.controller(POLICY_ROWS, guard=False, deterministic=deterministic)
    waiting = iter(range(len(players), num_episodes))
    playing = dict(enumerate(players))
    while playing:
        actions = controller.act(obs).action
        for row, player in list(playing.items()):
            obs[row], ended = player.play(actions[row])
            if not ended and player.length < max_steps:
                continue
            yield player, ended
            following = next(waiting, None)
            if following is None:
                del playing[row]
            else:
                obs[row] = player.begin(following, seed)
                controller.reset(rows=np.arange(POLICY_ROWS) == row)
