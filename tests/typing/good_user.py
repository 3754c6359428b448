"""What a user may write; mypy must find nothing in it."""

import gymnasium as gym
import numpy as np

from rl_training import IQL, SAC, Callback, TrainConfig, TransitionDataset, load_policy, register_network
from rl_training.models import Network
from rl_training.runtime.run import Run


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
