"""Networks, actors, critics and the models made of them. Names are loaded on first use."""

from rl_training.core.registry import lazy_exports

MODELS = tuple(f"MLP{name}Model" for name in ("AWAC", "BC", "IQL", "REDQ", "SAC", "TD3", "TQC"))
SOURCES = {name: "rl_training.models.models" for name in MODELS}
SOURCES |= {f"MLP{name}Model": "rl_training.models.models" for name in ("DQN", "EDAC", "FQL", "ReBRAC")}
SOURCES |= {name: "rl_training.models.models" for name in ("PolicyModel", "CriticModel")}
SOURCES["MLPLIONModel"] = "rl_training.models.dynamics"
SOURCES["MLPCAPSModel"] = "rl_training.models.switching"
SOURCES["MLPModelBasedSACModel"] = "rl_training.models.dynamics"
SOURCES |= {name: "rl_training.models.networks" for name in ("Network", "register_network")}
SOURCES |= {name: "rl_training.models.networks" for name in ("NetworkConfig", "NetworkPlan")}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
