"""Hindsight PRIOR: world model and importance against a transcription, the prior by hand, and its gain."""

from dataclasses import replace

import numpy as np
import pytest
import reference_dt
import torch
from agreement import SEEDS, A, O, assert_networks, generators, net, scramble
from reference_dt import layer
from reference_pref_transformer import hidden
from small import run, state_of
from wording import refused

from corerl.algos import dtr, pref_iql
from corerl.config import Config, Eval
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec
from corerl.preferences import hindsight
from corerl.preferences.buffer import PairBuffer
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.hindsight import WindowBuffer, Windows, World, WorldModel, prior_loss
from corerl.preferences.reward_models import Markov, unfitted
from corerl.preferences.sources import Preferences
from corerl.risk.rewards import starc_of_rows

L, B = 4, 3
TINY = {"layers": 2, "heads": 2, "width": 8, "dropout": 0.25, "lr": 1e-2, "batch_size": B}


def windows(seed: int = 0) -> Windows:
    rng, dtype = np.random.default_rng(seed), torch.get_default_dtype()
    shape = (SEEDS, B, L)
    return Windows(*(torch.from_numpy(rng.normal(size=(*shape, n))).to(dtype) for n in (O, A, O)))


def model(cfg: World) -> WorldModel:
    made = WorldModel(cfg, Spec(O, A, generators(), identities=range(SEEDS)), L)
    scramble(made.network)
    return made


# The world model.


def test_five_updates_equal_the_equations(float64):
    """The mean absolute error of next states, with dropout, one seed and one segment at a time."""
    cfg = World(**TINY)
    mine, other = model(cfg), model(cfg)
    theirs = [
        {k: torch.tensor(v, requires_grad=True) for k, v in net(mine.network, s).items()}
        for s in range(SEEDS)
    ]
    adams = [torch.optim.Adam(p.values(), lr=cfg.lr) for p in theirs]
    for number in range(5):
        batch, keys = windows(number), other.keys.next()
        loss = mine.update(batch)["world_loss"]
        for s, p in enumerate(theirs):
            kept = reference_dt.masks(keys[s].tolist(), cfg, 2)
            errors = []
            for n in range(B):

                def drop(place, x, head=0, n=n, kept=kept):
                    return x * torch.as_tensor(kept(place, n, head, tuple(x.shape))) / 0.75

                states, actions, following = (x[s, n] for x in batch)
                h = hidden(p, states, actions, [1] * L, cfg.layers, cfg.heads, drop)
                errors.append((layer(p, "head", h) - following).abs().mean())
            expected = sum(errors) / B
            assert loss[s].item() == pytest.approx(expected.item(), rel=1e-9)
            adams[s].zero_grad()
            expected.backward()
            adams[s].step()
    for s, p in enumerate(theirs):
        found = {k: v.detach().numpy() for k, v in p.items()}
        assert_networks(net(mine.network, s), found, 1e-8)


def test_importance_is_what_the_last_token_looks_at(float64):
    """Mean over layers and heads, sum over a step's two tokens; sums are 1."""
    cfg, batch = World(**TINY), windows()
    mine = model(cfg)
    found = mine.importance(*(x[:, :, None] for x in batch[:2]))[:, :, 0]
    torch.testing.assert_close(found.sum(-1), torch.ones(SEEDS, B))
    for s in range(SEEDS):
        p = {k: torch.tensor(v) for k, v in net(mine.network, s).items()}
        for n in range(B):
            looks = []

            def seen(place, x, head=0, looks=looks):
                if place % 3 == 1:  # attention's weights
                    looks.append(x[-1])
                return x

            hidden(p, batch[0][s, n], batch[1][s, n], [1] * L, cfg.layers, cfg.heads, seen)
            tokens = sum(looks) / len(looks)
            assert len(looks) == cfg.layers * cfg.heads
            torch.testing.assert_close(found[s, n], tokens[0::2] + tokens[1::2])


def test_importance_in_pieces_is_that_of_all(monkeypatch):
    mine, batch = model(World(**TINY)), windows()
    pairs = [torch.stack([x, x.flip(2)], 2) for x in batch[:2]]
    whole = mine.importance(*pairs)
    monkeypatch.setattr(hindsight, "PIECE", 2)
    torch.testing.assert_close(mine.importance(*pairs), whole)


