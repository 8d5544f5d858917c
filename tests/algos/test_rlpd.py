"""RLPD against its transcription, and what its three ingredients promise."""

import numpy as np
import pytest
import reference_o2o
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
    make_batches,
    net,
    one_seed,
    scramble,
)

from corerl.algos.rlpd import RLPD, Config, Draws
from corerl.nn import ensembles
from corerl.nn.critics import Critics, ManyActionCritics
from corerl.nn.learner import Spec

UTD = 2


def make(**settings) -> RLPD:
    small = {"hidden_width": WIDTH, "critics": 3, "utd": UTD, "polyak": 0.1, "discount": 0.9}
    small |= {"actor_lr": 1e-3, "critic_lr": 2e-3, "temperature_lr": 3e-3}
    return RLPD(Config(**small | settings), Spec(O, A, generators()))


def draws(agent: RLPD, count: int) -> list[tuple]:
    rng = np.random.default_rng(4)
    batches = make_batches(count * UTD)
    return [
        (
            batches[i * UTD : (i + 1) * UTD],
            as_tensor(rng.normal(size=(SEEDS, UTD + 1, B, A))),
            as_tensor(rng.random((SEEDS, UTD, agent.cfg.critics))),
        )
        for i in range(count)
    ]


def named(noise: torch.Tensor, subsets: torch.Tensor) -> Draws:
    return Draws(noise[:, :-1], noise[:, -1], subsets)


def parts(agent: RLPD, seed: int) -> tuple:
    heads = [
        [net(x, seed, i) for i in range(agent.cfg.critics)] for x in (agent.critic, agent.target)
    ]
    return net(agent.policy, seed), *heads, net(agent.temperature, seed)


@pytest.mark.parametrize(
    "version",
    [{}, {"backup_entropy": False, "critic_subsample": 1, "hidden_layers": 3}, {"actor_q": "min"}],
    ids=["locomotion", "antmaze", "minimum"],
)
def test_five_steps_equal_the_transcription(version, tolerance):
    agent = make(**version)
    scramble(agent.policy, agent.critic, agent.target, agent.temperature)
    references = [reference_o2o.RLPD(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batches, noise, subsets in draws(agent, 5):
        metrics = agent.update(batches, named(noise, subsets))
        for i, reference in enumerate(references):
            mine = [one_seed(batch, i) for batch in batches]
            losses = reference.update(mine, noise[i], subsets[i])
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


def test_initial_networks_are_glorots_and_alpha_is_as_asked():
    agent = RLPD(Config(initial_temperature=0.3), Spec(17, 6, generators()))
    assert agent.temperature().tolist() == pytest.approx([0.3] * SEEDS)
    for network in (agent.policy.body, agent.critic):
        for layer in network.layers:
            bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.97 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()
    assert [norm.eps for norm in agent.critic.norms] == [1e-6] * 2 and agent.critic.norm_first
    assert all(isinstance(norm, torch.nn.Identity) for norm in agent.policy.body.norms)


def test_critics_are_drawn_evenly_and_differ():
    chosen = ensembles.without_replacement(torch.rand(4000, 10), 10, 2)
    assert (chosen[:, 0] != chosen[:, 1]).all()
    share = torch.bincount(chosen.flatten(), minlength=10) / 8000
    assert share.min() > 0.08 and share.max() < 0.12
    again = ensembles.with_replacement(torch.rand(4000, 10), 10, 2)
    assert 0.07 < (again[:, 0] == again[:, 1]).double().mean() < 0.13
    assert ensembles.with_replacement(torch.ones(1, 10), 10, 2).max() == 9


@pytest.mark.parametrize("shared", [False, True])
def test_evaluating_a_subset_is_evaluating_all_and_choosing(shared):
    critic = Critics([O, A, 8], generators(), heads=3, shared_output=shared)
    scramble(critic)
    chosen = torch.tensor([[2, 1], [0, 0]])
    inputs = torch.randn(SEEDS, B, O), torch.randn(SEEDS, B, A)
    everything = critic(*inputs)
    few = ensembles.call(critic, chosen, *inputs)
    for seed in range(SEEDS):
        torch.testing.assert_close(few[seed], everything[seed, chosen[seed]])


def test_several_actions_of_one_state():
    """The shared product of the first layer is the plain network's, norm and all."""
    critic = ManyActionCritics(
        [O, A, 8, 8], generators(), heads=3, layer_norm=1e-6, norm_first=True
    )
    scramble(critic)
    s, a = torch.randn(SEEDS, B, O), torch.randn(SEEDS, 5, B, A)
    out = critic(s, a)
    for k in range(5):
        plain = Critics.forward(critic, s, a[:, k])
        torch.testing.assert_close(out[:, :, k], plain, rtol=1e-5, atol=1e-5)


def test_layer_norm_bounds_values_far_from_the_data():
    """Section 4.2: |Q| is at most the last layer's weights' norm, whatever the action."""
    agent = make()
    states, actions = 1e6 * torch.randn(SEEDS, B, O), 1e6 * torch.randn(SEEDS, B, A)
    assert (agent.critic(states, actions).abs() < 1e3).all()
    assert agent.target_entropy == -A / 2
