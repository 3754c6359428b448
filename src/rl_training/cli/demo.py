"""`rl-training demo`."""

from rl_training.cli.options import OutputDirOption, QuietOption, SeedOption
from rl_training.cli.overrides import as_overrides

DEMO_CONFIG = "td3_bc/demo"


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Learn to swing up a pendulum from random logged data, and draw the learning curve."""
    from rl_training.cli.run import run_and_report
    from rl_training.core.config_files import load_config

    run_and_report(load_config(DEMO_CONFIG, as_overrides(seed=seed, output_dir=output_dir)), quiet=quiet)
