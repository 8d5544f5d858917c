"""GCPC: the authors' equations, masks and losses by hand, and what its slots can know at most."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from agreement import SEEDS, A, O, as_tensor, assert_networks, generators, net, scramble
from reference_gcpc import GCPC as Reference
from small import cell
from torch import Tensor
from wording import refused

from corerl.algos.gcpc import GCPC, Config, GCPCPlayer, remaining
from corerl.buffers.trajectories import Trajectories
from corerl.nn import transformer
from corerl.nn.learner import Spec

G, C, FUTURE, B = 2, 5, 3, 6
SMALL = {"history": C, "future": FUTURE, "width": 8, "heads": 2, "slots": 2, "batch_size": B}
SMALL |= {"hidden_width": 7, "dropout": 0.0}


def make(states: int = O, goal: int = G, actions: int = A, seeds: int = SEEDS, **own) -> GCPC:
    spec = Spec(states + goal, actions, generators(seeds), facts={"goal_dim": goal})
    return GCPC(Config(**SMALL | own), spec)


def draws(
    rng: np.random.Generator, seeds: int = SEEDS, rows: int = B
) -> tuple[Trajectories, Tensor]:
    """Windows whose goals are at any step from C on, and uniform numbers."""
    ends = rng.integers(C, C + FUTURE + 1, (seeds, rows, 1))
    valid = np.arange(C + FUTURE) < ends
    normal = lambda *shape: rng.normal(size=(seeds, rows, *shape))  # noqa: E731
    batch = normal(C, O), normal(C, A), normal(G), normal(C + FUTURE, G), valid
    return Trajectories(*map(as_tensor, batch)), as_tensor(rng.random((seeds, rows, 2 + C)))


@pytest.mark.parametrize(
    "own", [{}, {"mask": "mae_f", "decoder_layers": 2}], ids=["mae_rc", "mae_f"]
)
def test_it_equals_the_equations(own, float64):
    agent = make(whole=0.3, max_grad_norm=0.5, encoder_lr=1e-2, lr=1e-2, **own)
    scramble(agent.trajnet, agent.policy)
    nets = lambda s: (net(agent.trajnet, s), net(agent.policy, s))  # noqa: E731
    theirs = [Reference(agent.cfg, *nets(s)) for s in range(SEEDS)]
    rng = np.random.default_rng(0)
    for call in ["fit"] * 4 + ["update"] * 4:
        batch, uniform = draws(rng)
        (losses,) = getattr(agent, call)(batch, uniform, None).values()
        for s, their in enumerate(theirs):
            expected = getattr(their, call)([x[s] for x in batch], uniform[s])
            assert losses[s].item() == pytest.approx(expected, rel=1e-7)
    for s, their in enumerate(theirs):
        assert_networks(nets(s), their.networks(), 1e-7)


# Masks.


def test_shares_are_rounded_as_in_the_authors_code():
    """10 * (1 - 0.8) is 1.9999999999999996 there."""
    assert [remaining(10, share) for share in (0.0, 0.2, 0.4, 0.6, 0.8)] == [10, 8, 6, 4, 1]
    assert [remaining(5, share) for share in (0.0, 0.2, 0.4, 0.6, 0.8)] == [5, 4, 3, 2, 1]


def test_lengths_by_hand():
    """80 % of windows have all of the history, and 5 % each 0.2, 0.4, 0.6 and 0.8 less."""
    uniform = torch.zeros(1, 6, 12)
    uniform[0, :, 0] = torch.tensor([0.0, 0.79, 0.81, 0.86, 0.91, 0.96])
    assert make(seeds=1, history=10).lengths(uniform)[0].tolist() == [10, 10, 8, 6, 4, 1]
    assert make(seeds=1, history=10, whole=1.0).lengths(uniform)[0].tolist() == [10] * 6


def test_masks_by_hand():
    """Of 5 states all have been seen and 3 are shown, the smallest draws; of 3 seen 2; of 1 that one."""
    order = [0.5, 0.1, 0.9, 0.3, 0.2]
    uniform = torch.tensor([[[0.0, 0.45, *order], [0.86, 0.25, *order], [0.96, 0.99, *order]]])
    shown = [
        [False, True, False, True, True],
        [True, True, False, False, False],
        [True] + 4 * [False],
    ]
    assert make(seeds=1).visible(uniform)[0].tolist() == shown
    seen = [[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4]
    assert make(seeds=1, mask="mae_f").visible(uniform)[0].tolist() == seen


def test_hidden_states_do_not_count(float64):
    """The prediction has no gradient in a hidden state, and one in every state that is shown."""
    agent = make()
    batch, uniform = draws(np.random.default_rng(1))
    states = batch.observations.requires_grad_()
    shown = agent.visible(uniform)
    slots = agent.trajnet.encode(states, batch.goals, shown)
    (gradient,) = torch.autograd.grad(agent.trajnet.decode(slots, 8).square().sum(), states)
    assert ((gradient != 0).all(-1) == shown).all() and not shown.all()
    assert (gradient[~shown] == 0).all()


# Losses by hand.


@torch.no_grad()
def constant(layer, value: float) -> None:
    layer.weight.zero_()
    layer.bias.fill_(value)


def test_losses_by_hand():
    """All predictions are 0.5: errors where the goal is not yet reached. All actions are 0.25."""
    agent = make(seeds=1, goal=1, actions=1)
    constant(agent.trajnet.predict, 0.5)
    constant(agent.policy.body.layers[-1], 0.25)
    achieved = torch.zeros(1, 2, C + FUTURE, 1)
    achieved[0, 0, 4], achieved[0, 1, 7] = 2.5, 9.0
    valid = (torch.arange(C + FUTURE) < torch.tensor([[5], [7]]))[None].float()
    actions = torch.arange(10.0).view(1, 2, C, 1)
    batch = Trajectories(torch.zeros(1, 2, C, O), actions, torch.zeros(1, 2, 1), achieved, valid)
    uniform = torch.zeros(1, 2, 2 + C)
    uniform[0, 1, 0] = 0.91  # 2 states seen: the second's action is 6
    loss, _ = agent.prediction_loss(batch, uniform, None)
    assert loss.item() == pytest.approx((11 * 0.5**2 + 2.0**2) / 12)
    loss, _ = agent.policy_loss(batch, uniform, None)
    assert loss.item() == pytest.approx(((4 - 0.25) ** 2 + (6 - 0.25) ** 2) / 2)


def test_the_policy_leaves_the_encoder_as_it_is():
    agent = make()
    before = [p.clone() for p in agent.trajnet.parameters()]
    agent.update(*draws(np.random.default_rng(2)), None)
    assert all(map(torch.equal, before, agent.trajnet.parameters()))


@pytest.mark.parametrize("drops", [True, False])
def test_dropout_in_the_frozen_encoder_has_a_switch(drops):
    agent = make(dropout=0.5, encoder_dropout=drops)
    batch, uniform = draws(np.random.default_rng(3))
    keys = transformer.dropout_keys(range(SEEDS), agent.trajnet.places).next()
    with_keys, without = (agent.policy_loss(batch, uniform, k)[0] for k in (keys, None))
    assert torch.equal(with_keys, without) != drops
    assert (agent.prediction_loss(batch, uniform, keys)[0] != with_keys).all()


def test_decoder_and_encoder_drop_by_keys_of_their_own():
    agent = make(dropout=0.5)
    batch, uniform = draws(np.random.default_rng(4))
    first, other = (
        transformer.dropout_keys([s] * SEEDS, agent.trajnet.places).next() for s in (0, 1)
    )
    places = agent.trajnet.encoder.places
    mixed = torch.cat([first[:, :places], other[:, places:]], 1)
    inputs = batch.observations, batch.goals, agent.visible(uniform)
    one, two, same = (agent.trajnet.encode(*inputs, keys) for keys in (first, other, mixed))
    assert torch.equal(one, same) and not torch.equal(one, two)
    one, two, same = (agent.trajnet.decode(one, 8, keys) for keys in (first, other, mixed))
    assert torch.equal(two, same) and not torch.equal(one, two)


# Acting.


def test_a_player_remembers_the_last_states():
    """At step t it shows the states from the first or the last 5 on, and forgets them at a new episode."""
    agent = make(seeds=2)
    player, rng = GCPCPlayer(agent), np.random.default_rng(5)
    shown = as_tensor(rng.normal(size=(7, 2, 3, O + G)))
    for _ in range(2):
        player.begin(2, 3)
        for t in range(7):
            action = player(shown[t])
            last = shown[max(0, t + 1 - C) : t + 1, ..., :O].permute(1, 2, 0, 3)
            seen = torch.full((2, 3), last.shape[2])
            states = torch.cat([last, torch.full((2, 3, C - last.shape[2], O), 9.0)], 2)
            expected = agent.actions(states, shown[t, ..., O:], seen).clamp(-1, 1)
            torch.testing.assert_close(action, expected)


def test_goals_may_be_parts_of_states():
    """The environment shows state and whole goal; the player hands on the goal's column."""
    spec = Spec(3, 1, generators(1), facts={"goal_dim": 1, "shown": torch.tensor([0, 1, 3])})
    agent = GCPC(Config(**SMALL), spec)
    player = GCPCPlayer(agent)
    actions = []
    for unseen in (0.0, 5.0):
        player.begin(1, 1)
        actions.append(player(torch.tensor([[[1.0, 2.0, unseen, 4.0]]])))
    assert torch.equal(*actions)


