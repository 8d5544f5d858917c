"""What is added on the host reaches the device in one transfer; `meta` stands for a GPU."""

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from corerl import seeding
from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.buffers.transfer import Outbox
from corerl.training.environments import Environments

SEEDS = [0, 1]


class Transfers(TorchDispatchMode):
    """Counts operations that read on one device and write on another."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs, out))
        self.count += len({x.device for x in leaves if isinstance(x, torch.Tensor)}) > 1
        return out


@pytest.fixture
def device(monkeypatch):
    """Without generators, which it has none of."""
    monkeypatch.setattr(seeding, "generators", lambda *_: [])
    return "meta"


def test_all_arrays_arrive_in_one_transfer(device):
    box = Outbox({"a": ((2, 3), torch.float32), "b": ((5,), torch.uint8)}, device)
    box.open()["a"][:] = 1.0
    with Transfers() as transfers:
        arrived = box.send()
    assert transfers.count == 1
    assert {x.device.type for x in arrived.values()} == {"meta"}
    assert (arrived["a"].shape, arrived["b"].dtype) == ((2, 3), torch.uint8)


def test_what_is_sent_is_what_was_filled():
    parts = {"a": ((2, 3), torch.float32), "b": ((5,), torch.uint8), "c": ((1,), torch.int64)}
    box = Outbox(parts, "cpu")
    for number in range(3):
        for name, array in box.open().items():
            array[:] = np.arange(array.size).reshape(array.shape) + number + len(name)
        for (shape, dtype), sent in zip(parts.values(), box.send().values(), strict=True):
            expected = torch.arange(sent.numel()).view(shape) + number + 1
            assert torch.equal(sent, expected.to(dtype))


def test_a_replay_adds_a_step_in_one_transfer(device):
    replay = ReplayBuffer(3, 2, 10, SEEDS, 4, device)
    step = [np.zeros((2, n)) for n in (3, 2, 1, 3, 1, 1)]
    with Transfers() as transfers:
        replay.add(step)
    assert transfers.count == 1


def test_frames_are_added_in_one_transfer(device):
    replay = FrameReplay(
        (4, 6, 6), torch.uint8, 1, 20, SEEDS, 4, discount=0.9, stack=4, device=device
    )
    seen, no = np.zeros((2, 4, 6, 6), np.uint8), np.zeros(2, bool)
    step = DiscreteStep(seen, np.zeros(2, np.int64), np.zeros(2), seen, no, no, np.zeros((2, 1)))
    with Transfers() as transfers:
        replay.add(step, np.zeros((2, 1), np.float32))
    assert transfers.count == 1


def test_a_look_is_one_transfer_and_keeps_what_it_saw():
    envs = Environments(lambda: gymnasium.make("Pendulum-v1"), SEEDS, "cpu")
    before = envs.look()
    kept = before.clone()
    envs.step(torch.zeros(2, 1, 1))
    assert torch.equal(before, kept) and not torch.equal(envs.look(), kept)
    envs._device = torch.device("meta")
    with Transfers() as transfers:
        assert envs.look().shape == (2, 1, 3)
    assert transfers.count == 1
