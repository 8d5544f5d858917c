"""CQL against its transcription, its hand-computed penalty, and the traps of its many versions."""

import math

import numpy as np
import pytest
import reference_soft
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
    twins,
)
from small import cell

from corerl.algos import cql_official
from corerl.algos.cql import CQL, Config
from corerl.algos.cql_official import OfficialCQL
from corerl.nn import conservative
from corerl.nn.conservative import CQLNoise
from corerl.nn.learner import Spec

VERSIONS = {
    "corl": {},
    "corl antmaze": {
        "lagrange": "young_geng",
        "threshold": 0.8,
        "weight": 5.0,
        "max_backup": "min_first",
        "gap_min": -2.0,
        "gap_max": 3.0,
    },
    "CQL+": {"target_entropy": 0.0, "init": "offbench", "samples": 5, "log_std_min": -5.0},
    "version 2": {
        "importance_sampling": False,
        "temperature": 2.0,
        "tune_alpha": False,
        "alpha": 0.3,
    },
    "xavier": {"max_backup": "min_first", "init": "xavier"},
    "orthogonal": {"init": "orthogonal"},
    "wsrl on kitchen": {
        "importance_sampling": False,
        "weight": 5.0,
        "max_backup": "min_first",
        "log_std_multiplier": None,
        "init": "wsrl",
        "shared_output": True,
        "tuning": "softplus",
    },
}
AT_ONCE = {"order": "joint", "log_std_multiplier": 1.0, "log_std_min": -20.0, "weight": 10.0}
OFFICIAL = {
    "official antmaze": {
        "lagrange": "official",
        "threshold": 5.0,
        "max_backup": "per_critic",
        "bc_steps": 0,
    },
    "cloning, then entropy in the backup": {"bc_steps": 3, "backup_entropy": True},
    "entropy in the backup": AT_ONCE
    | {"bc_steps": 0, "backup_entropy": True, "max_backup": "min_first", "init": "xavier"},
    "warm start": AT_ONCE | {"bc_steps": 3, "init": "orthogonal"},
}


def make(version: dict, official: bool = False, **more) -> CQL:
    settings = {
        "hidden_width": WIDTH,
        "policy_layers": 2,
        "critic_layers": 2,
        "samples": 3,
        "polyak": 0.1,
        "discount": 0.9,
        "policy_lr": 1e-3,
        "critic_lr": 2e-3,
    }
    kind, config = (OfficialCQL, cql_official.Config) if official else (CQL, Config)
    return kind(config(**settings | version | more), Spec(O, A, generators()))


def draws(agent: CQL, count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    rng = np.random.default_rng(3)
    shape = (count, SEEDS, sum(agent.noise_counts), B, A)
    uniform = (count, SEEDS, agent.cfg.samples, B, A)
    return list(as_tensor(rng.normal(size=shape))), list(as_tensor(rng.random(uniform)))


def parts(agent: CQL, seed: int) -> tuple:
    scalars = [net(x, seed)["value"] for x in (agent.log_alpha, agent.log_alpha_prime)]
    return net(agent.policy, seed), twins(agent.critic, seed), twins(agent.target, seed), *scalars


def split(agent: CQL, noise: torch.Tensor) -> CQLNoise:
    return CQLNoise(*noise.split(agent.noise_counts, 1))


def run(agent: CQL, batches, noises, uniforms) -> dict[str, torch.Tensor]:
    for step, inputs in enumerate(zip(batches, noises, uniforms, strict=True), start=1):
        cloned = getattr(agent.cfg, "bc_steps", 0)
        update = agent.warm_start if step <= cloned else agent.update
        metrics = update(inputs[0], split(agent, inputs[1]), inputs[2])
    return metrics


@pytest.mark.parametrize("name", [*VERSIONS, *OFFICIAL])
def test_five_updates_equal_the_equations(name, tolerance):
    agent = make((VERSIONS | OFFICIAL)[name], name in OFFICIAL)
    scramble(agent.policy, agent.critic, agent.target, agent.log_alpha, agent.log_alpha_prime)
    references = [reference_soft.CQL(*parts(agent, s), agent.cfg) for s in range(SEEDS)]
    batches = make_batches(5)
    noises, uniforms = draws(agent, 5)
    metrics = run(agent, batches, noises, uniforms)
    for s, theirs in enumerate(references):
        for batch, noise, uniform in zip(batches, noises, uniforms, strict=True):
            losses = theirs.update(one_seed(batch, s), noise[s].double(), uniform[s].double())
        assert_losses(metrics, s, losses, tolerance)
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


def test_a_softplus_alpha_is_moved_by_the_entropy_at_the_next_states():
    """It starts at 1; the loss is alpha * (entropy + |A|), of samples that are all of the backup's."""
    agent = make(VERSIONS["wsrl on kitchen"])
    assert agent.alpha.tolist() == pytest.approx([1.0] * SEEDS)
    with torch.no_grad():
        agent.log_alpha.value.fill_(math.log(math.e**0.5 - 1))  # a softplus of one half
        for p in agent.policy.body.parameters():
            p.zero_()  # a standard normal before tanh, wherever
    batch, noise = make_batches(1)[0], torch.full((SEEDS, 3, B, A), 0.3)
    u = 0.3
    log_pi = A * (-0.5 * u**2 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(u) ** 2))
    loss, metrics = agent.softplus_loss(batch, CQLNoise(None, noise, None, None))
    assert loss.tolist() == pytest.approx([0.5 * (A - log_pi)] * SEEDS, rel=1e-5)
    assert metrics["entropy"].tolist() == pytest.approx([-log_pi] * SEEDS, rel=1e-5)