# What can be known of a random walk between its history and its goal.


def bridge(rng: np.random.Generator, rows: int, steps: int) -> tuple[Trajectories, Tensor]:
    """Walks of normal steps of variance 0.25 whose first state is shown, and whose goal is at `steps`."""
    walk = np.cumsum(rng.normal(0, 0.5, (1, rows, steps + 1, 1)), 2)
    first, goal, valid = walk[:, :, :1], walk[:, :, -1], np.ones((1, rows, steps))
    batch = first, np.zeros_like(first), goal, walk[:, :, :-1], valid
    return Trajectories(*map(as_tensor, batch)), as_tensor(rng.random((1, rows, 3)))


def test_predictions_come_to_the_brownian_bridge():
    """Between s at 0 and g at T a walk has the mean s + (g - s) t / T and the variance 0.25 t (T - t) / T."""
    rng, T = np.random.default_rng(6), 6
    own = {"history": 1, "future": T - 1, "width": 16, "layers": 1, "encoder_lr": 3e-3}
    agent = make(1, 1, 1, 1, **own)
    for step in range(1_200):
        if step == 900:
            agent.trajnet_optimizer.lr = 3e-4
        agent.fit(*bridge(rng, 128, T), None)
    batch, uniform = bridge(rng, 4_000, T)
    loss, _ = agent.prediction_loss(batch, uniform, None)
    t = torch.arange(T)
    assert loss.item() == pytest.approx((0.25 * t * (T - t) / T).mean().item(), rel=0.05)
    slots = agent.trajnet.encode(batch.observations, batch.goals, agent.visible(uniform))
    predicted = agent.trajnet.decode(slots, T)[..., 0]
    start, goal = batch.observations[..., 0], batch.goals
    exact = start + (goal - start) * t / T
    assert (predicted - exact).square().mean().sqrt() < 0.1


# Its settings.


def test_a_first_phase_of_all_steps_is_refused():
    cfg = cell("gcpc", "corerl/goal-maze")
    with refused("algo.encoder_steps=5000 steps=5000"):
        replace(cfg, steps=5_000).policy_steps()
