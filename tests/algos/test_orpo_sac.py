"""ORPO on SAC: the discriminator against exact divergences, a transcription, slopes, the proxy, runs."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import run
from test_orpo import DOOR, random_problem
from test_sac import Transcription
from wording import refused

from corerl import seeding
from corerl.algos import orpo, orpo_sac
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import Config, Eval
from corerl.data.tasks import resolve
from corerl.envs import pendulum
from corerl.nn.learner import Spec
from corerl.nn.policies import PolicyNoise

O, A, B = 3, 2, 16
TASK = "risk/pendulum-proxy"


def agent_of(seeds, **own) -> orpo_sac.ORPOSAC:
    cfg = orpo_sac.Config(batch_size=B, hidden_width=8, **own)
    return orpo_sac.ORPOSAC(cfg, Spec(O + 1, A, seeding.generators(seeds, "init")))


# The oracle: occupancies of finite problems, whose divergences are known.


def occupancies(problem: orpo.Problem, policy) -> np.ndarray:
    visits = orpo.occupancy_of(problem.mdp, policy)
    return visits.reshape(-1, *problem.mdp.sizes).sum(0) / visits.sum()


def learned(p: np.ndarray, p0: np.ndarray, seed: int) -> tuple[torch.Tensor, dict[str, float]]:
    """The discriminator's d at every state and action, and what it last said of both divergences."""
    cfg = orpo_sac.Config(hidden_width=32, hidden_layers=1, discriminator_lr=3e-3, clip=8.0)
    spec = Spec(p.size, 0, seeding.generators([seed], "init"))
    d, rng = orpo_sac.Discriminator(cfg, p.size, spec), np.random.default_rng(seed)
    every = torch.eye(p.size)
    said = []
    for _ in range(3_000):
        drawn = (every[rng.choice(p.size, 256, p=x.ravel())][None] for x in (p, p0))
        said.append({name: float(x) for name, x in d.update(*drawn).items()})
    last = {name: float(np.mean([row[name] for row in said[-500:]])) for name in said[0]}
    return d(every[None])[0].detach(), last


@pytest.mark.parametrize("seed", range(4))
def test_the_discriminator_finds_the_exact_divergences(seed):
    """Of a policy and a reference of random problems, and of ORPO's own optimum on the door."""
    env = random_problem(seed) if seed else DOOR
    problem = orpo.Problem(env)
    policy = np.random.default_rng(seed).dirichlet(np.ones(3), 4)
    if not seed:
        policy = orpo.solve(orpo.Config(coefficient=0.3), DOOR)[0]
    p, p0 = occupancies(problem, policy), problem.visits
    d, said = learned(p, p0, seed)
    exact = {kind: orpo.divergence(kind, p, p0)[0] for kind in ("chi2", "kl")}
    assert exact["chi2"] > 0.2
    for kind, found in {
        "chi2": float((torch.from_numpy(p).ravel() * d.exp()).sum() - 1),
        "kl": float((torch.from_numpy(p).ravel() * d).sum()),
    }.items():
        assert found == pytest.approx(exact[kind], rel=0.15, abs=0.03)
        assert said[kind] == pytest.approx(exact[kind], rel=0.2, abs=0.05)
    often = (np.minimum(p, p0) > 0.02).ravel()
    np.testing.assert_allclose(d.numpy()[often], np.log(p / p0).ravel()[often], atol=0.3)


@pytest.mark.parametrize("penalty", ["chi2", "sqrt_chi2", "kl"])
def test_slopes_are_those_of_the_exact_penalty(penalty):
    """With d = log p / p0, up to a constant, which no policy feels."""
    rng = np.random.default_rng(0)
    p, p0 = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    cfg = orpo_sac.Config(penalty=penalty, hidden_layers=0, clip=50.0)
    d = orpo_sac.Discriminator(cfg, 6, Spec(6, 0, seeding.generators([0], "init")))
    with torch.no_grad():
        d.network.layers[0].weight.copy_(torch.from_numpy(np.log(p / p0))[None, :, None])
        d.network.layers[0].bias.zero_()
    chi2 = torch.tensor([orpo.chi_square(p, p0)[0]])
    found = d.slope(torch.eye(6)[None], chi2)[0].numpy()
    exact = orpo.divergence(penalty, p, p0)[1]
    np.testing.assert_allclose(found - found[0], exact - exact[0], rtol=1e-4, atol=1e-5)
    if penalty == "sqrt_chi2":
        np.testing.assert_allclose(
            d.slope(torch.eye(6)[None], torch.tensor([-0.1]))[0].numpy(), p / p0 - 1, rtol=1e-4
        )


