"""What an agent holds is in its state, wherever it holds it."""

import pytest
import torch
from wording import refused

from corerl import seeding
from corerl.nn import networks, optim
from corerl.nn.learner import GradientStep, Stateful


class Own(Stateful):
    """What people change: a list of networks, one in a dictionary, a scale, an unnamed schedule."""

    def __init__(self, seed: int):
        rngs = seeding.generators([seed], "init")
        self.nets = [networks.MLP([2, 3, 1], (1,), rngs) for _ in range(2)]
        self.heads = {"reward": (networks.Linear(2, 1, (1,), rngs),)}
        self.scale = torch.full((1,), float(seed))
        self.clock = optim.Clock()
        self._constant = torch.full((1,), float(seed))
        self.mean = None
        parameters = [p for net in self.nets for p in net.parameters()]
        self.optimizer = optim.Adam(parameters, 0.1)
        self.optimizers = [self.optimizer]
        schedule = optim.Schedule(self.optimizer, optim.cosine(10))
        self._step = GradientStep(self.loss, self.optimizer, "off", schedule)

    def loss(self, x):
        loss = sum(net(x[:, None]).square().mean((1, 2)) for net in self.nets)
        return loss, {"loss": loss}

    def update(self, x):
        self.scale = 0.9 * self.scale + 1
        self.clock.step()
        self.mean = x.mean(1) if self.mean is None else 0.9 * self.mean + x.mean(1)
        return self._step(x)


def test_whatever_an_agent_holds_is_in_its_state():
    one, other, x = Own(1), Own(2), torch.ones(1, 2)
    for _ in range(5):
        one.update(x)
    other.load_state_dict(one.state_dict())
    assert other.scale == one.scale and other.clock.count == 5
    assert torch.equal(other.mean, one.mean)
    assert other.mean.data_ptr() != one.mean.data_ptr()
    torch.testing.assert_close(other.heads["reward"][0].weight, one.heads["reward"][0].weight)
    for _ in range(3):
        losses = one.update(x)["loss"], other.update(x)["loss"]
        assert torch.equal(*losses) and one.optimizer.lr == pytest.approx(float(other.optimizer.lr))
    assert float(one.optimizer.lr) < 0.05


def test_nothing_is_kept_twice_and_constants_are_not():
    names = set(Own(1).state_dict())
    assert names == {
        *("nets.0", "nets.1", "heads.reward.0", "scale", "clock", "optimizer", "_step.0")
    }


class Late(Stateful):
    """Its tensors are on another device than its clock."""

    def __init__(self):
        self.low, self.high = torch.zeros(2, 1, device="meta")
        self.clock, self.mean = optim.Clock(), None


def test_a_tensor_that_is_made_later_is_loaded_to_where_most_are():
    agent = Late()
    agent.load_state_dict(agent.state_dict() | {"mean": torch.ones(1)})
    assert agent.mean.device.type == "meta"


@pytest.mark.parametrize("several", [False, True])
def test_torchs_own_optimiser_is_refused_in_a_sentence(several):
    own = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    with refused("corerl.nn.optim.Adam torch.optim.adam.Adam"):
        GradientStep(lambda x: (x, {}), [own] if several else own, "off")