def store(lengths, next_step: float = 1.0) -> Comparisons:
    """Episodes of these lengths whose observations count the rows."""
    rows = np.arange(sum(lengths), dtype=np.float32)[:, None]
    ends = np.cumsum(lengths)
    starts = np.array([[0, 0]])
    ended = np.zeros(len(rows), bool)
    parts = (rows, -rows, rows + next_step, ended, None, ends, starts)
    return Comparisons("rows", "test", *parts, 1, np.zeros(1, np.float32))


def test_windows_are_all_segments_within_episodes():
    buffer = WindowBuffer(store([3, 1, 4]), [0, 1], 50, 3)
    found = buffer.sample()
    assert set(found.observations[..., 0, 0].flatten().tolist()) == {0.0, 4.0, 5.0}
    assert (found.observations.diff(dim=2) == 1).all()
    assert torch.equal(found.actions, -found.observations)
    assert torch.equal(found.next_observations, found.observations + 1)
    alone = WindowBuffer(store([3, 1, 4]), [1], 50, 3).sample()
    assert torch.equal(alone.observations[0], found.observations[1])


@pytest.mark.parametrize("terminal", [True, False])
def test_no_window_ends_in_the_next_episode(terminal):
    """Terminal rows with the next episode's first observation, as D4RL's, and rows without a next one."""
    rows = np.arange(12, dtype=np.float32)[:, None]
    ends = {"terminated" if terminal else "truncated": np.arange(12) % 4 == 3}
    if terminal:
        ends["next_observations"] = np.roll(rows, -1)
    data = Dataset.from_arrays(rows, 0 * rows, np.zeros(12), **ends)
    compared = Comparisons.of_dataset(data, np.array([[0, 4]]), 4, [1.0], "test")
    found = WindowBuffer(compared, [0], 20, 4).sample()
    steps = (found.next_observations - found.observations)[..., 0]
    assert (steps[..., :-1] == 1).all() and (steps[..., -1] == 0).all()


# The prior.


def test_the_prior_by_hand():
    """Rewards 1 and 3: shares 1/4 and 3/4 are theirs, and equal shares ask for 2 and 2."""
    rewards = torch.tensor([[[1.0, 3.0]]])
    assert prior_loss(rewards, torch.tensor([[[0.25, 0.75]]])).item() == 0.0
    assert prior_loss(rewards, torch.full((1, 1, 2), 0.5)).item() == 1.0
    assert prior_loss(rewards, torch.tensor([[[1.0, 0.0]]])).item() == 9.0  # 4 and 0


@pytest.mark.parametrize("shares", [[1 / 3, 1 / 3, 1 / 3], [0.7, 0.1, 0.2]])
def test_its_minimisers_are_rewards_in_proportion_to_the_shares(shares, float64):
    """Equal shares also keep the sum, whose gradient is 0: 0, 1 and 5 become 2, 2 and 2."""
    rewards, shares = torch.tensor([[[0.0, 1.0, 5.0]]], requires_grad=True), torch.tensor(shares)
    step = torch.optim.SGD([rewards], 0.5)
    for _ in range(400):
        step.zero_grad()
        prior_loss(rewards, shares[None, None]).backward()
        step.step()
    end = rewards.detach().flatten()
    torch.testing.assert_close(end, shares * end.sum(), rtol=0, atol=1e-9)
    assert end.sum() > 1
    if shares[0] == shares[1]:
        torch.testing.assert_close(end, torch.full((3,), 2.0))


def one_step_matters(episodes: int, pairs: int, steps: int = 5) -> Comparisons:
    """Episodes in which one step is marked. Its value is the only reward, and shows in the last state.

    States are a mark, a value and what shows. Actions are noise.
    """
    rng, every = np.random.default_rng(0), np.arange(episodes)
    states = np.zeros((episodes, steps + 1, 3), np.float32)
    states[:, :steps, 1] = rng.uniform(-1, 1, (episodes, steps))
    key = rng.integers(steps, size=episodes)
    states[every, key, 0] = 1
    states[:, steps, 2] = states[every, key, 1]
    after = np.concatenate([states[:, 1:], states[:, -1:]], 1)
    actions = rng.uniform(-1, 1, (episodes, steps + 1, 4)).astype(np.float32)
    rewards = states[..., 0] * states[..., 1]
    chosen = rng.integers(episodes, size=(pairs, 2))
    returns = rewards.sum(1)[chosen]
    labels = (returns[:, 1] > returns[:, 0]).astype(np.float32)
    flat = [x.reshape(-1, x.shape[-1]) for x in (states, actions, after)]
    ended, ends = np.zeros(len(flat[0]), bool), np.arange(1, episodes + 1) * (steps + 1)
    starts = chosen * (steps + 1)
    return Comparisons("marks", "test", *flat, ended, rewards.ravel(), ends, starts, steps, labels)


