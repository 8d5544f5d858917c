"""What is recorded is what was warmed up: the same tensors, the same strides, nothing compiled anew."""

import contextlib
import gc
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from graphs import CpuGraph
from small import random_dataset
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as pytree
from wording import refused, says

from corerl.buffers.frame_replay import DiscreteStep, FrameReplay
from corerl.buffers.mixed_replay import EpisodeReplay, MixedReplay
from corerl.buffers.prioritized import PrioritizedReplay
from corerl.buffers.replay import OfflineBuffer, ReplayBuffer
from corerl.buffers.sequences import SequenceBuffer
from corerl.nn import compile

SEEDS, BATCH = [0, 1], 4


class Rerun(CpuGraph):
    """Runs the update itself where a graph would be replayed: compiled code cannot be recorded here."""

    def record(self, call):
        self.call = call
        return call()

    def replay(self):
        self.replays += 1
        if self.replays > 1:
            self.call()


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(compile._Captured, "Graph", Rerun)
    Rerun.made.clear()


def tensors(inputs) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]


# Every kind of buffer.


def offline() -> OfflineBuffer:
    return OfflineBuffer(random_dataset().transitions(), SEEDS, BATCH)


def filled(kind, **options):
    replay = kind(3, 2, 100, SEEDS, BATCH, **options)
    rng = np.random.default_rng(0)
    for number in range(50):
        over = np.full(2, number % 10 == 9)
        seen, after = rng.standard_normal((2, 2, 3), np.float32)
        replay.add((seen, rng.standard_normal((2, 2)), rng.standard_normal(2), after, over, ~over))
    return replay


def frames() -> FrameReplay:
    replay = FrameReplay(
        (4, 5, 5), torch.uint8, 1, 60, SEEDS, BATCH, discount=0.9, n_step=3, stack=4
    )
    rng, no = np.random.default_rng(0), np.zeros(2, bool)
    for _ in range(40):
        seen = rng.integers(0, 255, (2, 4, 5, 5), np.uint8)
        rewards = rng.standard_normal((2, 1), np.float32)
        step = DiscreteStep(seen, np.zeros(2, np.int64), rewards[:, 0], seen, no, no, rewards)
        replay.add(step, rewards)
    return replay


def windows() -> SequenceBuffer:
    data = random_dataset()
    filler = (np.zeros(3, np.float32), np.zeros(2, np.float32))
    parts = (data.observations, data.actions, data.rewards, data.episode_ends)
    return SequenceBuffer(*parts, SEEDS, BATCH, 5, filler=filler)


def mixed(share: float | None):
    return MixedReplay(offline(), filled(ReplayBuffer), share, SEEDS, BATCH).sample


