"""`rl-training demo`."""

from rl_training.cli.options import OutputDirOption, QuietOption, SeedOption
from rl_training.cli.overrides import as_overrides

DEMO_CONFIG = "sac/demo"


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Train a small policy in a few minutes, evaluate it and draw its learning curve."""
    from rl_training.cli.run import run_and_report
    from rl_training.experiment.config import load_config

    run_and_report(load_config(DEMO_CONFIG, as_overrides(seed=seed, output_dir=output_dir)), quiet=quiet)
