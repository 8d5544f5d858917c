"""WSRL against its transcription, before and after the switch, and its warm-up."""

import math

import numpy as np
import pytest
import reference_o2o
import torch
from agreement import (
    SEEDS,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    one_seed,
    scramble,
)
from test_cal_ql import SMALL, draws, parts, update

from corerl.algos.wsrl import WSRL, Config, Draws
from corerl.nn.learner import Spec

UTD = 2
VERSIONS = {
    "antmaze": {"lagrange": True, "policy_std": "vector", "online_max_backup": True},
    "locomotion": {"calibrate": False},
    "kitchen": {"importance_sampling": False, "last_hidden_gain": math.sqrt(2)},
    "paper": {"zero_steps": False},
    "RLPD's critics": {"shared_output": False},
}


def make(**settings) -> WSRL:
    return WSRL(Config(**SMALL | {"critics": 3, "utd": UTD} | settings), Spec(O, A, generators()))


def tuning(agent: WSRL, count: int) -> list[tuple]:
    rng = np.random.default_rng(5)
    batches = make_batches(count * UTD)
    n = agent.cfg.samples if agent.cfg.online_max_backup else 1
    return [
        (
            batches[i * UTD : (i + 1) * UTD],
            as_tensor(rng.normal(size=(SEEDS, UTD, n, B, A))),
            as_tensor(rng.normal(size=(SEEDS, 2, UTD * B, A))),
            as_tensor(rng.random((SEEDS, UTD, agent.cfg.critics))),
        )
        for i in range(count)
    ]


def named(backups: torch.Tensor, noise: torch.Tensor, subsets: torch.Tensor) -> Draws:
    return Draws(backups, *noise.unbind(1), subsets)


@pytest.mark.parametrize("version", VERSIONS)
def test_pretraining_then_finetuning_equal_the_transcription(version, tolerance):
    """Adam's moments cross the switch; the multiplier's rest there."""
    agent = make(**VERSIONS[version])
    scramble(agent.policy, agent.critic, agent.target, agent.temperature, agent.multiplier)
    references = [reference_o2o.WSRL(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batch, numbers in zip(make_batches(3), draws(agent.cfg, 3), strict=True):
        metrics = update(agent, batch, *numbers)
        for i, reference in enumerate(references):
            losses = reference.update(one_seed(batch, i), *(x[i] for x in numbers))
            assert_losses(metrics, i, losses, 10 * tolerance)
    for batches, *numbers in tuning(agent, 3):
        metrics = agent.finetune(batches, named(*numbers))
        for i, reference in enumerate(references):
            mine = [one_seed(batch, i) for batch in batches]
            losses = reference.finetune(mine, *(x[i] for x in numbers))
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        *mine, _ = parts(agent, i)
        *theirs, _ = reference.networks()
        assert_networks(mine, theirs, tolerance)


@pytest.mark.slow
def test_compiled_is_eager():
    one, other = make(), WSRL(make().cfg, Spec(O, A, generators(), mode="compile"))
    for agent in (one, other):
        for batch, numbers in zip(make_batches(2), draws(agent.cfg, 2), strict=True):
            update(agent, batch, *numbers)
        for batches, *numbers in tuning(agent, 2):
            agent.finetune(batches, named(*numbers))
    for mine, theirs in zip(one.critic.parameters(), other.critic.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_one_critic_update_per_step_moves_no_optimiser_along_zero():
    """`zero_steps` is of utd > 1: here each has stepped once, and the last one's gradient is its own."""
    agent = make(utd=1)
    ((batches, backups, noise, subsets),) = tuning(agent, 1)
    agent.finetune(batches[:1], named(backups[:, :1], noise[:, :, :B], subsets[:, :1]))
    for optimizer in (agent.policy_optimizer, agent.temperature_optimizer, agent.critic_optimizer):
        assert optimizer.state_dict()["count"] == 1


def test_initial_networks_are_the_authors():
    """Orthogonal with gain sqrt(2), the last hidden layer shrunk, the output not; alpha is 1."""
    agent = WSRL(Config(critic_layers=3), Spec(17, 6, generators(1)))
    assert agent.critic.layers[-1].weight.shape == (1, 1, 256, 1)  # of all ten
    first, second, last_hidden, output = (layer.weight[0, 0] for layer in agent.critic.layers)
    for weight, gain in ((second, math.sqrt(2)), (last_hidden, 1e-2)):
        norm = (weight @ weight.T - gain**2 * torch.eye(256)).abs().max()
        assert norm < 1e-4
    assert first.shape == (23, 256) and output.norm().item() == pytest.approx(
        math.sqrt(2), rel=1e-4
    )
    assert agent.temperature().item() == pytest.approx(
        1.0
    ) and agent.multiplier().item() == pytest.approx(1.0)
    assert len(agent.policy.body.norms) == 2 and agent.critic.norm_first
    assert agent.critic.layers[0].weight.shape[1] == 10
    *_, last_hidden, output = (layer.weight[0] for layer in agent.policy.body.layers)
    assert torch.linalg.svdvals(last_hidden).tolist() == pytest.approx([1e-2] * 256, rel=1e-3)
    assert torch.linalg.svdvals(output).tolist() == pytest.approx([math.sqrt(2)] * 12, rel=1e-3)
    assert [norm.eps for norm in agent.critic.norms] == [1e-6] * 3
    (one_vector,) = WSRL(Config(policy_std="vector"), Spec(17, 6, generators(1))).policy.log_std
    assert one_vector.tolist() == [[0.0] * 6]
