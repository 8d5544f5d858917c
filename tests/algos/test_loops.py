"""What only an algorithm's own `train` decides: how often, in which order, from which data, and who plays.

The transcriptions call `update` themselves. Jobs are those of tests/tiny.py.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from agreement import scramble

from corerl.algos import arsq, bcq_discrete, cql_discrete, cql_official, cqn, cvar, dtr, ela, icvar
from corerl.config import Config
from corerl.nn.networks import Normalizer
from corerl.preferences import teachers
from corerl.preferences.relabelling import episode_returns, rows_of
from corerl.risk.finite_mdp import return_law
from corerl.risk.solvers import iterated, iterated_value
from corerl.risk.static_cvar import static
from corerl.training.offline_to_online import Online
from corerl.training.preprocessing import Preprocess

SEEDS = (0, 1)


def counts(log: list[tuple[str, tuple]]) -> Counter[str]:
    return Counter(name for name, _ in log)


class Watched(tiny.Short):
    """Keeps who was evaluated last, and when there was somebody first."""

    def evaluate(self, step, act, also=None) -> None:
        self.player, self.first = act, getattr(self, "first", step)


@pytest.mark.parametrize(("module", "kind"), [(arsq, arsq.ARSQ), (cqn, cqn.CQN)])
def test_updates_for_each_step_of_the_environment_begin_with_it(module, kind, calls):
    """20 updates on the data, then three for each of 40 steps."""
    log = calls(kind, "update")
    name = module.__name__.rpartition(".")[2]
    own = {"phase": "both", "utd": 3, "online": Online(pretrain_steps=20)}
    tiny.Short(tiny.settings(name, **own), SEEDS[:1])
    assert counts(log)["update"] == 20 + 3 * 40


def test_cql_clones_for_as_many_updates_as_it_is_told(calls):
    log = calls(cql_official.OfficialCQL, "warm_start update")
    tiny.Short(tiny.settings("cql_official", bc_steps=12), SEEDS[:1])
    assert counts(log) == {"warm_start": 12, "update": 48}


def test_cpl_clones_for_as_many_updates_as_it_is_told():
    run = tiny.Short(tiny.settings("cpl", bc_steps=12), SEEDS[:1])
    assert ["cpl_loss" in metrics for metrics in run.metrics] == [False] * 12 + [True] * 48


@pytest.mark.parametrize(("name", "alike"), [("cpl", False), ("ipl", True)])
def test_segments_are_cropped_as_the_authors_do(name, alike):
    """IPL's all alike, CPL's each by itself; four steps of each."""
    pairs = tiny.Short(tiny.settings(name, crop=4), SEEDS, updates=1).parts["pairs"]
    assert pairs.sample().actions.shape[:4] == (2, 6, 2, 4)
    assert pairs._offsets.next().shape == ((2, 1, 1) if alike else (2, 6, 2))


def test_targets_are_copied_when_it_is_time(calls):
    """Every 8th of 60 steps; deep CVaR's once more at the end, where a stock is chosen for play."""
    log = calls(cql_discrete.DiscreteCQL, "copy_target")
    tiny.Short(tiny.settings("cql_discrete"), SEEDS[:1])
    assert counts(log)["copy_target"] == 7
    log = calls(bcq_discrete.DiscreteBCQ, "move_target")
    tiny.Short(tiny.settings("bcq_discrete"), SEEDS[:1])
    assert counts(log)["move_target"] == 7
    calls(cvar.CVaR, "first_stock copy_target")
    log.clear()
    tiny.Short(tiny.settings("cvar"), SEEDS[:1])
    assert counts(log) == {"copy_target": 8, "first_stock": 8}


def test_a_race_at_the_end_has_the_last_word_on_the_first_stock(monkeypatch):
    raced, best = [], torch.tensor([3.0, -4.0])
    monkeypatch.setattr(cvar, "raced", lambda *args: raced.append(args) or best)
    run = tiny.Short(tiny.settings("cvar", race=1), SEEDS)
    assert len(raced) == 1 and torch.equal(run.parts["stocks"].first, best)


