"""Every algorithm's update is the same eager and replayed from a recording, as a CUDA graph would be.

Here the recording is of a CPU's operations (tests/graphs.py), so that no GPU is needed.
"""

import pytest
import tiny
import torch
from graphs import CpuGraph
from small import flatten

from corerl.nn import compile


@pytest.fixture
def recorded(monkeypatch):
    """Updates are recorded and replayed; their losses stay eager, so that every operation is seen."""
    monkeypatch.setattr(compile._Captured, "Graph", CpuGraph)
    monkeypatch.setattr(
        compile, "captured", lambda update, mode: compile._Captured(update, compile.Mode("graph"))
    )
    CpuGraph.made.clear()


def unequal(one: dict, other: dict) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if one[name] != other[name]]


@pytest.mark.parametrize("name", tiny.JOBS)
def test_a_replayed_update_is_the_eager_one(recorded, monkeypatch, name):
    with monkeypatch.context() as eager:
        eager.setattr(compile, "captured", lambda update, mode: update)
        plain = tiny.Short(tiny.settings(name))
    replayed = tiny.Short(tiny.settings(name))
    assert unequal(flatten(plain.state()), flatten(replayed.state())) == []
    assert unequal(flatten(plain.metrics), flatten(replayed.metrics)) == []
    graphs = [graph for graph in CpuGraph.made if graph.replays]
    assert graphs and all(graph.replays >= 5 for graph in graphs)
    assert [dict(graph.hazards) for graph in graphs if graph.hazards] == []


# The recording itself: what a graph cannot do, it does not do either.

STATE = torch.zeros(2)


class Counts:
    """A Python number decides the update."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return {"sum": STATE.add_(x * self.calls) * 1.0}


def reads(x):
    return {"sum": STATE.add_(x * x.sum().item()) * 1.0}


def draws(x):
    return {"sum": STATE.add_(x + torch.rand(2, device=x.device)) * 1.0}


def nowhere(x):
    return {"sum": STATE.add_(x + torch.zeros(2)) * 1.0}


def sound(x):
    return {"sum": STATE.add_(x.square() + torch.zeros(2, device=x.device)) * 1.0}


def sums(update, captured) -> list[list[float]]:
    STATE.zero_()
    call = captured(update, "graph") if captured else update
    return [call(torch.full((2,), float(n)))["sum"].tolist() for n in range(8)]


@pytest.mark.parametrize(
    ("update", "hazard", "equal"),
    [
        (lambda: sound, None, True),
        (Counts, None, False),
        (lambda: reads, "read by the host: _local_scalar_dense", False),
        (lambda: draws, "random: rand", True),  # the CPU draws anew in either
        (lambda: nowhere, "no device: zeros", True),
    ],
    ids=["sound", "a counter", "item", "rand", "no device"],
)
def test_what_a_graph_cannot_do_is_noticed(recorded, update, hazard, equal):
    torch.manual_seed(0)
    eager = sums(update(), None)
    torch.manual_seed(0)
    replayed = sums(update(), compile.captured)
    assert (eager == replayed) == equal
    (graph,) = CpuGraph.made
    assert graph.replays == 5 and list(graph.hazards) == ([hazard] if hazard else [])
