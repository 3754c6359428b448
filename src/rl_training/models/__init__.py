"""Networks. Names are loaded on first use, so that importing the package stays light."""

from rl_training.core.lazy import lazy_exports

MODELS = {
    "MLPAWACModel": "mlp_awac",
    "MLPBCModel": "mlp_bc",
    "MLPIQLModel": "mlp_iql",
    "MLPREDQModel": "mlp_redq",
    "MLPSACModel": "mlp_sac",
    "MLPTD3Model": "mlp_td3",
    "MLPTQCModel": "mlp_tqc",
}
"""Public name -> module."""

__all__ = sorted(MODELS)

__getattr__, __dir__ = lazy_exports(
    __name__, {name: f"rl_training.models.{module}" for name, module in MODELS.items()}
)