def test_initial_weights_of_each_version():
    """rlkit's hidden bound is 1/sqrt of a layer's outputs; WSRL's outputs are as large as the hidden ones."""
    agent = make({}, official=True, hidden_width=64)
    for layers, bound in ((agent.critic.layers, 3e-3), (agent.policy.body.layers, 1e-3)):
        for layer in layers[:-1]:
            assert 0.9 / 8 < layer.weight.abs().max() <= 1 / 8
            assert (layer.bias == 0.1).all()
        assert 0.8 * bound < layers[-1].weight.abs().max() <= bound
        assert 0 < layers[-1].bias.abs().max() <= bound
    agent = make(VERSIONS["wsrl on kitchen"], hidden_width=64)
    for layer in (*agent.critic.layers, *agent.policy.body.layers):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, 2**0.5))
        assert not layer.bias.any()


def test_cql_plus_is_offbenchs():
    """configs/cql_cfgs.py, base_cfgs.py, args.py and mf_trainer.py at 4cd9efc."""
    cfg = cell("cql_plus", "d4rl/antmaze-umaze-v2")
    expected = {"weight": 5.0, "samples": 50, "importance_sampling": True, "lagrange": "off"}
    expected |= {"max_backup": "off", "target_entropy": None}
    expected |= {"policy_lr": 1e-4, "critic_lr": 3e-4, "policy_layers": 2, "critic_layers": 2}
    expected |= {"hidden_width": 256, "activation": "elu", "gap_min": None}
    expected |= {"log_std_multiplier": 1.0, "log_std_min": -5.0, "log_std_max": 2.0}
    assert {name: getattr(cfg.algo, name) for name in expected} == expected
    data = cfg.algo.data
    assert (data.clip_actions, data.reward_scale, data.reward_shift) == (0.999, 4.0, -2.0)
    assert (cfg.label, cfg.steps, cfg.eval.every, cfg.eval.episodes) == (
        "CQL+",
        1_200_000,
        10_000,
        100,
    )
    agent = CQL(cfg.algo, Spec(17, 6, generators(1)))
    assert agent.target_entropy == -6  # its 0 stands for minus the number of action features
    for network in (agent.policy.body, agent.critic):
        *hidden, output = network.layers
        for layer in hidden:
            assert layer.weight.std().item() == pytest.approx(
                layer.weight.shape[-2] ** -0.5, rel=0.05
            )
        bound = math.sqrt(3 * 0.01 / 256)
        assert 0.97 * bound < output.weight.abs().max() <= bound


def test_gap_by_hand():
    """Two samples, each of density 1/4 (two dimensions, uniform): log(4 e^1 + 4 e^2) - Q(s, a)."""
    agent = make({})
    q, sampled = torch.tensor([[[3.0], [0.5]]]), torch.tensor([[[[1.0], [2.0]], [[0.0], [0.0]]]])
    log_density = torch.full((1, 2, 1), -2 * math.log(2))
    expected = [math.log(4 * math.e + 4 * math.e**2) - 3, math.log(8) - 0.5]
    assert agent.gap(q, sampled, log_density).flatten().tolist() == pytest.approx(expected)
    agent = make({"importance_sampling": False, "temperature": 0.5})
    expected = 0.5 * math.log(math.e**2 + math.e**4 + math.e**6) - 3
    assert agent.gap(q, sampled, log_density)[0, 0, 0].item() == pytest.approx(expected, abs=1e-6)


def test_proposals_are_dense_uniform_actions_and_policy_samples_of_both_states():
    """The uniform density is -|A| log 2, and the samples of s' keep the density under pi(.|s')."""
    agent = make({})
    scramble(agent.policy)
    batch = make_batches(1)[0]
    noises, uniforms = draws(agent, 1)
    states = batch.observations, batch.next_observations
    actions, log_density = conservative.proposals(
        agent.policy, *states, split(agent, noises[0]), uniforms[0]
    )
    assert actions.shape == (SEEDS, 9, B, A)
    assert torch.equal(actions[:, :3], 2 * uniforms[0] - 1)
    assert log_density[:, :3].unique().tolist() == pytest.approx([-A * math.log(2)])
    for i, states in ((3, batch.observations), (6, batch.next_observations)):
        for k in range(3):
            again = agent.policy.log_prob(states, actions[:, i + k])
            torch.testing.assert_close(log_density[:, i + k], again, rtol=1e-3, atol=1e-3)


