"""What stands between the layers of a network, by numbers worked out by hand."""

import pytest
import torch

from rl_training.models.actors import SquashedGaussian
from rl_training.models.networks import MLP, NetworkPlan


def one_layer(layer_norm: bool | str) -> MLP:
    """x -> (x, -x) -> the first unit behind norm and ReLU."""
    net = MLP(1, 1, NetworkPlan(hidden_sizes=(2,), layer_norm=layer_norm))
    with torch.no_grad():
        net.hidden[0].weight.copy_(torch.tensor([[1.0, -1.0]]))
        net.hidden[0].bias.zero_()
        net.output.weight.copy_(torch.tensor([[1.0], [0.0]]))
        net.output.bias.zero_()
    return net


@pytest.mark.parametrize(
    ("layer_norm", "first", "second"),
    [
        (False, 3.0, 0.0),  # relu(3), relu(-3)
        (True, 1.0, 0.0),  # norm(3, -3) = (1, -1), then ReLU
        ("after", 1.0, -1.0),  # relu(3, -3) = (3, 0), whose norm is (1, -1)
    ],
)
def test_the_norm_stands_before_the_activation_or_behind_it(
    layer_norm: bool | str, first: float, second: float
) -> None:
    net, x = one_layer(layer_norm), torch.tensor([[3.0]])
    assert net(x).item() == pytest.approx(first, abs=1e-4)
    with torch.no_grad():
        net.output.weight.copy_(torch.tensor([[0.0], [1.0]]))
    assert net(x).item() == pytest.approx(second, abs=1e-4)


def test_the_spread_of_a_squashed_policy_is_bounded() -> None:
    actor = SquashedGaussian(2, 1, NetworkPlan(hidden_sizes=(4,)))
    for bias, expected in ((100.0, 2.0), (-100.0, -20.0), (0.5, 0.5)):
        with torch.no_grad():
            actor.net.output.weight.zero_()
            actor.net.output.bias.fill_(bias)
        assert actor.distribution(torch.ones(3, 2))[1].tolist() == [[expected]] * 3
