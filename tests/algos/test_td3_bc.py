"""TD3+BC against the numpy transcription."""

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

from corerl.algos.td3_bc import TD3BC, Config
from corerl.nn.learner import Spec


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_five_updates_equal_the_equations(delay, tolerance):
    cfg = Config(hidden_width=WIDTH, policy_delay=delay, polyak=0.1, discount=0.9)
    agent = TD3BC(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    references = [reference.TD3BC(*actor_critic(agent, s), cfg) for s in range(SEEDS)]
    batches, noises = make_batches(5 * delay), make_noises(5 * delay)
    for call in range(0, 5 * delay, delay):
        rows = slice(call, call + delay)
        metrics = agent.update(batches[rows], noises[rows])
        for s, theirs in enumerate(references):
            for batch, noise in zip(batches[rows], noises[rows], strict=True):
                losses = theirs.iterate(one_seed(batch, s), noise[s].double().numpy())
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(actor_critic(agent, s), theirs.networks(), tolerance)


def test_networks_start_as_torch_makes_them_and_targets_as_copies():
    agent = TD3BC(Config(), Spec(17, 6, generators()))
    for online, target in ((agent.actor, agent.target_actor), (agent.critic, agent.target_critic)):
        for layer in online.layers:
            bound = layer.weight.shape[-2] ** -0.5
            assert 0.97 * bound < layer.weight.abs().max() <= bound
            assert 0 < layer.bias.abs().max() <= bound
        for p, q in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(p, q)
            assert p.data_ptr() != q.data_ptr()
