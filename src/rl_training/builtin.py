"""What comes with the package by name, as an installed plug-in tells through its entry points.

A new algorithm or format of our own is a line here, and imported when it is first asked for. The rooms find
their lists filled: every import of one begins with `rl_training/__init__.py`, which imports this file.
"""

from rl_training.core.registry import BUILTIN_ALGORITHMS, BUILTIN_FORMATS, BUILTIN_RECIPES, AlgorithmFacts

ALGORITHMS = (
    # name, class, learns online, module
    AlgorithmFacts("awac", "AWAC", False, "rl_training.algorithms.awac"),
    AlgorithmFacts("bc", "BC", False, "rl_training.algorithms.bc"),
    AlgorithmFacts("cal_ql", "CalQL", False, "rl_training.algorithms.cal_ql"),
    AlgorithmFacts("caps", "CAPS", False, "rl_training.algorithms.caps"),
    AlgorithmFacts("cql", "CQL", False, "rl_training.algorithms.cql"),
    AlgorithmFacts("crr", "CRR", False, "rl_training.algorithms.crr"),
    AlgorithmFacts("discrete_cql", "DiscreteCQL", False, "rl_training.algorithms.discrete_cql"),
    AlgorithmFacts("dqn", "DQN", True, "rl_training.algorithms.dqn"),
    AlgorithmFacts("edac", "EDAC", False, "rl_training.algorithms.edac"),
    AlgorithmFacts("fql", "FQL", False, "rl_training.algorithms.fql"),
    AlgorithmFacts("iql", "IQL", False, "rl_training.algorithms.iql"),
    AlgorithmFacts("lion", "LION", False, "rl_training.algorithms.lion"),
    AlgorithmFacts("mobile", "MOBILE", False, "rl_training.algorithms.mobile"),
    AlgorithmFacts("mopo", "MOPO", False, "rl_training.algorithms.mopo"),
    AlgorithmFacts("rebrac", "ReBRAC", False, "rl_training.algorithms.rebrac"),
    AlgorithmFacts("redq", "REDQ", True, "rl_training.algorithms.redq"),
    AlgorithmFacts("sac", "SAC", True, "rl_training.algorithms.sac"),
    AlgorithmFacts("td3", "TD3", True, "rl_training.algorithms.td3"),
    AlgorithmFacts("td3_bc", "TD3BC", False, "rl_training.algorithms.td3_bc"),
    AlgorithmFacts("tqc", "TQC", True, "rl_training.algorithms.tqc"),
)
FORMATS = {
    "table": "rl_training.data.formats.table:TABLE",
    "csv": "rl_training.data.formats.table:CSV",
    "parquet": "rl_training.data.formats.table:PARQUET",
    "feather": "rl_training.data.formats.table:FEATHER",
    "jsonl": "rl_training.data.formats.table:JSONL",
    "hdf5": "rl_training.data.formats.hdf5:HDF5",
    "npz": "rl_training.data.formats.npz:NPZ",
    "minari": "rl_training.data.formats.minari:MINARI",
    "lerobot": "rl_training.data.formats.lerobot:LEROBOT",
    "robomimic": "rl_training.data.formats.robomimic:ROBOMIMIC",
    "ogbench": "rl_training.data.formats.ogbench:OGBENCH",
    "rlds": "rl_training.data.formats.rlds:RLDS",
    "neorl2": "rl_training.data.formats.neorl2:NEORL2",
}

BUILTIN_ALGORITHMS.update({facts.name: facts for facts in ALGORITHMS})
BUILTIN_RECIPES.update({facts.name: f"{facts.module}:RECIPE" for facts in ALGORITHMS})
BUILTIN_FORMATS.update(FORMATS)