def test_samples_of_the_next_state_are_scored_at_the_state():
    """Moving s' moves the penalty only through the actions: where the policy ignores it, not at all."""
    agent = make({})
    with torch.no_grad():
        for p in agent.policy.body.parameters():
            p.zero_()
    batch = make_batches(1)[0]._replace(terminated=torch.ones(SEEDS, B))
    noises, uniforms = draws(agent, 1)
    moved = batch._replace(next_observations=batch.next_observations + 1)
    noise = split(agent, noises[0])
    first = agent.critic_loss(batch, noise, uniforms[0])[0]
    assert torch.equal(first, agent.critic_loss(moved, noise, uniforms[0])[0])


def test_backup_holds_no_entropy_unless_asked():
    batch = make_batches(1)[0]
    plain, soft = make({}, official=True), make({"backup_entropy": True}, official=True)
    soft.load_state_dict(plain.state_dict())
    noise = draws(plain, 1)[0][0][:, :1]
    value = plain.backup(batch, noise) - soft.backup(batch, noise)
    log_pi = plain.policy.sample(batch.next_observations, noise[:, 0])[1]
    expected = 0.9 * (1 - batch.terminated) * log_pi  # alpha starts at 1
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_max_backup_takes_minimum_and_maximum_in_the_named_order():
    """Two actions and two critics, (1, 4) and (3, 2): max of min is 2, min of max is 3."""

    class Table(torch.nn.Module):
        def forward(self, observations, actions):
            return torch.tensor([[1.0, 3.0], [4.0, 2.0]])[None, :, :, None]

    values = {}
    for order in ("min_first", "per_critic"):
        agent = make({"max_backup": order, "samples": 2, "discount": 1.0}, official=True)
        agent.target = Table()
        one = make_batches(1)[0]
        one = type(one)(*(x[:1, :1] for x in one))._replace(
            rewards=torch.zeros(1, 1), terminated=torch.zeros(1, 1)
        )
        agent.policy.forward = lambda s: (torch.zeros(1, 1, A), torch.zeros(1, 1, A))
        values[order] = agent.backup(one, torch.zeros(1, 2, 1, A)).item()
    assert values == {"min_first": 2.0, "per_critic": 3.0}


@pytest.mark.parametrize(
    ("version", "penalty", "slope"),
    # gaps 2 and 4, w 5, threshold 3: alpha' is e (its log starts at 1) or 1 (at 0).
    [
        ("off", 30.0, 0.0),
        ("young_geng", math.e * 5 * (6 - 6), 0.0),
        ("official", 5 * 6 - 2 * 3, -(5 * 3 - 3)),
    ],
)
def test_lagrange_scales(version, penalty, slope):
    lagrange = {"lagrange": version, "weight": 5.0, "threshold": 3.0}
    agent = make(lagrange, official=version == "official")
    of_critics, of_multiplier = agent.penalty(torch.tensor([[2.0, 4.0]] * SEEDS))
    assert of_critics.tolist() == pytest.approx([penalty] * SEEDS, abs=1e-5)
    assert of_multiplier.tolist() == pytest.approx([slope] * SEEDS, abs=1e-5)


def test_multiplier_grows_while_the_gap_exceeds_the_threshold():
    agent = make({"lagrange": "young_geng", "threshold": -100.0})
    run(agent, make_batches(1), *draws(agent, 1))
    assert (agent.log_alpha_prime.value > 1).all()


def test_both_critics_have_the_same_depth_and_start_apart():
    agent = CQL(
        Config(critic_layers=5, policy_layers=3, hidden_width=WIDTH), Spec(O, A, generators())
    )
    assert [tuple(layer.weight.shape[:2]) for layer in agent.critic.layers] == [(SEEDS, 2)] * 6
    assert len(agent.policy.body.layers) == 4
    assert not torch.equal(agent.critic.layers[0].weight[:, 0], agent.critic.layers[0].weight[:, 1])


def test_initial_weights_are_corls():
    """Orthogonal critics, a torch-initialised policy, small last layers, log-std out - 1."""
    agent = CQL(Config(), Spec(17, 6, generators()))
    hidden = agent.critic.layers[1].weight[0, 0]
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(256), atol=1e-4, rtol=0)
    assert agent.critic.layers[-1].weight[0, 0].norm().item() == pytest.approx(1e-2, rel=1e-4)
    hidden, last = agent.policy.body.layers[1].weight, agent.policy.body.layers[-1].weight
    assert 0.97 / 16 < hidden.abs().max() <= 1 / 16
    bound = 1e-2 * math.sqrt(6 / (256 + 12))
    assert 0.9 * bound < last.abs().max() <= bound
    _, log_std = agent.policy(torch.zeros(SEEDS, 1, 17))
    torch.testing.assert_close(log_std, torch.full_like(log_std, -1.0), atol=0.05, rtol=0)