def test_by_hand():
    """d is 0 at first: the loss is 2 log 2, the divergences 0, and rewards are standardised proxies."""
    agent = agent_of([0], coefficient=0.5)
    for layer in agent.discriminator.network.layers:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    for paid in (1.0, 3.0, 5.0, 7.0):  # mean 4, variance 5
        agent.proxy.update(torch.tensor([[paid]]))
    batch = next(iter(batches([0], 1)))[0]
    batch.next_observations[..., -1] = 9.0
    batch = Batch(*(x.float() for x in batch))
    found = agent.penalised(batch, torch.zeros(1))
    np.testing.assert_allclose(found.rewards.numpy(), 5 / np.sqrt(5), rtol=1e-3)
    rows = torch.zeros(1, B, O + 1 + A)
    metrics = agent.discriminator.update(agent.inputs(rows), agent.inputs(rows))
    assert float(metrics["discriminator_loss"]) == pytest.approx(2 * np.log(2))
    assert abs(float(metrics["chi2"])) < 1e-2


# The update.


def batches(seeds, count):
    rngs = [np.random.default_rng(seed) for seed in seeds]

    def stack(*shape):
        return torch.as_tensor(np.stack([rng.normal(size=shape) for rng in rngs]))

    for _ in range(count):
        over = (stack(B) > 1).double()
        batch = Batch(
            *(stack(B, O + 1), stack(B, A).tanh(), stack(B), stack(B, O + 1), over, over[..., :0])
        )
        yield batch, stack(2, B, A), stack(B, O + 1 + A), stack(B, O + 1 + A)


class Reference(Transcription):
    """One seed of SAC, and a discriminator."""

    def __init__(self, agent, i):
        super().__init__(agent, i)
        self.d = [
            (layer.weight[i].detach().clone(), layer.bias[i].detach()[0].clone())
            for layer in agent.discriminator.network.layers
        ]
        for tensor in self.flat(self.d):
            tensor.requires_grad_(True)
        self.d_adam = torch.optim.Adam(self.flat(self.d), self.cfg.discriminator_lr)
        self.seen = [0.4, 1.5, -2.0]

    def shown(self, rows):
        columns = [*range(O), *([] if self.cfg.measure == "state" else range(O + 1, O + 1 + A))]
        return self.forward(self.d, rows[:, columns])[:, 0]

    def penalised_update(self, s, a, s2, d, noise, policy, reference):
        logits = torch.cat([self.shown(policy), self.shown(reference)])
        labels = torch.cat([torch.ones(B), torch.zeros(B)])
        loss = 2 * torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self.d_adam.zero_grad()
        loss.backward()
        self.d_adam.step()
        with torch.no_grad():
            chi2 = self.shown(policy).clamp(-0.2, 0.2).exp().mean() - 1
            ratio = self.shown(torch.cat([s, a], 1)).clamp(-0.2, 0.2)
            slope = {
                "kl": ratio,
                "chi2": 2 * (ratio.exp() - 1),
                "sqrt_chi2": (ratio.exp() - 1) / (chi2.sqrt() if chi2 > 0 else 1.0),
            }[self.cfg.penalty]
            mean, std = np.mean(self.seen), np.std(self.seen)
            gains = (s2[:, -1] - mean) / std
        self.update(s[:, :-1], a, gains - self.cfg.coefficient * slope, s2[:, :-1], d, noise)


