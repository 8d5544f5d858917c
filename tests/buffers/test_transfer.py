"""What goes to the device goes in one transfer, and actions come back in one; `meta` stands for a GPU."""

import importlib
import inspect
from types import SimpleNamespace

import gymnasium
import numpy as np
import pretend
import pytest
import torch
from tiny import LEARNERS
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from corerl import seeding
from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.buffers.transfer import Inbox, Outbox
from corerl.data.tasks import resolve
from corerl.training.environments import Environments
from corerl.training.experience import Collect, Experience
from corerl.training.offline_to_online import Phases
from corerl.training.stock_play import Stocks

SEEDS = [0, 1]


class Transfers(TorchDispatchMode):
    """Counts operations that read on one device and write on another; what comes back is zeros."""

    def __init__(self):
        super().__init__()
        self.sent, self.received = 0, 0

    @property
    def count(self) -> int:
        return self.sent + self.received

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default and _way(args[1], args[0]) == "received":
            self.received += 1
            return args[0].zero_()
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            self.received += args[0].device.type == "meta"
            return torch.zeros_like(args[0], **kwargs)
        out = func(*args, **kwargs)
        leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        ways = {_way(one, other) for one in leaves for other in (*leaves, *made)}
        self.sent += "sent" in ways
        return out


def _way(read: torch.Tensor, written: torch.Tensor) -> str:
    return {("cpu", "meta"): "sent", ("meta", "cpu"): "received"}.get(
        (read.device.type, written.device.type), ""
    )


@pytest.fixture
def device(monkeypatch):
    """Without generators, which it has none of."""
    monkeypatch.setattr(seeding, "generators", lambda *_: [])
    return "meta"


def test_pinned_memory_is_filled_again_once_the_stream_of_its_own_gpu_has_read_it(monkeypatch):
    """Not the current GPU's stream, which has nothing to wait for."""
    recorded = []

    class Event(pretend.Stream):
        def record(self, stream=None):
            recorded.append(stream)

        def synchronize(self):
            recorded.append("waited")

    with pretend.gpu():
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"of {device}")
        box = Outbox({"a": ((2,), torch.float32)}, "cuda:0")
        box.send()
        assert recorded == ["of cuda:0"]
        box.open()
        assert recorded == ["of cuda:0", "waited"]


@pytest.fixture
def travelling(monkeypatch):
    """What is sent is read as late as it may be: when the host waits for it, it is still what it was."""
    under_way, send, wait = {}, Outbox.send, Outbox.open

    def sent(box):
        assert box not in under_way
        under_way[box] = box._host.clone()
        return send(box)

    def opened(box):
        assert torch.equal(under_way.pop(box, box._host), box._host)
        return wait(box)

    monkeypatch.setattr(Outbox, "send", sent)
    monkeypatch.setattr(Outbox, "open", opened)
    return under_way


def test_nothing_is_written_over_what_still_travels(travelling, device):
    images = {"discount": 0.9, "stack": 4, "device": device}
    frames = FrameReplay((4, 6, 6), torch.uint8, 1, 20, SEEDS, 4, **images)
    replay = ReplayBuffer(3, 2, 10, SEEDS, 4, device)
    envs = Environments(lambda: gymnasium.make("Pendulum-v1"), SEEDS, "cpu")
    envs._device = torch.device(device)
    no = np.zeros(2, bool)
    for number in range(1, 4):
        seen = np.full((2, 4, 6, 6), number, np.uint8)
        step = DiscreteStep(seen, no, no, seen, no, no, no)
        frames.add(step, np.full((2, 1), number, np.float32))
        replay.add([np.full((2, n), number) for n in (3, 2, 1, 3, 1, 1)])
        envs.look()
        envs.step(torch.zeros(2, 1, 1))
    assert len(travelling) == 3


