"""A replay that does not fit is refused before its memory is taken, and a large one says its size."""

import pytest
import torch

from corerl.buffers import memory_check
from corerl.buffers.frame_replay import FrameReplay
from corerl.buffers.replay import ReplayBuffer
from corerl.errors import CorerlError


def atari(capacity: int) -> FrameReplay:
    return FrameReplay((4, 84, 84), torch.uint8, 1, capacity, [0, 1], 8, discount=0.99, stack=4)


def test_frames_that_do_not_fit_are_refused_with_their_size(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 10e9)
    with pytest.raises(CorerlError) as reported:
        atari(1_000_000)
    assert str(reported.value).startswith(
        "The replay of 1,000,000 steps for 2 seeds takes 14.1 GB on cpu (7.06 a seed), and 10.0 GB are "
        "free: choose a smaller algo.data.capacity"
    )


def test_vectors_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 1e6)
    with pytest.raises(CorerlError, match=r"takes 0\.2 GB on cpu"):
        ReplayBuffer(17, 6, 1_000_000, [0], 256)


def test_a_large_one_says_its_size_and_a_small_one_nothing(monkeypatch, capsys):
    monkeypatch.setattr(memory_check, "WORTH_SAYING", 10**6)
    atari(10)
    assert not capsys.readouterr().err
    atari(1000)
    reported = "corerl: The replay of 1,000 steps for 2 seeds takes 0.0 GB on cpu (0.01 a seed).\n"
    assert capsys.readouterr().err == reported


def test_only_a_trial_takes_replays_of_any_size(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 1000)
    with memory_check.on_trial():
        assert atari(10)._frames.shape[1] == 10
    with pytest.raises(CorerlError, match="are free"):
        atari(10)


def test_what_is_free_is_known_here():
    free = memory_check.available(torch.device("cpu"))
    assert free is None or 10**7 < free < 10**14