@pytest.mark.parametrize(
    "own",
    [
        {"penalty": "chi2"},
        {"penalty": "sqrt_chi2", "measure": "state"},
        {"penalty": "kl", "coefficient": 2.0},
    ],
)
def test_updates_equal_the_transcription(float64, own):
    seeds = [0, 7]
    agent = agent_of(seeds, **({"coefficient": 0.7, "clip": 0.2, "discriminator_lr": 0.01} | own))
    agent.proxy.count.zero_()  # which else weighs the first variance, 1, by 1e-4
    references = [Reference(agent, i) for i in range(2)]
    for paid in references[0].seen:
        agent.proxy.update(torch.full((2, 1), paid))
    for batch, noise, policy, reference in batches(seeds, 4):
        agent.update([batch], [PolicyNoise(*noise.unbind(1))], policy, reference)
        for i, other in enumerate(references):
            s, a, _, s2, d, _ = (field[i] for field in batch)
            other.penalised_update(s, a, s2, d, noise[i], policy[i], reference[i])
    for i, other in enumerate(references):
        mine = Reference(agent, i)
        pairs = zip(
            other.flat(other.pi, *other.q, other.d),
            mine.flat(mine.pi, *mine.q, mine.d),
            strict=True,
        )
        for expected, found in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_networks_do_not_see_the_proxy():
    agent = agent_of([3])
    observations = torch.randn(1, B, O + 1)
    other = observations.clone()
    other[..., -1] += 5.0
    torch.testing.assert_close(agent.act(other), agent.act(observations), rtol=0, atol=0)
    rows = torch.cat([observations, torch.zeros(1, B, A)], -1)
    changed = torch.cat([other, torch.zeros(1, B, A)], -1)
    torch.testing.assert_close(agent.inputs(rows), agent.inputs(changed), rtol=0, atol=0)


def test_what_is_compared_is_of_the_latest_steps_and_of_the_references():
    cfg = orpo_sac.Config(random_steps=10, recent=5)
    replay = ReplayBuffer(2, 1, 40, [0], 4)
    for t in range(30):
        value = np.full((1, 2), t, np.float32)
        replay.add((value, value[:, :1], value[:, 0], value, *[np.zeros(1, bool)] * 2))
    uniforms = torch.linspace(0, 0.999, 50).expand(1, 2, 50)
    policy, reference = orpo_sac.compared(replay, uniforms, 20, cfg)
    assert policy.shape == (1, 50, 3)
    assert set(policy[..., 0].ravel().tolist()) == {25, 26, 27, 28, 29}
    assert set(reference[..., 0].ravel().tolist()) == set(range(10))
    assert set(orpo_sac.compared(replay, uniforms, 2, cfg)[0][..., 0].ravel().tolist()) == {28, 29}


# The task.


def test_the_proxy_agrees_with_the_reference_and_not_with_a_spinning_pole():
    env, rng = resolve(TASK).make_env(), np.random.default_rng(0)

    def played(act) -> tuple[np.ndarray, np.ndarray]:
        paid = []
        for episode in range(10):
            seen, over = env.reset(seed=episode)[0], False
            while not over:
                seen, reward, _, over, _ = env.step(act(seen))
                paid.append((reward, float(seen[-1])))
        assert len(paid) == 10 * pendulum.STEPS
        return np.array(paid).T

    true, proxy = played(lambda seen: env.unwrapped.reference(seen, rng.standard_normal(1)))
    assert 0.6 < np.corrcoef(true, proxy)[0, 1] < 0.9
    spun, paid = played(lambda seen: np.sign(seen[2:3]) if seen[2] else np.ones(1, np.float32))
    assert spun.mean() < 2 * true.mean() and paid.mean() > proxy.mean() + 3


def job(root, **changes) -> Config:
    algo = orpo_sac.Config(random_steps=10, batch_size=8, hidden_width=8, recent=12)
    cell = {"task": TASK, "steps": 40, "eval": Eval(every=20, episodes=1), "compile": "off"}
    often = {"log_every": 4, "save_every": 4, "save_minutes": 0, "root": str(root)}
    return Config(algo=algo, **(cell | often | changes))


def test_metrics_have_both_returns(tmp_path):
    cfg = job(tmp_path, steps=210, log_every=210, save_every=210, eval=Eval(every=210, episodes=1))
    line = json.loads((run(cfg) / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["proxy_return"] >= line["episode_return"] > -2_000


def test_the_sum_of_an_episode_that_cannot_continue_is_dropped():
    proxies, zeros = orpo_sac.Proxies(2), np.zeros(2, bool)
    states = np.array([[0.0, 1.0], [0.0, 2.0]], np.float32)
    proxies.add(SimpleNamespace(next_observations=states, terminated=zeros, truncated=zeros))
    proxies.end_episodes(np.array([False, True]), states)
    assert proxies.sum.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "gym/Pendulum-v1"}, "reference"),
        ({"steps": 10}, "steps=10"),
        ({"history": 2}, "history=2 history=1"),
        ({"action_range": [-0.5, 0.5]}, "action_range"),
    ],
)
def test_what_the_reference_cannot_play_raises_an_error(tmp_path, changes, words):
    cfg = replace(job(tmp_path), **changes)
    with refused(words):
        run(replace(cfg, eval=Eval(every=10, episodes=1)))
