"""FamO2O against its transcription, its parts by hand, and IQL where its family is one policy."""

import numpy as np
import pytest
import tiny
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
from reference_soft import adam, joined, leaves, mlp, numbers, polyak, q, set_grads, squashed
from small import flatten
from torch.distributions import Normal
from wording import refused

from corerl.algos import iql
from corerl.algos.famo2o import Config, Draws, FamO2O, encoded
from corerl.algos.iql import IQL
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9, "cosine": False}


def make(**more) -> FamO2O:
    return FamO2O(Config(**SMALL | more), Spec(O, A, generators()))


def draws(count: int, online: bool = False) -> list[Draws]:
    rng = np.random.default_rng(3)

    def one() -> Draws:
        normal = (as_tensor(rng.normal(size=(SEEDS, *shape))) for shape in ((2, B, 1), (B, A)))
        shares = as_tensor(rng.random((SEEDS, B)))
        return Draws(None, *normal, None if online else shares)

    return [one() for _ in range(count)]


class Reference:
    """The authors' step: value, balance, temperature, policy, critics, all but V from before."""

    def __init__(self, value, policy, critics, targets, balance, temperature, settings):
        self.c = settings
        self.value, self.policy, self.balance = leaves(value), leaves(policy), leaves(balance)
        self.critics, self.targets = [[leaves(x) for x in nets] for nets in (critics, targets)]
        self.temperature = leaves(temperature)
        self.optimizers = {
            "value": adam(settings.lr, self.value),
            "policy": adam(settings.lr, self.policy),
            "critic": adam(settings.lr, joined(self.critics)),
            "balance": adam(settings.balance_lr, self.balance),
            "temperature": adam(settings.temperature_lr, self.temperature),
        }

    def networks(self) -> tuple:
        critics, targets = [[numbers(x) for x in nets] for nets in (self.critics, self.targets)]
        others = (numbers(x) for x in (self.balance, self.temperature))
        return numbers(self.value), numbers(self.policy), critics, targets, *others

    def drawn_beta(self, s, noise):
        """A draw of the balance's inverse temperature, and the log-density before it is scaled."""
        mean = mlp(self.balance, s, "body.")
        u = torch.tanh(mean + self.balance["log_std"].exp() * noise)
        log_prob = squashed(mean, self.balance["log_std"].expand_as(mean)).log_prob(u)[:, 0]
        return self.c.low + (self.c.high - self.c.low) * (u[:, 0] + 1) / 2, log_prob

    def family(self, s, beta) -> Normal:
        columns = []
        for i in range(self.c.encoding // 2):
            angle = beta / self.c.encoding_base ** (2 * i / self.c.encoding)
            columns += [angle.sin(), angle.cos()]
        mean = torch.tanh(mlp(self.policy, torch.cat([s, torch.stack(columns, 1)], 1), "body."))
        return Normal(mean, self.policy["log_std"].clamp(-5, 2).exp())

    def update(self, batch, balance_noise, action_noise, shares) -> dict:
        c = self.c
        s, a, r, s_next, d = (torch.as_tensor(x) for x in batch[:5])
        target_q = torch.stack([q(t, s, a) for t in self.targets]).min(0).values.detach()
        beta, log_prob = self.drawn_beta(s, balance_noise[0])
        actions = self.family(s, beta)
        actions = actions.mean + actions.stddev * action_noise
        alpha = self.temperature["log_alpha"].exp()
        reached = torch.stack([q(t, s, actions) for t in self.targets]).min(0).values
        balance_loss = (alpha.detach() * log_prob - reached).mean()
        entropy = -log_prob.mean()
        set_grads(self.optimizers["balance"], balance_loss)
        set_grads(self.optimizers["temperature"], alpha * (entropy.detach() - c.target_entropy))

        u = target_q - mlp(self.value, s)[:, 0]
        value_loss = (torch.where(u < 0, 1 - c.expectile, c.expectile) * u**2).mean()
        set_grads(self.optimizers["value"], value_loss)
        self.optimizers["value"].step()
        advantage = (target_q - mlp(self.value, s)[:, 0]).detach()
        if shares is None:
            beta = self.drawn_beta(s, balance_noise[1])[0].detach()
        else:
            beta = c.low + (c.high - c.low) * shares
        weight = (beta * advantage).exp().clamp(max=100)
        policy_loss = -(weight * self.family(s, beta).log_prob(a).sum(1)).mean()
        set_grads(self.optimizers["policy"], policy_loss)
        y = (r + c.discount * (1 - d) * mlp(self.value, s_next)[:, 0]).detach()
        critic_loss = sum(((q(one, s, a) - y) ** 2).mean() for one in self.critics)
        set_grads(self.optimizers["critic"], critic_loss)
        for name in ("balance", "temperature", "policy", "critic"):
            self.optimizers[name].step()
        polyak(joined(self.targets), joined(self.critics), c.polyak)
        losses = {"value_loss": value_loss, "policy_loss": policy_loss, "critic_loss": critic_loss}
        losses |= {"balance_loss": balance_loss, "balance_entropy": entropy}
        return {name: loss.item() for name, loss in losses.items()}


def networks(agent: FamO2O, seed: int) -> tuple:
    iqls = net(agent.value, seed), net(agent.policy, seed), twins(agent.critic, seed)
    others = (net(part, seed) for part in (agent.balance, agent.temperature))
    return *iqls, twins(agent.target, seed), *others


@pytest.mark.parametrize("online", [False, True])
def test_five_updates_equal_the_equations(online, tolerance):
    agent = make(low=0.5, high=4.0, temperature_lr=0.01)
    parts = (agent.value, agent.policy, agent.critic, agent.target, agent.balance)
    scramble(*parts, agent.temperature)
    references = [Reference(*networks(agent, s), agent.cfg) for s in range(SEEDS)]
    for batch, drawn in zip(make_batches(5), draws(5, online), strict=True):
        metrics = agent.update(batch, drawn)
        for s, theirs in enumerate(references):
            mine = [None if x is None else x[s].double() for x in drawn[1:]]
            assert_losses(metrics, s, theirs.update(one_seed(batch, s), *mine), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(networks(agent, s), theirs.networks(), tolerance)


ONE = {"low": 3.0, "high": 3.0}


def test_a_family_of_one_is_iql_to_the_bit():
    plain = IQL(iql.Config(**SMALL, beta=3.0), Spec(O, A, generators()))
    one = make(encoding=0, **ONE)
    for batch, drawn in zip(make_batches(5), draws(5), strict=True):
        plain.update(batch)
        one.update(batch, drawn)
    mine = flatten(one.state_dict())
    assert flatten(plain.state_dict()).items() <= mine.items()
    states = torch.randn(SEEDS, 4, O)
    assert (one.act(states) == plain.act(states)).all()


def test_a_family_of_one_is_iql_with_constant_inputs_to_the_bit():
    """The same with its encoding: IQL whose policy gets these six numbers beside every state."""
    one, plain = make(**ONE), make(**ONE)

    class Told(torch.nn.Module):
        def __init__(self, policy):
            super().__init__()
            self.policy = policy

        def forward(self, states, keep=None):
            told = encoded(torch.full(states.shape[:2], 3.0), 6, 10_000.0)
            body = self.policy.body(torch.cat([states, told], -1), keep)
            return torch.tanh(body)

        def log_prob_given(self, mean, actions):
            return self.policy.log_prob_given(mean, actions)

    inside, plain.policy = plain.policy, Told(plain.policy)
    plain.cfg = iql.Config(**SMALL, beta=3.0)
    for batch, drawn in zip(make_batches(5), draws(5), strict=True):
        one.update(batch, drawn)
        target_q = plain._value_step(batch)["target_q"]
        plain_loss = IQL.policy_loss(plain, batch, target_q, None), plain.critic_loss(batch)
        optimizers = plain.policy_optimizer, plain.critic_optimizer
        for loss, optimizer in zip(plain_loss, optimizers, strict=True):
            optimizer.step(torch.autograd.grad(loss.sum(), optimizer.parameters, retain_graph=True))
        for target, online in zip(
            plain.target.parameters(), plain.critic.parameters(), strict=True
        ):
            target.data.lerp_(online.data, 0.1)
    for name in ("value", "critic", "target"):
        mine, theirs = (flatten(getattr(x, name).state_dict()) for x in (one, plain))
        assert mine == theirs, name
    assert flatten(one.policy.state_dict()) == flatten(inside.state_dict())


def test_a_family_of_one_has_iqls_whole_run():
    mine = tiny.Short(tiny.settings("famo2o", encoding=0, **ONE), updates=20)
    plain = tiny.Short(tiny.settings("iql"), updates=20)
    assert flatten(plain.parts["agent"].state_dict()).items() <= (
        flatten(mine.parts["agent"].state_dict()).items()
    )


def test_the_encoding_by_hand():
    """Angles are beta, beta / base^(1/3) and beta / base^(2/3); here the base's cube root is 10."""
    found = encoded(torch.tensor([[2.0]]), 6, 1000.0)[0, 0]
    expected = [f(x) for x in (2.0, 0.2, 0.02) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert encoded(torch.ones(2, 5), 0, 10.0).shape == (2, 5, 0)


def test_the_balance_climbs_a_linear_value():
    """Actions that are sin(beta), from 0.2 to 0.4, and Q = 7 a: d beta / d u is 0.1, and Q' 7 cos(beta)."""
    cfg = Config(
        **SMALL | {"hidden_layers": 0}, low=0.2, high=0.4, encoding=2, policy="deterministic"
    )
    agent = FamO2O(cfg, Spec(1, 1, generators(1)))
    agent.policy.bound = torch.nn.Identity()
    with torch.no_grad():
        for part in (agent.policy, agent.target, agent.balance):
            for p in part.parameters():
                p.zero_()
        agent.policy.body.layers[0].weight[0, :, 0] = torch.tensor([0.0, 1.0, 0.0])
        agent.target.layers[0].weight[0, :, :, 0] = torch.tensor([[0.0, 7.0], [0.0, 7.0]])
        agent.temperature.log_alpha.fill_(-100.0)
    states = torch.zeros(1, 1, 1)
    assert agent.act(states).item() == pytest.approx(np.sin(0.3))
    batch = make_batches(1)[0]._replace(observations=states)
    drawn = Draws(None, torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1), None)
    loss = agent.balance_loss(batch, drawn)[0]
    (slope,) = torch.autograd.grad(loss.sum(), agent.balance.body.layers[0].bias)
    assert slope.item() == pytest.approx(-7 * np.cos(0.3) * 0.1, rel=1e-5)


def test_the_family_is_drawn_uniformly_on_the_data_and_by_the_balance_online(monkeypatch):
    seen = []
    update = FamO2O.update
    monkeypatch.setattr(
        FamO2O, "update", lambda self, b, d: (seen.append(d.shares), update(self, b, d))[1]
    )
    tiny.Short(tiny.settings("famo2o", phase="both"))
    assert all(x is not None for x in seen[: tiny.PRETRAIN])
    assert len(seen) > tiny.PRETRAIN and not any(x is not None for x in seen[tiny.PRETRAIN :])


def test_it_explores_with_the_balances_choice():
    agent = make()
    states = torch.randn(SEEDS, 5, O)
    mean = agent.policy(states, None, agent.chosen(states))
    torch.testing.assert_close(agent.explore(states, torch.zeros(SEEDS, 5, A)), mean.clamp(-1, 1))
    other = agent.policy(states, None, torch.full((SEEDS, 5), 1.0))
    assert not torch.allclose(mean, other)
    assert ((agent.chosen(states) > 1) & (agent.chosen(states) < 5)).all()


def test_bad_settings_are_refused():
    for wrong, words in [
        ({"beta": 10.0}, "algo.beta=10.0 algo.low algo.high"),
        ({"low": 6.0}, "algo.low=6.0 algo.high=5.0"),
        ({"encoding": 5}, "algo.encoding=5"),
    ]:
        with refused(words):
            Config(**wrong)
