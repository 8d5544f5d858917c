"""MR.Q against its transcription, by hand, and as a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_mrq
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    net,
    scramble,
    twins,
)
from small import config, run, state_of
from wording import refused

from corerl.algos.mrq import MRQ, Config
from corerl.buffers.prioritized import Pieces, PrioritizedReplay
from corerl.nn.learner import Spec
from corerl.nn.two_hot import two_hot

SMALL = {
    "hidden_width": WIDTH,
    "action_width": 4,
    "reward_bins": 9,
    "reward_limit": 2.0,
    "horizon": 3,
    "discount": 0.9,
    "encoder_lr": 1e-3,
    "policy_lr": 5e-4,
    "critic_lr": 2e-3,
    "weight_decay": 0.1,
    "max_norm": 0.5,
    "flatness": 0.1,
    "smallest_priority": 0.5,
}


def make(**settings) -> MRQ:
    return MRQ(Config(**SMALL | settings), Spec(O, A, generators()))


def parts(agent: MRQ, seed: int) -> tuple:
    """Online networks and targets."""
    return tuple(
        (net(encoder, seed), net(policy, seed), twins(critic, seed))
        for encoder, policy, critic in (agent._online(), agent.targets)
    )


def make_pieces(count: int, length: int) -> list[Pieces]:
    """Other data for each seed; two thirds end early, half of those and some others at a terminal."""
    rng = np.random.default_rng(0)

    def pieces() -> Pieces:
        lead = (SEEDS, B, length)
        steps = rng.integers(1, 2 * length, (SEEDS, B, 1)).clip(max=length)
        counted = np.arange(length) < steps
        terminated = (np.arange(length) == steps - 1) & (rng.random((SEEDS, B, 1)) < 0.5)
        s, after = rng.normal(size=(SEEDS, B, O)), rng.normal(size=(*lead, O))
        a, r = rng.uniform(-1, 1, (*lead, A)), 4 * rng.normal(size=lead)
        return Pieces(*map(as_tensor, (s, a, r, after, terminated, counted)))

    return [pieces() for _ in range(count)]


def one(pieces: Pieces, seed: int) -> Pieces:
    return Pieces(*(x[seed].double().numpy() for x in pieces))


@pytest.mark.parametrize("terminal_reward", [True, False])
def test_steps_and_a_copy_between_them_equal_the_transcription(tolerance, terminal_reward):
    """Encoders, values, policy; then a copy, and all of it again on the new scale."""
    agent = make(terminal_reward=terminal_reward)
    scramble(*agent._online(), *agent.targets)
    references = [reference_mrq.MRQ(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    noises = list(as_tensor(np.random.default_rng(1).normal(size=(5, SEEDS, B, A)) * 2))
    met = torch.tensor([1.0, 0.0]).to(noises[0].dtype)
    data = zip(make_pieces(5, 3), make_pieces(5, 3), noises, strict=True)
    for number, (windows, returns, noise) in enumerate(data):
        if number in (2, 4):
            sizes = as_tensor([0.7 + number, 2.0])
            agent.copy_targets(sizes)
        agent.update_encoder(windows, met)
        metrics, priorities = agent.update(returns, noise)
        for i, reference in enumerate(references):
            if number in (2, 4):
                reference.copy(float(sizes[i]))
            losses = reference.update_encoder(one(windows, i), float(met[i]))
            more, expected = reference.update(one(returns, i), noise[i].double())
            assert_losses(metrics, i, losses | more, 10 * tolerance)
            np.testing.assert_allclose(priorities[i], expected, rtol=10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


def test_rewards_are_told_by_the_two_bins_around_them():
    """Bins symexp(-2, -1, 0, 1, 2); 0.5 is 0.291 of the way from 0 to e - 1."""
    agent = make(reward_bins=5)
    e = np.e - 1
    marks = [-(np.e**2 - 1), -e, 0, e, np.e**2 - 1]
    np.testing.assert_allclose(agent._bins, marks, rtol=1e-6)
    shares = two_hot(torch.tensor([[0.5, 0.0, -100.0, 100.0, marks[1]]]), agent._bins)[0]
    expected = [
        [0, 0, 1 - 0.5 / e, 0.5 / e, 0],
        [0, 0, 1, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 1, 0, 0, 0],
    ]
    torch.testing.assert_close(shares, torch.tensor(expected), atol=1e-5, rtol=0)


def test_target_value_by_hand():
    """Q' = 10 and 8 whatever is asked: min 8, times the old scale 3, discounted by the steps counted."""
    agent = make(n_step=3)
    with torch.no_grad():
        for p in agent.targets[2].parameters():
            p.zero_()
        agent.targets[2].layers[-1].bias.copy_(torch.tensor([10.0, 8.0]).view(1, 2, 1, 1))
    agent.since.target_scale.fill_(3.0)
    agent.since.scale.fill_(2.0)
    counted = [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0]]
    terminated = [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]]  # past the end they say nothing
    rewards = [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]
    rows = (torch.zeros(4, O), torch.zeros(4, 3, A), rewards, torch.zeros(4, 3, O))
    pieces = Pieces(
        *(torch.as_tensor(x).float().expand(SEEDS, *torch.as_tensor(x).shape) for x in rows),
        *(torch.tensor(x).float().expand(SEEDS, -1, -1) for x in (terminated, counted)),
    )
    y = agent.target_value(pieces, torch.zeros(SEEDS, 4, A))
    expected = [1 + 1.8 + 2.43 + 0.729 * 24, 2.8 + 0.81 * 24, 2.8, 1 + 0.9 * 24]
    assert y[0].tolist() == pytest.approx([x / 2 for x in expected])
    agent.cfg.terminal_reward = False
    expected[2] = 1.0
    assert agent.target_value(pieces, torch.zeros(SEEDS, 4, A))[0].tolist() == pytest.approx(
        [x / 2 for x in expected]
    )


