"""A replay that does not fit is refused before its memory is taken, and a large one says its size."""

import torch
from wording import refused, says

from corerl.buffers import memory_check
from corerl.buffers.frame_replay import FrameReplay
from corerl.buffers.replay import ReplayBuffer


def atari(capacity: int) -> FrameReplay:
    return FrameReplay((4, 84, 84), torch.uint8, 1, capacity, [0, 1], 8, discount=0.99, stack=4)


def test_frames_that_do_not_fit_are_refused_with_their_size(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 10e9)
    with refused("1,000,000 steps 2 seeds 14.1 GB cpu 7.06 10.0 algo.data.capacity"):
        atari(1_000_000)


def test_vectors_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 1e6)
    with refused("0.2 GB"):
        ReplayBuffer(17, 6, 1_000_000, [0], 256)


def test_a_large_one_says_its_size_and_a_small_one_nothing(monkeypatch, capsys):
    monkeypatch.setattr(memory_check, "WORTH_SAYING", 10**6)
    atari(10)
    assert not capsys.readouterr().err
    atari(1000)
    says(capsys.readouterr().err, "1,000 steps 2 seeds 0.0 GB cpu 0.01", lines=1)


def test_only_a_trial_takes_replays_of_any_size(monkeypatch):
    monkeypatch.setattr(memory_check, "available", lambda device: 1000)
    with memory_check.on_trial():
        assert atari(10)._frames.shape[1] == 10
    with refused("free"):
        atari(10)


def test_what_is_free_is_known_here():
    free = memory_check.available(torch.device("cpu"))
    assert free is None or 10**7 < free < 10**14
