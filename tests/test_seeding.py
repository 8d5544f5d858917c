"""Streams: fixed by seed and purpose alone, and resumed at the very next draw."""

import numpy as np
import pytest
import torch
from wording import refused

from corerl import seeding
from corerl.seeding import BLOCK

SEEDS = list(range(10))
MAKERS = {
    "normal": lambda seeds: seeding.normal(seeds, "noise", (2, 3)),
    "uniform": lambda seeds: seeding.uniform(seeds, "noise", (2, 3)),
    "indices": lambda seeds: seeding.indices(seeds, 1000, 4),
    "small blocks": lambda seeds: seeding.normal(seeds, "noise", (2, 3), block=7),
    "large draws": lambda seeds: seeding.uniform(seeds, "noise", (2, 600)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that the large draws above come 54 steps at a time."""
    monkeypatch.setattr(seeding, "BLOCK_BYTES", 260_000)


def draws(stream: seeding.Stream, count: int) -> torch.Tensor:
    return torch.stack([stream.next() for _ in range(count)])


def test_the_numbers_of_a_seed_never_change():
    # 8 bytes of blake2b of "init/0" and "batch/3", without the last bit. To change these is to change
    # every result.
    assert seeding.derive(0, "init") == 7285725289518747431
    assert seeding.derive(3, "batch") == 8304996335913608540


def test_different_pairs_derive_different_numbers():
    pairs = [(seed, purpose) for seed in range(200) for purpose in ("init", "batch", "noise")]
    assert len({seeding.derive(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_seed_draws_the_same_alone_and_in_company(make):
    count = BLOCK + 3
    together = draws(make(SEEDS), count)
    assert torch.equal(draws(make([3]), count)[:, 0], together[:, 3])
    assert torch.equal(draws(make([7, 3]), count), together[:, [7, 3]])
    assert not torch.equal(together[:, 3], together[:, 4])


def test_purposes_are_independent():
    noise, other = (seeding.normal([0], name, (50,)) for name in ("noise", "dropout"))
    assert not torch.equal(noise.next(), other.next())
    alone = draws(seeding.normal([0], "noise", (50,)), 5)
    draws(other, 100)
    noise = seeding.normal([0], "noise", (50,))
    assert torch.equal(draws(noise, 5), alone)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("drawn", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
@pytest.mark.parametrize("other", [0, 5, BLOCK], ids=["fresh", "inside a block", "at its end"])
def test_resumes_with_the_very_next_draw(make, drawn, other):
    stream = make([0, 5])
    for _ in range(drawn):
        stream.next()
    state = stream.state_dict()
    expected = draws(stream, 10)
    resumed = make([0, 5])
    for _ in range(other):
        resumed.next()
    resumed.load_state_dict(state)
    assert torch.equal(draws(resumed, 10), expected)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_stream_of_another_kind_of_device_is_refused_and_changes_nothing(make):
    """A CUDA generator's state has 16 bytes."""
    stream = make([0, 5])
    of_a_gpu = stream.state_dict() | {"generators": torch.zeros(2, 16, dtype=torch.uint8)}
    first = draws(stream, 3)
    with pytest.raises(seeding.OtherDevice):
        stream.load_state_dict(of_a_gpu)
    assert torch.equal(draws(stream, 2), draws(make([0, 5]), 5)[3:]) and len(first) == 3


def test_saving_disturbs_no_draw():
    saved, untouched = (seeding.normal([0], "noise", (2,)) for _ in range(2))
    for _ in range(BLOCK + 5):
        saved.state_dict()
        assert torch.equal(saved.next(), untouched.next())


def test_the_distributions_are_what_they_say():
    def wide(stream):
        return draws(stream, 50).double()

    uniform = wide(seeding.uniform([1], "noise", (1000,)))
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 1 / 2) < 5 / (12 * 50_000) ** 0.5
    normal = wide(seeding.normal([1], "noise", (1000,)))
    assert abs(normal.mean()) < 5 / 50_000**0.5
    assert abs(normal.var() - 1) < 5 * (2 / 50_000) ** 0.5
    rows = draws(seeding.indices([1], 7, 1000), 50)
    assert rows.dtype == torch.int64
    counts = torch.bincount(rows.flatten(), minlength=7)
    assert len(counts) == 7
    assert (counts - 50_000 / 7).abs().max() < 5 * (50_000 / 7) ** 0.5


def test_remainders_of_whole_numbers_are_even_whatever_the_size():
    thirds = seeding.numbers([0], "batch", 3000).next() % (3 * 2**40) // 2**40
    assert torch.bincount(thirds[0], minlength=3).sub(1000).abs().max() < 5 * (3000 * 2 / 9) ** 0.5


@pytest.mark.parametrize(
    ("probabilities", "problem"),
    [
        ([0.5, 0.5], "(2,) (3,)"),
        ([0.25] * 4, "(4,) (3,)"),
        ([[0.5, 0.25, 0.25]], "1 3 (3,)"),
        ([0.5, np.nan, 0.5], "1 nan"),
        ([0.5, 1.0, -0.5], "2 -0.5"),
        ([np.inf, 1.0, 1.0], "0 inf"),
        ([0.0, 0.0, 0.0], "0"),
    ],
)
def test_probabilities_that_are_none_are_refused(probabilities, problem):
    with refused(problem):
        seeding.indices([0], 3, 4, probabilities=np.array(probabilities))


def test_a_block_of_large_draws_is_a_few_steps(monkeypatch):
    """The dropout of IQL's policy: 134 MB of 256 steps of one seed."""
    monkeypatch.undo()
    dropout = seeding.uniform([0, 1], "dropout", (2, 256, 256))
    dropout.next()
    assert dropout._block.nbytes == 2 * seeding.BLOCK_BYTES and len(dropout._block) == 32
    huge = seeding.uniform([0], "dropout", (8, 1024, 1024))
    assert huge.next().shape == (1, 8, 1024, 1024) and len(huge._block) == 1


def test_a_stream_goes_on_with_the_blocks_that_it_was_saved_with():
    old = seeding.normal([0], "noise", (2, 601), block=BLOCK)
    draws(old, 100)
    for state in (old.state_dict(), {k: v for k, v in old.state_dict().items() if k != "block"}):
        new = seeding.normal([0], "noise", (2, 601))
        new.load_state_dict(state)
        expected = seeding.normal([0], "noise", (2, 601), block=BLOCK)
        assert torch.equal(draws(new, 200), draws(expected, 300)[100:])
