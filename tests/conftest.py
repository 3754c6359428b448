"""Settings that every test shares."""

import sys

import pytest


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Keep torch on one thread: small networks gain nothing from more, and test workers share the cores.

    Torch is not imported here, so that tests about light imports stay light.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
