"""How good a policy is: whole episodes in environments of their own, with seeds of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rl_training.config.limits import Limit
from rl_training.core.errors import DataError, EnvironmentProblem, UserError
from rl_training.core.spaces import FeatureNames, Spaces
from rl_training.core.types import Array, Numbers
from rl_training.data.fields import FIELDS
from rl_training.data.formulas import TOLD, log_with_costs
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.policies.acting import COUNTED, ActingPolicy
from rl_training.runtime.envs import FAULT, EnvLike, GuardedEnv, check_spaces, episode_seed, make_env

POLICY_ROWS = 8
"""Episodes played at a time, and rows in every call of the policy.

A matrix product rounds differently for 8 rows than for 3, which chaotic environments turn into other returns.
Always asking for the same number of rows makes an episode's result independent of how many are played.
"""


@dataclass(frozen=True)
class EvalResult:
    """Undiscounted returns, in the environment's own rewards, lengths and costs, by episode number."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    costs: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """what each cost added up to, by episode number; those that could be told"""

    def cost_metrics(self, limits: Sequence[Limit] = ()) -> Numbers:
        """Means of costs per episode and per step, and 1 or 0 for limits that were kept on average or not."""
        found: Numbers = {}
        for name, totals in self.costs.items():
            found[f"eval_cost_{name}"] = float(totals.mean())
            found[f"eval_cost_{name}_per_step"] = float(totals.sum() / self.lengths.sum())
        for limit in limits:
            if limit.name in self.costs:
                per = "_per_step" if limit.per == "step" else ""
                spent = found[f"eval_cost_{limit.name}{per}"]
                found[f"eval_limit_{limit.name}_kept"] = float(spent is not None and spent <= limit.bound)
        return found

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
        self.env = GuardedEnv(make_env(env, env_kwargs), fields=(FIELDS.get("costs"),), optional=True)
        self.episode, self.ret, self.length = 0, 0.0, 0
        self.seen: Array = np.zeros(0)
        self.rows: list[tuple[Array, Array, float]] = []
        """what was seen and done, and what it earned"""
        self.told: list[float] = []
        """the cost of each step, where the environment tells it"""

    def begin(self, episode: int, seed: int) -> Array:
        self.episode, self.ret, self.length, self.rows, self.told = episode, 0.0, 0, [], []
        obs, info = self.env.reset(seed=episode_seed(seed, "eval", episode))
        if info:
            raise EnvironmentProblem(f"evaluation episode {episode} (reset) of {self.env_id!r} {info[FAULT]}")
        self.seen = np.asarray(obs)
        return self.seen

    def play(self, action: Array) -> tuple[Array, bool]:
        """The next observation, and whether the episode has ended with it."""
        self.length += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        if FAULT in info:
            sound = np.isfinite(action).all()
            event = info[FAULT] if sound else f"was given the action {action.tolist()}, which is not finite"
            place = f"evaluation episode {self.episode} (step {self.length})"
            raise EnvironmentProblem(f"{place} of {self.env_id!r} {event}")
        self.ret += reward
        self.rows.append((self.seen, action, reward))
        if "costs" in info:
            self.told.append(float(info["costs"].sum()))
        self.seen = obs
        return obs, bool(terminated or truncated)

    def costs(self, declared: Mapping[str, str], spaces: Spaces, names: FeatureNames) -> dict[str, float]:
        """What the episode cost: the declared costs, as data computes them, or else the one that was told.

        Empty where neither can be told from what is seen, done and earned here.
        """
        told = len(self.told) == len(self.rows)
        if not declared:
            return {TOLD: sum(self.told)} if told else {}
        seen, done, rewards = zip(*self.rows, strict=True)
        ends = np.arange(len(rewards)) == len(rewards) - 1
        columns: dict[str, Array] = {
            "obs": np.array(seen, dtype=np.float32),
            "actions": np.array(done, dtype=np.float32).reshape(len(rewards), -1),
            "rewards": np.array(rewards, dtype=np.float32),
            "terminated": np.zeros(len(rewards), dtype=np.bool_),
            "truncated": ends,
        }
        info = DataInfo(
            source=self.env_id,
            spaces=spaces,
            observation_names=names.observations,
            action_names=names.actions,
        )
        try:
            log = EpisodeLog.build({**columns, **({"costs": np.array(self.told)} if told else {})}, info=info)
            found = log_with_costs(log, declared).further["costs"].sum(axis=0, dtype=np.float64)
        except DataError:  # of columns that this environment does not have
            return {}
        return dict(zip(declared, found.tolist(), strict=True))

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
    costs: Mapping[str, str] | None = None,
) -> EvalResult:
    """Play `num_episodes` episodes; `on_episode(number, return, length)` hears of each as it ends.

    Episode k starts from a seed made of (seed, k), and its result depends neither on other episodes nor on
    any global random state (a stochastic policy draws from its own generator, in the order of the calls).
    `max_episode_steps` cuts the episodes of an environment that has no time limit of its own. `costs` are
    those that are declared (name -> formula); without any, the one that the environment tells is reported.
    """
    if num_episodes < 1:
        raise UserError(f"num_episodes must be >= 1, got {num_episodes}")
    returns, lengths = np.zeros(num_episodes), np.zeros(num_episodes, dtype=np.int64)
    cut, paid = 0, dict[int, dict[str, float]]()
    with ExitStack() as closing:
        players = open_players(env, env_kwargs, min(num_episodes, POLICY_ROWS), closing)
        for player, ended in played_in_lock_step(
            policy, players, num_episodes, seed, deterministic, max_episode_steps
        ):
            returns[player.episode], lengths[player.episode] = player.ret, player.length
            cut += not ended
            paid[player.episode] = player.costs(costs or {}, policy.spaces, policy.features)
            if on_episode is not None:
                on_episode(player.episode, player.ret, player.length)
    if cut:
        warnings.warn(
            f"{cut} evaluation episodes of {str(env)!r} were cut after {max_episode_steps} steps; "
            "give the environment a time limit (env_kwargs: max_episode_steps)",
            stacklevel=2,
        )
    of_each = [paid[number] for number in range(num_episodes)]
    known = [name for name in of_each[0] if all(name in each for each in of_each)]
    return EvalResult(returns, lengths, {name: np.array([each[name] for each in of_each]) for name in known})


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
    asks = policy.counter is None and any(each.counted for each in policy.inputs)
    waiting = iter(range(len(players), num_episodes))
    playing = dict(enumerate(players))
    while playing:
        actions = controller.act(obs, **(told_counts(playing) if asks else {})).action
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


def told_counts(playing: Mapping[int, EpisodePlayer]) -> dict[str, npt.ArrayLike | None]:
    """What environments have told of the episodes under way, for a policy that cannot count it by itself."""
    spent, steps = np.zeros(POLICY_ROWS), np.zeros(POLICY_ROWS)
    for row, player in playing.items():
        if len(player.told) == player.length:
            spent[row], steps[row] = sum(player.told), player.length
    return dict(zip(COUNTED, (spent, steps), strict=True))
