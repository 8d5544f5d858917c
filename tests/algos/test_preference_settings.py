"""Settings of the published tables on comparisons, against what is known of the authors' configurations."""

from functools import cache

import pytest
from small import cell
from wording import refused

from corerl.config import Config, seed_list
from corerl.launch.composition import cells

TABLES = {  # cells, seeds, {(updates, between evaluations, episodes)}
    "ipl_gym": (2 * 4, [1, 2, 3, 4, 5], {(1_000_000, 5_000, 10)}),
    "ipl_metaworld": (2 * 4 * 5, [1, 2, 3, 4, 5], {(200_000, 2_500, 20)}),
    "pref_transformer_gym": (4, [0, 1, 2, 3, 4], {(1_020_000, 5_000, 10), (1_010_000, 5_000, 10)}),
    "pref_transformer_antmaze": (4, [0, 1, 2, 3, 4], {(1_040_000, 100_000, 100)}),
    "dtr_gym": (2 * 9, [0, 1, 2, 3, 4], {(51_600, 5_000, 10), (1_001_600, 5_000, 10)}),
    "dtr_adroit": (2 * 6, [0, 1, 2, 3, 4], {(53_200, 5_000, 10), (1_003_200, 5_000, 10)}),
}

REWARDS = ("return_range=True", "reward_scale=100.0", "reward_shift=-1.0")


@cache
def composed(name: str) -> list[Config]:
    return cells([f"sweep={name}"])


@pytest.mark.parametrize("name", TABLES)
def test_a_sweep_is_its_table(name):
    count, seeds, protocols = TABLES[name]
    jobs = composed(name)
    assert len(jobs) == count
    assert all(seed_list(job.seeds) == seeds for job in jobs)
    assert {(job.steps, job.eval.every, job.eval.episodes) for job in jobs} == protocols


def test_labels_of_different_people_never_share_a_sweep():
    for name in TABLES:
        sources = {job.algo.preferences.source for job in composed(name)}
        expected = "uni_rlhf" if name.startswith("dtr") else "pt"
        assert sources == {"teacher" if name == "ipl_metaworld" else expected}


def test_ipl_on_gym_has_the_authors_settings():
    algo = cell("ipl", "d4rl/hopper-medium-replay-v2").algo
    assert (algo.form, algo.chi2, algo.expectile, algo.replay_weight) == ("iql", 0.5, 0.7, 0.5)
    assert algo.temperature == pytest.approx(0.3333, abs=1e-4)
    assert algo.target_clipping and algo.replay
    assert (algo.pairs, algo.crop, algo.batch_size) == (8, 64, 256)
    assert (algo.hidden_layers, algo.hidden_width, algo.critics, algo.lr) == (2, 256, 2, 3e-4)


def test_ipl_on_metaworld_has_the_authors_settings():
    algo = cell("ipl", "corerl/metaworld/drawer-open-v3").algo
    assert (algo.chi2, algo.expectile, algo.pairs, algo.crop) == (3.0, 0.75, 16, 16)
    assert not algo.target_clipping and not algo.replay and algo.hidden_layers == 3
    assert (algo.preferences.length, algo.preferences.discount) == (25, 0.99)
    awac = cell("ipl_awac", "corerl/metaworld/drawer-open-v3").algo
    assert (awac.form, awac.chi2, awac.critics, awac.crop) == ("awac", 4.0, 1, 16)
    mr = cell("pref_iql", "corerl/metaworld/drawer-open-v3").algo
    assert (mr.reward.steps, mr.reward.batch_size, mr.reward.hidden_layers) == (20_000, 16, 3)
    assert mr.expectile == 0.75 and mr.beta == 3.0 and not mr.replay


def test_pb_iql_is_corls_iql_on_an_ensemble():
    algo = cell("pref_iql_uni_rlhf", "d4rl/hopper-medium-expert-v2").algo
    assert (algo.expectile, algo.beta, algo.order, algo.init) == (0.5, 6.0, "joint", "torch")
    assert (algo.reward.members, algo.reward.bounded, algo.reward.stop_accuracy) == (3, True, 0.968)
    assert algo.reward_first and algo.crop is None and algo.data.normalize_states
    assert cell("pref_iql_uni_rlhf", "d4rl/hopper-medium-v2").algo.policy == "deterministic"
    assert cell("pref_iql_uni_rlhf", "d4rl/walker2d-medium-v2").algo.policy == "gaussian"


