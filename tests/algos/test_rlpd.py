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

from corerl.algos.rlpd import RLPD, Config
from corerl.errors import CorerlError
from corerl.nn import ensembles
from corerl.training.offline_to_online import Online

UTD = 2


def make(**settings) -> RLPD:
    small = {"hidden_width": WIDTH, "critics": 3, "utd": UTD, "polyak": 0.1, "discount": 0.9}
    return RLPD(Config(**small | settings), O, A, generators())


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


def parts(agent: RLPD, seed: int) -> tuple:
    heads = [
        [net(x, seed, i) for i in range(agent.cfg.critics)] for x in (agent.critic, agent.target)
    ]
    return net(agent.policy, seed), *heads, net(agent.temperature, seed)


@pytest.mark.parametrize(
    "version",
    [{}, {"backup_entropy": False, "asked": 1, "hidden_layers": 3}, {"actor_q": "min"}],
    ids=["locomotion", "antmaze", "minimum"],
)
def test_five_steps_equal_the_transcription(version, tolerance):
    agent = make(**version)
    scramble(agent.policy, agent.critic, agent.target, agent.temperature)
    references = [reference_o2o.RLPD(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batches, noise, asked in draws(agent, 5):
        metrics = agent.update(batches, noise, asked)
        for i, reference in enumerate(references):
            mine = [one_seed(batch, i) for batch in batches]
            losses = reference.update(mine, noise[i], asked[i])
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


@pytest.mark.slow
def test_compiled_is_eager():
    agents = [make(), RLPD(make().cfg, O, A, generators(), mode="compile")]
    for agent in agents:
        for inputs in draws(agent, 2):
            agent.update(*inputs)
    for one, other in zip(*(agent.critic.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_critics_are_drawn_evenly_and_differ():
    chosen = ensembles.without_replacement(torch.rand(4000, 10), 10, 2)
    assert (chosen[:, 0] != chosen[:, 1]).all()
    share = torch.bincount(chosen.flatten(), minlength=10) / 8000
    assert share.min() > 0.08 and share.max() < 0.12
    again = ensembles.with_replacement(torch.rand(4000, 10), 10, 2)
    assert 0.07 < (again[:, 0] == again[:, 1]).double().mean() < 0.13
    assert ensembles.with_replacement(torch.ones(1, 10), 10, 2).max() == 9


def test_asking_a_few_is_asking_all_and_choosing():
    agent = make()
    scramble(agent.critic)
    chosen = torch.tensor([[2, 1], [0, 0]])
    inputs = torch.randn(SEEDS, 1, B, O + A)
    everything = agent.critic(inputs)
    few = ensembles.call(agent.critic, chosen, inputs)
    for seed in range(SEEDS):
        torch.testing.assert_close(few[seed], everything[seed, chosen[seed]])


def test_several_actions_of_one_state():
    """The shared product of the first layer is the plain network's, norm and all."""
    critic = ensembles.Critics([O + A, 8, 8, 1], 3, generators(), layer_norm=1e-6, norm_first=True)
    scramble(critic)
    s, a = torch.randn(SEEDS, B, O), torch.randn(SEEDS, 5, B, A)
    out = critic(s, a)
    for k in range(5):
        plain = super(type(critic), critic).forward(torch.cat([s, a[:, k]], -1)[:, None])
        torch.testing.assert_close(out[:, :, k], plain.squeeze(-1), rtol=1e-5, atol=1e-5)


def test_layer_norm_bounds_values_far_from_the_data():
    """Section 4.2: |Q| is at most the last layer's weights' norm, whatever the action."""
    agent = make()
    far = 1e6 * torch.randn(SEEDS, 1, B, O + A)
    assert (far.new_tensor(1e3) > agent.critic(far).abs()).all()
    assert agent.target_entropy == -A / 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"asked": 11}, "algo.asked"),
        ({"utd": 0}, "algo.utd"),
        ({"actor_q": "max"}, "algo.actor_q"),
        ({"online": Online(offline_ratio=0.5)}, "warmup_steps"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(CorerlError, match=message):
        Config(**settings)