def test_ranked_segments_show_normalised_states():
    cfg = tiny.settings("cpl_ranked", data=Preprocess(normalize_states=True))
    run = tiny.Short(cfg, SEEDS, updates=1)
    first = run.parts["buffer"].take(torch.zeros(1, 1).long()).observations[0, 0, 0]
    raw = torch.from_numpy(run.dataset().observations[0])
    torch.testing.assert_close(first, run.parts["agent"].normalizer(raw))
    assert not torch.allclose(first, raw)
    every = run.parts["agent"].normalizer(torch.from_numpy(run.dataset().observations))
    assert torch.isin(run.parts["pairs"].sample().observations, every).all()


def test_segments_are_ranked_by_what_a_teacher_judges(monkeypatch):
    """Where every step counts 1, by their steps."""
    monkeypatch.setattr(teachers, "worth", lambda dataset, _: np.ones(len(dataset)))
    cfg = tiny.settings("cpl_ranked", ranked_by="teacher")
    buffer = tiny.Short(cfg, SEEDS, updates=1).parts["buffer"]
    steps = buffer.take(torch.arange(len(buffer))[None]).valid.sum(-1)
    assert torch.equal(buffer.scores, steps.expand(2, -1))


def test_the_worst_learned_return_can_be_taken_from_every_episode():
    run = tiny.Short(tiny.settings("pref_transformer", spread_worst=True), SEEDS)
    returns = episode_returns(run.parts["buffer"].rewards, rows_of(run.dataset()).episode_ends)
    torch.testing.assert_close(returns.amin(1), torch.zeros(2), atol=0.1, rtol=0)
    torch.testing.assert_close(returns.amax(1), torch.full((2,), 1000.0), atol=0.1, rtol=0)


@pytest.mark.parametrize("normalised", [True, False])
def test_dtr_asks_for_the_best_return_under_its_own_rewards(normalised):
    run = tiny.Short(tiny.settings("dtr", ensemble_normalization=normalised), SEEDS)
    buffer, agent = run.parts["buffer"], run.parts["agent"]
    returns = buffer.episode_returns()
    assert agent.best_return().tolist() == returns.amax(1).tolist() != returns.amin(1).tolist()
    means = buffer.state_dict()["rewards"].mean(1).abs()
    assert (means < 1e-3).all() if normalised else (means > 1e-3).all()


def test_dtrs_windows_and_comparisons_are_as_its_settings_have_them():
    own = {"clip_actions": 0.3, "return_scale": 4.0, "max_timestep": 50}
    parts = tiny.Short(tiny.settings("dtr", **own), SEEDS).parts
    buffer, pairs = parts["buffer"], parts["pairs"]
    windows = buffer.windows(torch.arange(200).expand(2, -1))  # the first episode
    for actions in (windows.actions, pairs.sample().actions):
        assert actions.abs().max() == pytest.approx(0.3)
    assert windows.timesteps.max() == 49
    first = windows.returns_to_go[:, 0, -windows.valid[0, 0].long().sum()]
    torch.testing.assert_close(first * 4, buffer.episode_returns()[:, 0])


def test_dtrs_policy_is_played_once_there_is_one_and_q_counts_in_full_at_the_end(calls):
    """14 of 60 updates are of the reward."""
    log = calls(dtr.DTR, "policy_loss")
    assert Watched(tiny.settings("dtr"), SEEDS[:1]).first == 15
    progress = [float(args[3]) for _, args in log]
    assert progress == pytest.approx([k / 46 for k in range(46)])


@pytest.mark.parametrize(("sources", "heads"), [("all", 2), ("total", 1)])
def test_hra_has_a_head_for_each_source_or_one(sources, heads):
    run = tiny.Short(tiny.settings("hra", sources=sources), SEEDS[:1], updates=1)
    assert run.parts["agent"].heads(torch.zeros(1, 1, 50)).shape[-1] == heads


def test_a_policy_for_risk_is_evaluated_without_its_noise():
    cfg = tiny.settings("cvar_pg", v_std=1.0)
    player = Watched(replace(cfg, steps=1), SEEDS).player
    player.begin(2, 3)
    assert torch.equal(player.v, player.v[:, :1].expand(2, 3))
    actions = player(torch.zeros(2, 3, 2))
    torch.testing.assert_close(actions, actions[:, :1].expand_as(actions))