def test_where_one_step_matters_the_reward_is_nearer_to_the_truth_than_bradley_terrys():
    """STARC's distance over the rows, with 30 comparisons; the world model finds the marked step."""
    compared, seeds = one_step_matters(600, 30), [0]
    cfg = World(layers=1, heads=1, width=32, dropout=0.0, lr=5e-3, batch_size=64)
    world = hindsight.model(cfg, (3, 4), seeds, compared.length)
    buffer = WindowBuffer(compared, seeds, cfg.batch_size, compared.length)
    for _ in range(500):
        world.update(buffer.sample())
    parts = [
        torch.from_numpy(compared.segments(x))[None]
        for x in (compared.observations, compared.actions)
    ]
    shares, marked = world.importance(*parts), parts[0][..., 0]
    assert (shares * marked).sum(-1).mean() > 0.9
    found = {}
    for prior in (0.0, 1.0):
        own = {"members": 1, "hidden_layers": 2, "hidden_width": 32, "bounded": False, "lr": 1e-3}
        fits = Markov(**own, batch_size=30, stop_accuracy=None, prior=prior)
        reward = unfitted(fits, Spec(3, 4, (), identities=seeds))
        pairs = PairBuffer(compared, seeds, fits.batch_size)
        for _ in range(600):
            metrics = reward.update(world.judged(pairs.sample()))
        assert metrics["reward_accuracy"].item() > 0.95
        learned = reward.rewards(compared.observations, compared.actions)[0, 0].double().numpy()
        rows = np.setdiff1d(np.arange(len(learned)), compared.ends - 1)  # of steps that are taken
        found[prior] = starc_of_rows(
            *(learned[rows], compared.rewards[rows].astype(np.float64)),
            *(compared.observations[rows], compared.next_observations[rows]),
            *(compared.terminated[rows], 0.99),
            features=32,
        )
    assert found[1.0] < 0.7 * found[0.0]


# Runs.

REWARD = {"members": 2, "hidden_layers": 1, "hidden_width": 8, "batch_size": 4, "prior": 1.0}
SMALL = World(**TINY, steps=6)


def offline(root, **own) -> Config:
    reward = Markov(**REWARD, steps=10, stop_accuracy=None)
    small = {"hidden_width": 8, "batch_size": 8, "crop": 4, "reward": reward, "world": SMALL}
    compared = Preferences(pairs=20, length=6)
    algo = pref_iql.Config(**(small | {"preferences": compared} | own))
    return job(root, algo, task="corerl/pendulum", steps=30)


def job(root, algo, **cell) -> Config:
    often = {"log_every": 5, "save_every": 5, "save_minutes": 0, "root": str(root)}
    return Config(
        algo=algo, eval=Eval(every=cell["steps"], episodes=1), compile="off", **often, **cell
    )


@pytest.mark.parametrize("reward_seed", [None, 3])
def test_a_seed_alone_learns_as_in_company(tmp_path, reward_seed):
    found = []
    for seeds in ([3], [0, 3]):
        cfg = offline(tmp_path / str(len(seeds)))
        reward = replace(cfg.algo.reward, seed=reward_seed)
        state = state_of(run(replace(cfg, algo=replace(cfg.algo, reward=reward)), seeds))
        parts = state["world"]["network"], state["agent"]["reward"]["network"]
        found.append([x[-1] for part in parts for x in part.values()])
    for alone, accompanied in zip(*found, strict=True):
        torch.testing.assert_close(alone, accompanied, rtol=1e-4, atol=1e-5)


def test_world_reward_and_policy_learn_one_after_the_other(tmp_path):
    cfg = offline(tmp_path, reward_first=True)
    assert cfg.algo.first_phase() == (16, "algo.world.steps + algo.reward.steps")
    assert offline(tmp_path).algo.first_phase()[0] == 6
    with refused("algo.world.steps + algo.reward.steps=16 steps=16"):
        replace(cfg, steps=16).policy_steps()


def test_a_reward_without_a_world_model_refuses_the_prior():
    with refused("algo.reward.prior=1.0 algo=pref_iql"):
        dtr.Config(reward=Markov(prior=1.0))
    with refused("algo.reward.sigmoid=true algo.reward.bounded=true"):
        Markov(sigmoid=True)