class Late(TorchDispatchMode):
    """Copies to the host that need not be waited for are made when they are."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and isinstance(args[1], pretend.OnGpu) and args[2:]:
            self.copies.append((args[0], args[1].numbers))
            return args[0]
        return func(*args, **(kwargs or {}))

    def synchronize(self) -> None:
        for here, there in self.copies:
            here.copy_(there)


def test_what_comes_back_is_read_when_it_is_there(monkeypatch):
    with pretend.gpu(), Late() as late:
        monkeypatch.setattr(torch.cuda, "current_stream", {torch.device("cuda:0"): late}.get)
        inbox = Inbox()
        for number in range(3):
            sent = torch.full((2, 1, 3), float(number), device="cuda:0")
            assert inbox.receive(sent).tolist() == [[[number] * 3]] * 2
    assert len(late.copies) == 3


class Draws:
    """A stream whose numbers are on the device."""

    def __init__(self, _, __, shape, device, ___=None):
        self._numbers = torch.zeros(2, *shape, device=device)

    def next(self) -> torch.Tensor:
        return self._numbers


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


def test_what_comes_back_is_what_was_there():
    inbox = Inbox()
    one = inbox.receive(torch.ones(2, 1, 3))
    assert one.tolist() == torch.ones(2, 1, 3).tolist()
    with Transfers() as transfers:
        inbox.receive(torch.zeros(2, 1, 3, device="meta"))
        assert (transfers.sent, transfers.received) == (0, 1)
        one, other = (inbox.receive(torch.zeros(2, device="meta")) for _ in range(2))
        assert inbox.receive(torch.zeros(2, dtype=torch.int64, device="meta")).dtype == torch.int64
    assert one.data_ptr() != other.data_ptr()


def test_a_step_of_numbered_actions_is_seen_returned_and_stored_in_a_transfer_each(
    device, monkeypatch
):
    monkeypatch.setattr(seeding, "uniform", Draws)
    cfg = Collect(learning_starts=1, epsilon_steps=1, capacity=50)
    run = SimpleNamespace(seeds=SEEDS, device=device, task=resolve("maze/v1-vector"))
    run.cfg = SimpleNamespace(steps=100)
    experience = Experience(cfg, run, 4, 0.9)
    with Transfers() as transfers:
        played, stored = experience.play_one(
            5, lambda seen: torch.zeros(2, 1, device=device).long()
        )
    assert (transfers.sent, transfers.received) == (2, 1)

    stocked = SimpleNamespace(low=0.0, high=1.0, starts=2, discount=0.9, explore=0.5)
    stocks = Stocks(stocked, experience.envs.look(), SEEDS, device)
    with Transfers() as transfers:
        for over in (False, True):  # where an episode ended, what it goes on with is looked at
            end = played._replace(truncated=np.full(2, over), terminated=np.zeros(2, bool))
            stocks.follow(end, stored, experience.envs.look)
            assert (transfers.sent, transfers.received) == (int(over), 0)


def test_fine_tuning_acts_with_a_transfer_each_way_and_one_to_store(device, monkeypatch):
    monkeypatch.setattr(seeding, "normal", Draws)
    phases = Phases.__new__(Phases)
    phases.envs = Environments(lambda: gymnasium.make("Pendulum-v1"), SEEDS, device)
    phases.replay = ReplayBuffer(3, 1, 10, SEEDS, 4, device)
    phases._exploration, phases._learned = Draws(0, 0, (1, 1), device), lambda step: step
    phases._clip = 1.0
    with Transfers() as transfers:
        phases.step(phases.choose(lambda seen, noise: seen.mean(-1, keepdim=True) + noise))
    assert (transfers.sent, transfers.received) == (2, 1)


@pytest.mark.parametrize("name", LEARNERS)
def test_no_algorithm_moves_tensors_by_itself_while_it_trains(name):
    source = inspect.getsource(importlib.import_module(f"corerl.algos.{name}").train)
    loop = source.partition(" in run.steps(")[2] or source
    assert not [call for call in (".cpu()", ".numpy()", ".item()", ".tolist()") if call in loop]
