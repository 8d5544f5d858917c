"""ReBRAC against the numpy transcription, with each of its switches."""

import numpy as np
import pytest
import reference
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    actor_critic,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    make_noises,
    one_seed,
    scramble,
)

from corerl.algos.rebrac import Config, ReBRAC
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec

SWITCHES = {
    "authors": {},
    "ordinary_actor_target": {"stale_actor_target": False},
    "q_as_it_is": {"normalize_q": False},
    "no_layer_norm": {"critic_layer_norm": False},
    "no_critic_penalty": {"critic_bc_coef": 0.0},
    "delay_1": {"policy_delay": 1},
    "delay_3": {"policy_delay": 3},
    "fine-tuning": {},
}
SHARES = {"fine-tuning": (0.75, 0.25)}


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    settings = {"actor_bc_coef": 0.4, "critic_bc_coef": 0.3, "polyak": 0.1, "discount": 0.9}
    settings |= {"actor_lr": 1e-3, "critic_lr": 2e-3}
    cfg = Config(hidden_width=WIDTH, **settings | SWITCHES[switch])
    agent = ReBRAC(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    references = [reference.ReBRAC(*actor_critic(agent, s), cfg) for s in range(SEEDS)]
    delay, shares = cfg.policy_delay, SHARES.get(switch, (1.0, 1.0))
    batches, noises = make_batches(5 * delay), make_noises(5 * delay)
    for call in range(0, 5 * delay, delay):
        rows = slice(call, call + delay)
        factors = torch.tensor(shares) if switch in SHARES else None
        metrics = agent.update(batches[rows], noises[rows], factors)
        for s, theirs in enumerate(references):
            losses = {}
            for batch, noise in zip(batches[rows], noises[rows], strict=True):
                losses |= theirs.iterate(one_seed(batch, s), noise[s].double().numpy(), shares)
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(actor_critic(agent, s), theirs.networks(), tolerance)


def test_initial_weights_are_the_authors():
    agent = ReBRAC(Config(), Spec(17, 6, generators()))
    for network, last in ((agent.actor, 1e-3), (agent.critic, 3e-3)):
        *hidden, output = network.layers
        assert len(hidden) == 3
        for layer in hidden:
            bound = layer.weight.shape[-2] ** -0.5
            assert 0.97 * bound < layer.weight.abs().max() <= bound
            assert (layer.bias == 0.1).all()
        assert 0.97 * last < output.weight.abs().max() <= last
        assert 0 < output.bias.abs().max() <= last
    norms = [m for m in agent.critic.norms if not isinstance(m, torch.nn.Identity)]
    assert [m.eps for m in norms] == [1e-6] * 3
    assert all(isinstance(m, torch.nn.Identity) for m in agent.actor.norms)


def test_the_next_action_is_the_raw_one_even_where_its_row_is_dropped():
    """Five steps to a time limit (its row has no next state), then two to a terminal state."""
    obs = np.arange(7.0)[:, None]
    dataset = Dataset.from_steps(
        "test/seven",
        obs,
        obs / 10,
        np.zeros(7),
        obs + 1,
        terminated=[0, 0, 0, 0, 0, 0, 1],
        truncated=[0, 0, 0, 0, 1, 0, 0],
        has_next=[1, 1, 1, 1, 0, 1, 1],
    )
    rows = dataset.transitions(next_actions=True)
    # Shifting the filtered rows would pair state 3 with action 0.5 of the next episode.
    assert rows.observations[:, 0].tolist() == [0, 1, 2, 3, 5, 6]
    np.testing.assert_allclose(rows.next_actions[:5, 0], [0.1, 0.2, 0.3, 0.4, 0.6], rtol=1e-6)
    assert rows.terminated.tolist() == [False] * 5 + [True]
