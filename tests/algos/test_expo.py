"""EXPO: equations of the released learner, the choice on the fly by enumeration, losses by hand."""

import math
from functools import partial

import numpy as np
import pytest
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
    set_linear,
    tiny,
)
from reference_soft import adam, leaves, mlp, numbers, set_grads, squashed

from corerl.algos.expo import EXPO, Config, Draws, noise_shape
from corerl.errors import CorerlError
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "flow_steps": 3, "discount": 0.9, "utd": 2}
SMALL |= {"critics": 4, "samples": 3, "edit_scale": 0.4, "polyak": 0.1, "base_polyak": 0.2}
RNG = np.random.default_rng(7)


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **own) -> EXPO:
    return EXPO(Config(**SMALL | own), Spec(observations, actions, generators(seeds)))


def normal(*shape: int) -> torch.Tensor:
    return as_tensor(RNG.normal(size=(SEEDS, *shape)))


def uniform(*shape: int) -> torch.Tensor:
    return as_tensor(RNG.random((SEEDS, *shape)))


def make_draws(cfg: Config) -> Draws:
    made = normal(cfg.utd, B, cfg.candidates, A)
    subsets = uniform(cfg.utd, 2, cfg.critics)
    return Draws(made, subsets, normal(B, A), normal(B, A), uniform(B, 1))


def parts(agent: EXPO, s: int) -> tuple:
    heads = range(agent.cfg.critics)
    critics, targets = ([net(m, s, i) for i in heads] for m in (agent.critic, agent.target))
    others = (net(x, s) for x in (agent.flow, agent.base, agent.edit, agent.temperature))
    return critics, targets, *others


layers = partial(mlp, eps=1e-6)


class Reference:
    """One seed, one state and one candidate at a time, written from the released learner."""

    def __init__(self, cfg, critics, targets, flow, base, edit, temperature):
        self.c, self.flow, self.base, self.edit = cfg, leaves(flow), leaves(base), leaves(edit)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        self.temperature = leaves(temperature)
        self.q_optimizer, self.flow_optimizer = adam(3e-4, *self.critics), adam(3e-4, self.flow)
        self.edit_optimizer = adam(3e-4, self.edit, self.temperature)

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        rest = (numbers(x) for x in (self.flow, self.base, self.edit, self.temperature))
        return critics, targets, *rest

    def low(self, uniforms, s, a):
        """The smaller of the target critics whose uniform draws are the two lowest."""
        chosen = np.argsort(uniforms.numpy())[: self.c.critic_subsample]
        sa = torch.cat([s, a], 1)
        return torch.stack([layers(self.targets[i], sa)[:, 0] for i in chosen]).amin(0)

    def edits(self, s, a, noise):
        mean, log_std = layers(self.edit, torch.cat([s, a], 1), "body.").chunk(2, 1)
        found = squashed(mean, log_std.clamp(-20, 2))
        edit = torch.tanh(mean + log_std.clamp(-20, 2).exp() * noise)
        return edit, found.log_prob(edit).sum(1)

    def follow(self, net, s, x):
        for i in range(self.c.flow_steps):
            t = torch.full((len(s), 1), i / self.c.flow_steps, dtype=s.dtype)
            x = x + layers(net, torch.cat([s, x, t], 1)) / self.c.flow_steps
        return x.clamp(-1, 1)

    @torch.no_grad()
    def on_the_fly(self, net, s, noise, uniforms):
        """The best action at one state `(O,)`, of noise `(2 N, A)`."""
        N = self.c.samples
        states = s.expand(N, -1)
        base = self.follow(net, states, noise[:N])
        edited = base + self.c.edit_scale * self.edits(states, base, noise[N:])[0]
        every = torch.cat([base, edited.clamp(-1, 1)])
        return every[self.low(uniforms, s.expand(2 * N, -1), every).argmax()]

    def update_critics(self, batch, noise, uniforms) -> float:
        s, a, r, s_next, d = map(torch.from_numpy, batch[:5])
        with torch.no_grad():
            best = [
                self.on_the_fly(self.flow, s_next[i], noise[i], uniforms[0]) for i in range(len(s))
            ]
            value = self.low(uniforms[1], s_next, torch.stack(best))
            y = r + self.c.discount * (1 - d) * value
        sa = torch.cat([s, a], 1)
        loss = sum(((layers(critic, sa)[:, 0] - y) ** 2).mean() for critic in self.critics)
        set_grads(self.q_optimizer, loss)
        self.q_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            self.average(target, online, self.c.polyak)
        return loss.item()

    @staticmethod
    @torch.no_grad()
    def average(target, online, share):
        for key in target:
            target[key].copy_(share * online[key] + (1 - share) * target[key])

    def update(self, batches, draws) -> dict:
        for i, batch in enumerate(batches):
            critic_loss = self.update_critics(batch, draws.candidates[i], draws.subsets[i])
        s, a = torch.from_numpy(batches[-1][0]), torch.from_numpy(batches[-1][1])
        x = (1 - draws.times) * draws.path + draws.times * a
        velocity = layers(self.flow, torch.cat([s, x, draws.times], 1))
        flow_loss = ((velocity - (a - draws.path)) ** 2).mean()
        set_grads(self.flow_optimizer, flow_loss)
        self.flow_optimizer.step()
        self.average(self.base, self.flow, self.c.base_polyak)
        edit, log_prob = self.edits(s, a, draws.edits)
        log_prob = log_prob - a.shape[1] * math.log(self.c.edit_scale)
        sa = torch.cat([s, (a + self.c.edit_scale * edit).clamp(-1, 1)], 1)
        frozen = [{k: p.detach() for k, p in critic.items()} for critic in self.critics]
        q = torch.stack([layers(critic, sa)[:, 0] for critic in frozen]).mean(0)
        alpha = self.temperature["log_alpha"].exp()
        edit_loss = (alpha.detach() * log_prob - q).mean()
        entropy = -log_prob.mean().detach()
        set_grads(self.edit_optimizer, edit_loss + alpha * (entropy + a.shape[1] / 2))
        self.edit_optimizer.step()
        return {"critic_loss": critic_loss, "flow_loss": flow_loss.item()} | {
            "edit_loss": edit_loss.item()
        }