BUFFERS = {
    "data": lambda: offline().sample,
    "data, fewer rows": lambda: partial(offline().sample, 3),
    "replay": lambda: filled(ReplayBuffer).sample,
    "replay of episodes": lambda: filled(EpisodeReplay, label=lambda x: x).sample_labelled,
    "data and replay": lambda: mixed(0.5),
    "data or replay": lambda: mixed(None),
    "priorities": lambda: lambda: filled(PrioritizedReplay, horizon=3).sample_pieces(3),
    "frames": lambda: frames().sample,
    "windows": lambda: windows().sample,
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_an_update_is_compiled_once_for_a_buffer(on_cpu, monkeypatch, kind):
    """Over warm-up, recording and 20 further calls; and every one of them reads the same memory."""
    sample, counter = BUFFERS[kind](), CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    weight = torch.nn.Parameter(torch.ones(2, 1))
    seen = set()

    def loss(batch):
        per_seed = sum(
            (weight * x.float().reshape(2, -1)).mean(1) for x in tensors(batch) if x.numel()
        )
        return per_seed, {"loss": per_seed}

    gradients = compile.gradients(loss, [weight], "graph")

    def update(batch):
        seen.add(tuple((x.data_ptr(), x.stride()) for x in tensors(batch)))
        grads, metrics = gradients(batch)
        return metrics | {"gradient": grads[0]}

    captured = compile.captured(update, "graph")
    torch._dynamo.reset()
    compiled_after = []
    for _ in range(compile._Captured.WARM_UP + 21):
        batch = sample()
        captured(batch)
        compiled_after.append(counter.frame_count)
        assert all(map(torch.equal, tensors(captured._inputs), tensors(batch)))
    assert compiled_after == [1] * len(compiled_after)
    assert len(seen) == 1
    assert CpuGraph.made[0].replays == 21


def test_inputs_of_another_kind_are_refused(on_cpu):
    captured = compile.captured(lambda x, n: {"sum": x.sum() * n}, "graph")
    captured(torch.ones(3), 2)
    for wrong in ((torch.ones(1), 2), (torch.ones(3), 5), (torch.ones(3).long(), 2)):
        with pytest.raises(ValueError):
            captured(*wrong)


# What a GPU may refuse.


class Refuses(CpuGraph):
    """Recording fails as torch's does: the cause first, then the end of the capture."""

    def record(self, call):
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError("capture ended in an error")


@pytest.fixture
def refusing(monkeypatch):
    monkeypatch.setattr(compile._Captured, "Graph", Refuses)


def test_a_failed_capture_is_a_warning_where_a_graph_was_not_asked_for(refusing, capsys):
    total, mode = torch.zeros(()), compile.resolve("auto", torch.device("cuda"), 10)
    captured = compile.captured(lambda x: {"sum": total.add_(x) * 1.0}, mode)
    assert [captured(torch.ones(()))["sum"].item() for _ in range(8)] == list(range(1, 9))
    why = "CUDA graph capture failed: operation not permitted when stream is capturing"
    assert (mode.plan, mode.ran, mode.problem) == ("graph", "compile", why)
    assert capsys.readouterr().err.count("operation not permitted when stream is capturing") == 1


def test_what_could_not_be_compiled_is_recorded_as_it_is_and_says_so(refusing, monkeypatch):
    def broken(_):
        raise torch._dynamo.exc.TorchDynamoException("no compiler")

    monkeypatch.setattr(compile._Fallback, "said", True)
    mode = compile.resolve("auto", torch.device("cuda"), 10)
    gradients = compile._Fallback(broken, lambda x: {"sum": x * 1.0}, mode)
    gradients(torch.ones(()))
    says(mode.reported(), "compiler graph", lines=0)
    captured = compile.captured(gradients, mode)
    for _ in range(5):
        captured(torch.ones(()))
    assert mode.ran == "off"
    says(mode.problem, "capture")


def test_a_failed_capture_is_an_error_where_a_graph_was_asked_for(refusing):
    mode = compile.resolve("graph", torch.device("cuda"), 10)
    captured = compile.captured(lambda x: {"sum": x}, mode)
    with refused("compile=graph"):
        for _ in range(4):
            captured(torch.ones(()))


def test_a_rehearsal_waits_for_what_was_before_it_and_is_waited_for(monkeypatch):
    events = []

    class Stream:
        def __init__(self, device):
            self.wait_stream = lambda other: events.append((self, other))

    before = Stream("cuda")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: before)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    graph = compile.CudaGraph("cuda")
    assert graph.rehearse(lambda: events.append("call") or 7) == 7
    assert events == [(graph._stream, before), "call", (before, graph._stream)]


def test_after_a_failed_capture_the_stream_is_as_it_was(monkeypatch):
    streams = ["own"]

    class Graph:
        """Torch's context: where the capture ends in an error, its stream stays."""

        def __init__(self, graph, stream):
            self.stream = stream

        def __enter__(self):
            streams.append(self.stream)

        def __exit__(self, *_):
            raise RuntimeError("capture ended in an error")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    graph = compile.CudaGraph("cuda:1")
    with contextlib.suppress(RuntimeError):
        graph.record(lambda: None)
    assert streams == ["own", "stream of cuda:1", "own"]


def test_no_garbage_is_collected_while_a_graph_is_recorded(monkeypatch):
    """An old graph that is destroyed then ends the recording."""

    class Old:
        def __init__(self):
            self.itself = self

    for name in ("Stream", "CUDAGraph", "set_stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: contextlib.nullcontext())
    before = weakref.ref(Old())
    graph, seen = compile.CudaGraph("cuda"), []

    def call():
        seen.append((before() is None, gc.isenabled()))
        raise RuntimeError("cannot be recorded")

    with contextlib.suppress(RuntimeError):
        graph.record(call)
    assert seen == [(True, False)] and gc.isenabled()
