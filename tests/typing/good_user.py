"""What a user may write; mypy must find nothing in it."""

import gymnasium as gym
import numpy as np

import rl_training
from rl_training import (
    IQL,
    SAC,
    Callback,
    TrainConfig,
    TransitionDataset,
    judge,
    load_policy,
    open_run,
    read_log,
    register_network,
)
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.td3 import RECIPE
from rl_training.api.algorithms import PulledTD3
from rl_training.judging import Interval, JudgeConfig, Judgement, PolicyJudgement
from rl_training.judging import judge as judge_dataset
from rl_training.models import Network
from rl_training.policies.opened import DeployedPolicy
from rl_training.runtime.callbacks import Run, TrainResult
from rl_training.runtime.iql_trainer import train_iql
from rl_training.runtime.workflows import evaluate_checkpoint


class Stop(Callback):
    def on_step_end(self, run: Run) -> None:
        run.log("twice_the_step", 2.0 * run.global_step)
        run.request_stop("enough")


class Mine(Network):
    pass


register_network("mine", Mine)
agent = IQL(env="Pendulum-v1", expectile=0.8, total_timesteps=10_000, hidden_sizes=[64, 64], network="mine")
same = IQL("iql/pendulum", seed=3)
other = SAC(TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=100))
made = SAC(env=lambda: gym.make("Pendulum-v1"), total_timesteps=100, alpha="auto", learning_starts=10)
data = TransitionDataset.from_dict({"obs": np.zeros((4, 3)), "actions": np.zeros((4, 1))})
result = agent.learn(dataset=data, callbacks=[Stop()], quiet=True)
score: float | None = result.metrics["eval_return_mean"]
action: np.ndarray = agent.predict([1.0, 0.0, 0.0])
loaded: IQL = IQL.load(agent.save("policy.safetensors"))
shape: tuple[int, ...] = load_policy(agent.export("policy.onnx")).predict(np.zeros((2, 3))).shape

log: TransitionDataset = read_log("log.csv", observations=["T"], actions="valve", max_gap=60.0)
run = open_run("runs/RUN")
seed: int = run.config.seed
rows: int = len(run.data)
judgement: Judgement = judge([run, "policy.onnx", agent], gamma=0.9, hidden_sizes=[64, 64], headline="both")
again: Judgement = judge({"mine": load_policy("runs/RUN")}, {"obs": np.zeros((4, 3))})
same_again: Judgement = judge_dataset(agent, data, members=3)
first: PolicyJudgement = judgement.policies[0]
difference: Interval = first.difference
defaults: float = JudgeConfig(gamma=0.9).gamma
policy = load_policy("policy.onnx")
if isinstance(policy, DeployedPolicy):
    print(policy.metadata["env_id"])
trained: TrainResult = train_iql(TrainConfig(algo="iql", total_timesteps=5), run_suffix="x", dataset=data)
scores: dict[str, float | None] = evaluate_checkpoint("runs/RUN", num_episodes=3)
recipe: Recipe = RECIPE
own_class = rl_training.register_algorithm(recipe)
own = own_class(env="Pendulum-v1", total_timesteps=5, a_setting_of_its_own=3)
taken: np.ndarray = own.predict([1.0, 0.0, 0.0])
installed: TrainResult = PulledTD3(env="Pendulum-v1", actor_pull=0.5).learn()
