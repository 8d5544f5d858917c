"""IQL against the numpy transcription, with each of its switches."""

import pytest
import reference
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    twins,
)

from corerl.algos.iql import IQL, Config
from corerl.nn.learner import Spec
from corerl.training.offline_to_online import Online

STEPS = 8  # of the cosine, so that five updates go through most of it
CORL = {"order": "joint", "critic_loss": "mean", "init": "torch", "log_std_min": -20.0}
SWITCHES = {
    "authors": {},
    "joint": {"order": "joint"},
    "critic_mean": {"critic_loss": "mean"},
    "corl": CORL,
    "deterministic": {"policy": "deterministic"},
    "corl_deterministic": CORL | {"policy": "deterministic"},
    "constant_rate": {"cosine": False},
    "dropout": {"dropout": 0.25},
    "corl_dropout": CORL | {"dropout": 0.1},
    "deterministic_dropout": {"dropout": 0.3, "policy": "deterministic"},
    "antmaze": {"expectile": 0.9, "beta": 10.0},
    "log_std_held_from_below": {"log_std_min": 0.2},
    "log_std_held_from_above": {"log_std_max": -0.2},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    cfg = Config(hidden_width=WIDTH, polyak=0.1, discount=0.9, **SWITCHES[switch])
    agent = IQL(cfg, Spec(O, A, generators(), steps=STEPS))
    scramble(agent.value, agent.policy, agent.critic, agent.target)
    references = [reference.IQL(*networks(agent, s), cfg, STEPS) for s in range(SEEDS)]
    uniforms = [None] * 5
    if cfg.dropout:
        uniforms = torch.rand(5, SEEDS, cfg.hidden_layers, B, WIDTH, generator=generators(1)[0])
    for batch, u in zip(make_batches(5), uniforms, strict=True):
        metrics = agent.update(batch, u)
        for s, theirs in enumerate(references):
            losses = theirs.update(one_seed(batch, s), None if u is None else u[s].numpy())
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(networks(agent, s), theirs.networks(), tolerance)


def networks(agent: IQL, seed: int) -> tuple:
    """Copies of the networks, in the order of the transcription's arguments."""
    first = net(agent.value, seed), net(agent.policy, seed)
    return *first, twins(agent.critic, seed), twins(agent.target, seed)


def test_the_two_orders_differ():
    """A switch that did nothing would pass every comparison of its own."""
    configs = [Config(hidden_width=WIDTH, order=order) for order in ("value_first", "joint")]
    first, joint = (
        IQL(cfg, Spec(O, A, generators(), steps=STEPS)).update(make_batches(1)[0])
        for cfg in configs
    )
    torch.testing.assert_close(first["value_loss"], joint["value_loss"])
    assert (first["policy_loss"] != joint["policy_loss"]).all()
    assert (first["critic_loss"] != joint["critic_loss"]).all()


def test_a_deterministic_policy_explores_with_small_noise():
    """CORL's: a normal of 0.03 around the action, clipped."""
    agent = IQL(
        Config(hidden_width=WIDTH, policy="deterministic"), Spec(O, 1, generators(), steps=STEPS)
    )
    for p in agent.policy.parameters():
        p.data.zero_()
    noise = torch.tensor([1.0, -2.0, 50.0])[None, :, None].expand(SEEDS, -1, -1)
    drawn = agent.explore(torch.zeros(SEEDS, 3, O), noise)
    torch.testing.assert_close(drawn, torch.tensor([0.03, -0.06, 1.0])[:, None].expand_as(drawn))


@pytest.mark.parametrize("phase", ["offline", "both", "online"])
def test_the_rate_falls_where_all_of_a_run_is_offline(phase):
    cfg = Config(hidden_width=WIDTH, phase=phase, online=Online(pretrain_steps=1))
    agent = IQL(cfg, Spec(O, A, generators(), steps=2))
    agent.update(make_batches(1)[0])
    left = 0.5 if phase == "offline" else 1.0
    assert float(agent.policy_optimizer.lr) == pytest.approx(left * cfg.lr)
    assert float(agent.value_optimizer.lr) == float(agent.critic_optimizer.lr) == cfg.lr


def test_actions_are_without_dropout():
    agent = IQL(Config(hidden_width=WIDTH, dropout=0.5), Spec(O, A, generators(), steps=STEPS))
    observations = torch.randn(SEEDS, B, O)
    expected = torch.tanh(agent.policy.body(observations))
    torch.testing.assert_close(agent.act(observations), expected)


def test_initial_weights_are_the_authors():
    """Orthogonal with gain sqrt(2) in every layer, outputs too; biases and log-std zero."""
    agent = IQL(Config(), Spec(17, 6, generators(), steps=STEPS))
    for mlp in (agent.value, agent.policy.body, agent.critic):
        for layer in mlp.layers:
            w = layer.weight.detach()
            w = w if w.shape[-2] < w.shape[-1] else w.mT  # the shorter side is orthogonal
            product = w @ w.mT
            torch.testing.assert_close(product, 2 * torch.eye(w.shape[-2]).expand_as(product))
            assert not layer.bias.any()
    assert not agent.policy.log_std.any()
    assert agent.policy.log_std.shape[-1] == 6
