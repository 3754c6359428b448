"""Networks. Names are loaded on first use, so that importing the package stays light."""

from rl_training.lazy import lazy_exports

__all__ = ["MLPSACModel"]

__getattr__, __dir__ = lazy_exports(__name__, {"MLPSACModel": "rl_training.models.mlp_sac"})