def test_games_are_evaluated_with_their_own_share_of_chance():
    cfg = tiny.settings("qr_dqn")
    data = replace(cfg.algo.data, epsilon=0.1, eval_epsilon=0.3)
    cfg = replace(cfg, algo=replace(cfg.algo, data=data), steps=2)
    assert Watched(cfg, SEEDS).player._epsilon == 0.3


READ_RAW = (
    "arsq",
    "awac",
    "bc",
    "cal_ql",
    "codac",
    "cpl",
    "cpl_ranked",
    "cql",
    "cqn",
    "cvar_offline",
)


@pytest.mark.parametrize("name", [*READ_RAW, "edac", "ipl", "iql"])
def test_policies_normalise_what_they_see(name):
    """With mean 1 and deviation 2, they act at x as at (x - 1) / 2 without."""
    agent = tiny.Short(tiny.settings(name), [0], updates=1).parts["agent"]
    networks = (part for part in vars(agent).values() if isinstance(part, torch.nn.Module))
    scramble(*networks)
    rng = torch.Generator().manual_seed(0)
    raw, noise, uniforms = (torch.randn(1, 64, n, generator=rng) for n in (3, 1, 4))
    uniforms = torch.special.ndtr(uniforms)[..., : getattr(agent, "choices", 1)]
    more = {"arsq": [uniforms], "cqn": [noise, uniforms]}.get(name, [noise])

    def actions(observations):
        if name == "cvar_offline":
            return [agent.act(observations, torch.zeros(1, 64))]
        found = [agent.act(observations)]
        return found + ([agent.explore(observations, *more)] if hasattr(agent, "explore") else [])

    agent.normalizer = Normalizer.of([1.0] * 3, [2.0] * 3)
    found = actions(raw)
    agent.normalizer = Normalizer.of([0.0] * 3, [1.0] * 3)
    for mine, same, other in zip(found, actions((raw - 1) / 2), actions(raw), strict=True):
        torch.testing.assert_close(mine, same)
        assert (mine - other).abs().max() > 0.01


@pytest.mark.parametrize(
    ("algo", "task", "optimum", "value"),
    [
        (
            *(ela.Config(tau=0.4), "risk/low-rank", static),
            lambda mdp, learner: return_law(mdp, learner.act)[0].cvar(0.4),
        ),
        (
            *(icvar.Config(tau=0.4), "risk/linear-mixture", iterated),
            lambda mdp, learner: iterated_value(mdp, learner.table, 0.4),
        ),
    ],
    ids=["ela", "icvar"],
)
def test_what_is_lost_is_measured_at_the_level_that_is_learned(algo, task, optimum, value):
    run = tiny.Short(Config(algo=algo, task=task, steps=2), SEEDS)
    mdp = run.task.make_env().unwrapped.mdp
    learners = run.parts["agent"].learners
    lost = [optimum(mdp, 0.4).value - value(mdp, learner) for learner in learners]
    assert run.metrics[-1]["suboptimality"].tolist() == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize(
    ("algo", "task"),
    [
        (ela.Config(), "risk/low-rank"),
        (icvar.Config(bonus_scale=0.0), "risk/linear-mixture"),
        (icvar.Config(kind="general"), "risk/linear-mixture"),
    ],
    ids=["ela", "linear", "general"],
)
def test_what_was_planned_last_is_what_is_evaluated(algo, task):
    run = Watched(Config(algo=algo, task=task, steps=4), SEEDS)
    states = run.task.make_env().unwrapped.mdp.sizes[0]
    planned = [
        [l.act(0, s, 0.0) if algo.name == "ela" else l.table[0, s] for s in range(states)]
        for l in run.parts["agent"].learners
    ]
    run.player.begin(len(SEEDS), states)
    played = run.player(torch.eye(states).expand(len(SEEDS), -1, -1))
    assert played.tolist() == planned and played.any()
