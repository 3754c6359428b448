"""The largest sizes that a config may ask for.

A config may come from anybody, and a slip of the finger is soon made: a size that no machine could hold is
refused with a line before anything is allocated. Each limit is far beyond what training uses.
"""

MAX_BATCH = 1_000_000
MAX_ROWS = 1_000_000_000
"""Of a replay buffer, and of data that is collected."""
MAX_WIDTH = 16_384
"""Units of a hidden layer; a square layer of it takes 1 GB."""
MAX_LAYERS = 64
MAX_CRITICS = 1_000
MAX_QUANTILES = 10_000
MAX_SAMPLES = 10_000
"""Actions drawn per state, steps of a flow, and updates per collected transition."""
MAX_N_STEP = 10_000
MAX_SEEDS = 1_000
MAX_ENVS = 4_096
