"""Five mistakes of a user; mypy must find every one of them."""

from rl_training import IQL, SAC

first = IQL(env="Pendulum-v1", expectil=0.8, total_timesteps=100)  # a misspelled setting
second = IQL("iql/pendulum", expectile="high")  # text for a number
third = SAC(env=3, total_timesteps=100)  # a number for an environment
fourth = SAC("sac/pendulum").learn(callbacks=[print])  # a function for a callback
fifth = IQL("iql/pendulum").predct([1.0, 0.0, 0.0])  # a misspelled method