def test_hindsight_prior_has_wiserls_settings():
    job = cell("hindsight_prior_iql", "d4rl/hopper-medium-replay-v2")
    reward, world = job.algo.reward, job.algo.world
    assert (reward.prior, reward.steps, reward.members, reward.batch_size) == (1_000, 50_000, 1, 8)
    assert reward.sigmoid and not reward.bounded and reward.hidden_layers == 2
    assert (world.steps, world.batch_size, job.algo.crop) == (10_000, 64, None)
    assert job.policy_steps() == 1_000_000 and job.algo.preferences.source == "pt"
    job = cell("hindsight_prior_iql", "corerl/metaworld/drawer-open-v3")
    assert not job.algo.reward.sigmoid and job.policy_steps() == 500_000 and job.algo.replay
    assert (job.algo.reward.batch_size, job.algo.world.batch_size) == (16, 16)


def test_dtr_has_its_readmes_settings():
    job = cell("dtr", "d4rl/hopper-medium-replay-v2")
    algo = job.algo
    assert (algo.eta, algo.max_grad_norm, algo.context, algo.batch_size) == (3.0, 9.0, 20, 256)
    assert job.steps - algo.reward.steps == 50_000
    assert (algo.reward.members, algo.reward.batch_size, algo.reward.lr) == (3, 64, 3e-4)
    assert algo.reward.steps == 50 * 32  # epochs of 2,000 comparisons in batches of 64
    assert algo.ensemble_normalization and algo.select == "softmax"


def test_pref_transformer_has_the_authors_settings():
    gym = cell("pref_transformer", "d4rl/walker2d-medium-expert-v2")
    maze = cell("pref_transformer", "d4rl/antmaze-large-play-v2")
    for job, steps in ((gym, 10_000), (maze, 40_000)):
        assert job.algo.reward.steps == steps and job.steps - steps == 1_000_000
        assert (job.algo.reward.layers, job.algo.reward.heads, job.algo.reward.width) == (1, 4, 256)
    assert (gym.algo.beta, gym.algo.expectile, gym.algo.data.reward_shift) == (3.0, 0.7, 0.5)
    assert (maze.algo.beta, maze.algo.expectile, maze.algo.data.reward_shift) == (10.0, 0.9, -1.0)
    assert maze.algo.spread_worst and not gym.algo.spread_worst


def test_cpls_variants():
    task = "corerl/metaworld/button-press-v3"  # not embedded: it has no budget of minutes
    plain, bc, kl = (cell(name, task).algo for name in ("cpl", "cpl_bc", "cpl_kl"))
    assert (plain.alpha, plain.bias, plain.bc_weight, plain.reference) == (0.1, 0.5, 0.0, False)
    assert (bc.bias, bc.bc_weight) == (1.0, 1.0)
    assert (kl.alpha, kl.bias, kl.reference, kl.lr_factor) == (0.2, 0.75, True, 0.1)
    assert (plain.pairs, plain.hidden_width, plain.dropout, plain.lr) == (96, 512, 0.25, 1e-4)
    assert plain.bc_steps == 200_000 and cell("cpl", task).steps == 500_000


def test_cpl_on_d4rl_has_its_authors_settings():
    job = cell("cpl_ranked", "d4rl/walker2d-medium-replay-v2")
    algo = job.algo
    assert (job.steps - algo.score.steps, job.eval.every, job.eval.episodes) == (10**6, 5_000, 10)
    assert (algo.bias, algo.temperature, algo.batch_size, algo.length) == (0.7, 0.1, 256, 100)
    assert (algo.lr, algo.hidden_layers, algo.hidden_width, algo.dropout) == (3e-4, 2, 256, 0.25)
    assert algo.ranked_by == "model" and algo.preferences.source == "dppo"
    score = algo.score
    assert (score.steps, score.batch_size, score.lr, score.warmup) == (20_000, 256, 1e-3, 0.1)
    assert (score.layers, score.heads, score.width, score.dropout) == (1, 4, 256, 0.1)
    few = cell("cpl_ranked", "d4rl/walker2d-medium-expert-v2")
    assert (few.steps, few.algo.score.steps) == (1_010_000, 10_000)
    taught = cell("cpl_ranked", "corerl/pendulum").algo
    assert taught.preferences.source == "teacher"
    assert taught.preferences.length == taught.length == 100  # a model of shorter ones scores none


@pytest.mark.parametrize(
    ("algo", "wrong"),
    [
        *((algo, setting) for algo in ("ipl", "cpl", "cpl_ranked") for setting in REWARDS),
        ("cpl", "end_reward=1.0"),
        ("cpl", "weighting=return"),
    ],
)
def test_what_would_change_nothing_is_refused(algo, wrong):
    with refused(f"algo.data.{wrong}"):
        cells([f"algo={algo}", "task=corerl/pendulum", f"algo.data.{wrong}"])
