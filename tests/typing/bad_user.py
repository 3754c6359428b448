"""Mistakes of a user; mypy must find every one of them, each in a line of its own."""

import rl_training.judging
from rl_training import IQL, SAC, TrainConfig, judge, load_policy, open_run, read_log
from rl_training.judging import JudgeConfig
from rl_training.judging import judge as judge_dataset
from rl_training.runtime.iql_trainer import train_iql

first = IQL(env="Pendulum-v1", expectil=0.8, total_timesteps=100)  # a misspelled setting
second = IQL("iql/pendulum", expectile="high")  # text for a number
third = SAC(env=3, total_timesteps=100)  # a number for an environment
fourth = SAC("sac/pendulum").learn(callbacks=[print])  # a function for a callback
fifth = IQL("iql/pendulum").predct([1.0, 0.0, 0.0])  # a misspelled method
sixth = judge("runs/RUN", gama=0.9)  # a misspelled setting of a judgement
seventh = judge("runs/RUN", headline="model")  # a choice that there is not
eighth = judge("runs/RUN").verdict  # of a policy, not of the judgement
ninth = judge_dataset(first, "log.csv")  # a path, which only rl_training.judge opens
tenth = judge(3)  # nothing that predicts
eleventh = JudgeConfig(gamma="high")  # text for a number
twelfth = open_run("runs/RUN").polcy  # a misspelled part
thirteenth = load_policy(3)  # a number for a path
fourteenth = read_log("log.csv", observations=3)  # a number for columns
fifteenth = train_iql("iql/pendulum")  # a name for a config
sixteenth = train_iql(TrainConfig(algo="iql", total_timesteps=5), datasets=None)  # a misspelled option
seventeenth = rl_training.judging.jugde  # a misspelled name