def test_values_loss_by_hand():
    """Q = 0 and 1 at every state, y = 4: Huber 3.5 and 2.5, whose mean it is; 4 is the larger error."""
    agent = make()
    with torch.no_grad():
        for p in agent.critic.parameters():
            p.zero_()
        agent.critic.layers[-1].bias.copy_(torch.tensor([0.0, 1.0]).view(1, 2, 1, 1))
    agent.target_value = lambda pieces, noise: torch.full(pieces.rewards.shape[:2], 4.0)
    (pieces,) = make_pieces(1, 3)
    loss, metrics = agent.critic_loss(pieces, torch.zeros(SEEDS, B, A))
    assert loss.tolist() == [3.0, 3.0]
    torch.testing.assert_close(metrics["priorities"], torch.full((SEEDS, B), 4.0**0.4))


def test_a_model_that_is_right_has_no_error_but_of_its_bins():
    """The end's and the features' errors vanish where both are constant, and past the end all do."""
    agent = make()
    with torch.no_grad():
        for p in (*agent.encoder.parameters(), *agent.targets[0].parameters()):
            p.zero_()
    (pieces,) = make_pieces(1, 3)
    pieces = pieces._replace(terminated=torch.zeros_like(pieces.terminated))
    _, losses = agent.encoder_loss(pieces, torch.ones(SEEDS))
    assert losses["dynamics_loss"].tolist() == losses["end_loss"].tolist() == [0, 0]
    expected = np.log(9) * pieces.counted.sum(-1).mean(-1)
    torch.testing.assert_close(losses["reward_loss"], expected)


def test_it_acts_with_the_online_networks_and_explores_within_the_bounds():
    agent = make(noise=0.2)
    scramble(*agent._online())
    rng = torch.Generator().manual_seed(0)
    states, noise = (torch.randn(SEEDS, 50, n, generator=rng) for n in (O, A))
    actions = agent.act(states)
    scramble(*agent.targets)
    assert torch.equal(agent.act(states), actions)
    found = agent.explore(states, noise)
    torch.testing.assert_close(found, (actions + 0.2 * noise).clamp(-1, 1))
    assert (found.abs() == 1).any() and (found.abs() < 1).any()


def test_rewards_of_nothing_have_a_scale():
    agent = make()
    agent.copy_targets(torch.zeros(SEEDS))
    (pieces,) = make_pieces(1, 3)
    y = agent.target_value(pieces._replace(rewards=0 * pieces.rewards), torch.zeros(SEEDS, B, A))
    assert y.isfinite().all()


def test_a_fresh_network_is_glorots_times_the_root_of_two_and_has_no_other_parameters():
    agent = make()
    for network in agent._online():
        for name, p in network.named_parameters():
            assert "norm" not in name
            if name.endswith("weight"):
                bound = (2 * 6 / sum(p.shape[-2:])) ** 0.5
                assert 0.8 * bound < p.abs().max() <= bound, name
            elif name.endswith("bias"):
                assert not p.any(), name


def settings(root: Path, **changes):
    own = {"random_steps": 10, "target_every": 8, "action_width": 4} | changes
    cfg = config(root, "mrq", own=own, steps=40, task="gym/Pendulum-v1")
    return replace(cfg, eval=replace(cfg.eval, every=20, episodes=1))


@pytest.mark.parametrize("own", [{"horizon": 1}, {"n_step": 1}, {"horizon": 1, "n_step": 1}])
def test_a_model_or_a_return_of_one_step_is_learned(tmp_path, own):
    state = state_of(run(replace(settings(tmp_path, **own), steps=20), stop=15))
    assert all(x.isfinite().all() for x in state["agent"]["critic"].values())


def test_the_first_steps_have_the_smallest_priority(tmp_path):
    cfg = settings(tmp_path, random_steps=30, smallest_priority=0.25)
    assert state_of(run(cfg, stop=20))["replay"]["priorities"].eq(0.25).all()


def test_episodes_too_short_for_a_piece_are_refused():
    """Three steps to a time limit, again and again, and pieces of three with one behind them."""
    replay = PrioritizedReplay(1, 1, 8, [0], 4, horizon=3)
    row, no, yes = np.zeros((1, 1)), np.zeros(1), np.ones(1)
    for i in range(12):
        replay.add((row, row, no, row, no, yes if i % 3 == 2 else no))
    with refused("gym/Short-v0 4 steps _steps"):
        replay.require_ready("gym/Short-v0")
    replay.add((row, row, no, row, yes, no))
    replay.require_ready("gym/Short-v0")


def test_numbered_actions_are_refused(tmp_path):
    with refused("Discrete"):
        run(replace(settings(tmp_path), task="gym/CartPole-v1"))