def test_it_equals_the_equations(float64):
    agent = make()
    scramble(agent.critic, agent.target, agent.flow, agent.base, agent.edit)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    batches = make_batches(8)
    for i in range(0, 8, 2):
        draws = make_draws(agent.cfg)
        metrics = agent.update(batches[i : i + 2], draws)
        for s, their in enumerate(theirs):
            own = [one_seed(batch, s) for batch in batches[i : i + 2]]
            assert_losses(metrics, s, their.update(own, Draws(*(x[s] for x in draws))), 1e-7)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), 1e-7)
    states, noise = normal(1, O), normal(1, *noise_shape(agent.cfg, A))
    actions = agent.explore(states, noise)
    for s, their in enumerate(theirs):
        made = noise[s, 0, :-4].view(6, A)
        expected = their.on_the_fly(their.base, states[s, 0], made, noise[s, 0, -4:])
        torch.testing.assert_close(actions[s, 0], expected)


def one_step(**own) -> EXPO:
    """One state and action: the flow's action is its noise, the edit is 0.1 tanh(1 + noise), Q = -a."""
    agent = make(1, 1, 1, hidden_layers=0, edit_scale=0.1, critic_subsample=1, **own)
    for critics in (agent.critic, agent.target):
        set_linear(critics, [[0.0, -1.0]] * agent.cfg.critics, [0.0] * agent.cfg.critics)
    for velocity in (agent.flow, agent.base):
        set_linear(velocity, [[0.0, 0.0, 0.0]], [0.0])
    set_linear(agent.edit.body, [[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    return agent


def test_the_choice_on_the_fly_by_hand():
    """Of 0.4, -0.3, 0.9 and their edits the lowest wins: -0.3, or its edit where that is downwards."""
    agent = one_step()
    for edit, expected in ((0.5, -0.3), (-2.0, -0.3 + 0.1 * math.tanh(-1.0))):
        noise = torch.tensor([0.4, -0.3, 0.9, 0.0, edit, 0.0, *torch.rand(4)]).view(1, 1, -1)
        action = agent.explore(torch.zeros(1, 1, 1), noise)
        assert action.item() == pytest.approx(expected, abs=1e-6)


def test_edit_loss_by_hand():
    """From a = 0.2 with noise 0: the edit tanh(1), its density N(1; 1, 1) less the tanh's and the scale's."""
    loss, metrics = one_step().edit_loss(tiny(s=[[0]], a=[[0.2]]), torch.zeros(1, 1, 1))
    log_prob = -0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(1) ** 2) - math.log(0.1)
    edit_loss = log_prob + (0.2 + 0.1 * math.tanh(1))
    assert metrics["edit_loss"].tolist() == pytest.approx([edit_loss], abs=1e-5)
    assert loss.tolist() == pytest.approx([edit_loss + (-log_prob + 0.5)], abs=1e-5)


def test_one_candidate_without_edits_is_sarsa_on_cloned_actions():
    agent = make(samples=1, edit_scale=0.0, critic_subsample=4)
    batch, noise = make_batches(1)[0], normal(B, 1, A).float()
    loss, _ = agent.critic_loss(batch, noise, uniform(2, 4).float())
    cloned = agent.candidates(agent.flow, batch.next_observations, noise)[:, :, 0]
    y = agent.target(batch.next_observations, cloned).amin(1)
    y = batch.rewards + 0.9 * (1 - batch.terminated) * y
    q = agent.critic(batch.observations, batch.actions)
    torch.testing.assert_close(loss, (q - y[:, None]).square().mean(-1).sum(1))
    before = {k: p.clone() for k, p in agent.edit.named_parameters()}
    agent.update([batch], make_draws(agent.cfg))
    assert all(torch.equal(p, before[k]) for k, p in agent.edit.named_parameters())


def test_the_chosen_value_is_no_lower_than_that_of_any_candidate():
    agent = make()
    states, noise, uniforms = normal(B, O).float(), normal(B, 6, A).float(), uniform(4).float()
    made = agent.candidates(agent.flow, states, noise)
    chosen = agent.choose(states, made, uniforms)
    for s in range(SEEDS):
        two = uniforms[s].argsort()[:2]
        best = agent.target(states, chosen)[s, two].amin(0)
        for k in range(6):
            assert (best >= agent.target(states, made[:, :, k])[s, two].amin(0) - 1e-5).all()


def test_edits_are_no_larger_than_their_scale_and_stay_in_bounds():
    agent = make(edit_scale=0.3)
    made = agent.candidates(agent.flow, normal(B, O).float(), 3 * normal(B, 6, A).float())
    base, edited = made.chunk(2, 2)
    assert (edited - base).abs().max() <= 0.3 + 1e-6 and made.abs().max() <= 1
    assert (edited - base).abs().max() > 0.2


def test_fitting_moves_the_flow_and_its_average_alone():
    agent = make()
    frozen = [agent.critic, agent.target, agent.edit, agent.temperature]
    before = [p.clone() for m in frozen for p in m.parameters()]
    flow, base = ([p.clone() for p in m.parameters()] for m in (agent.flow, agent.base))
    agent.fit(make_batches(1)[0], normal(B, A).float(), uniform(B, 1).float())
    after = [p for m in frozen for p in m.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(before, after, strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(flow, agent.flow.parameters(), strict=True))
    for old, new, average in zip(
        base, agent.flow.parameters(), agent.base.parameters(), strict=True
    ):
        torch.testing.assert_close(average, 0.8 * old + 0.2 * new)


@pytest.mark.parametrize(
    "wrong",
    [{"phase": "offline"}, {"critic_subsample": 11}, {"edit_scale": -0.1}, {"samples": 0}],
)
def test_wrong_settings_raise(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(CorerlError, match=rf"algo\.{name}={value}"):
        Config(**wrong)
