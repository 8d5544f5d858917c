"""configs/*.yaml, composed as for a run, against the reference tables and a few numbers from papers.

Beside the checkout, `shared/reference/hparams/` holds every key of CORL's files and ReBRAC's three
versions of its coefficients; those tests skip where it is absent, the spot checks run everywhere.
"""

import csv
from collections import defaultdict

import pytest
from omegaconf import OmegaConf
from small import cell

from corerl.algos import bc, iql, rebrac, td3_bc
from corerl.config import Config
from corerl.launch.train import typed


def compose(algo, dataset: str, *overrides: str, table: str | None = None) -> Config:
    cfg = OmegaConf.structured(Config(algo=algo, task=f"d4rl/{dataset}", table=table))
    cfg.merge_with_dotlist(list(overrides))
    return typed(cfg, list(overrides))


def read(shared, name: str) -> list[dict[str, str]]:
    with open(shared / "reference" / "hparams" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def corl(shared, algorithm: str) -> dict[str, dict[str, str]]:
    """dataset -> {key: value} of CORL's files; values are YAML text."""
    files: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read(shared, "corl_offline.csv"):
        if row["algorithm"] == algorithm:
            files[row["dataset"]][row["param"]] = row["value"]
    assert len(files) >= 39
    return files


IGNORED = {"buffer_size", "expl_noise", "max_traj_len"}  # without effect, or CORL's own plumbing


def check(dataset: str, theirs: dict[str, str], ours: dict[str, object]) -> None:
    """Every key of the file is known here, and equal."""
    assert theirs.keys() - IGNORED == ours.keys(), dataset
    for key, value in ours.items():
        text = theirs[key]
        expected = text == "true" if text in ("true", "false") else float(text)
        assert value == expected, f"{dataset}: {key} is {value}, in the reference {text}"


def is_antmaze(cfg: Config) -> bool:
    return cfg.task.startswith("d4rl/antmaze")


@pytest.mark.parametrize(("algorithm", "best"), [("bc", 1.0), ("bc_10", 0.1)])
def test_bc_equals_corl(shared, algorithm, best):
    for dataset, theirs in corl(shared, algorithm).items():
        cfg = compose(bc.Config(), dataset, f"algo.best={best}")
        theirs.pop("discount")  # ranks episodes: see the next test; at best=1 it has no effect
        ours = {
            "batch_size": cfg.algo.batch_size,
            "eval_freq": cfg.eval.every,
            "frac": cfg.algo.best,
            "max_timesteps": cfg.steps,
            "n_episodes": cfg.eval.episodes,
            "normalize": cfg.algo.data.normalize_states,
        }
        check(dataset, theirs, ours)


def test_ten_percent_bc_ranks_episodes_as_the_runs_of_corls_table():
    discounted = (
        "hopper-medium-v2",
        "walker2d-medium-v2",
        "halfcheetah-medium-v2",
        "maze2d-umaze-v1",
    )
    for dataset in (*discounted, "antmaze-umaze-v2", "pen-human-v1"):
        cfg = cell("bc_10", f"d4rl/{dataset}")
        assert cfg.algo.best_discount == (0.99 if dataset in discounted else 1.0), dataset


def test_td3_bc_equals_corl_but_for_states_on_antmaze(shared):
    for dataset, theirs in corl(shared, "td3_bc").items():
        cfg = compose(td3_bc.Config(), dataset)
        algo, data = cfg.algo, cfg.algo.data
        assert data.reward_shift == (-1 if is_antmaze(cfg) else 0)
        assert (data.return_range, data.reward_scale) == (False, 1)
        ours = {
            "alpha": algo.alpha,
            "batch_size": algo.batch_size,
            "discount": algo.discount,
            "eval_freq": cfg.eval.every,
            "max_timesteps": cfg.steps,
            "n_episodes": cfg.eval.episodes,
            "noise_clip": algo.noise_clip,
            "normalize": data.normalize_states != is_antmaze(cfg),  # difference 3 of td3_bc.py
            "normalize_reward": data.reward_shift != 0,
            "policy_freq": algo.policy_delay,
            "policy_noise": algo.policy_noise,
            "tau": algo.polyak,
        }
        check(dataset, theirs, ours)


def test_iql_with_its_table_equals_corl(shared):
    for dataset, theirs in corl(shared, "iql").items():
        cfg = compose(iql.Config(), dataset, table="iql_corl")
        algo, data = cfg.algo, cfg.algo.data
        assert (algo.order, algo.critic_loss, algo.init) == ("joint", "mean", "torch")
        assert (algo.log_std_min, algo.log_std_max) == (-20, 2)
        assert (data.clip_actions, data.reward_scale, algo.cosine) == (1, 1, True)
        assert (algo.max_weight, algo.dropout) == (100, 0)
        scaled = theirs["normalize_reward"] == "true"
        assert data.reward_shift == (-1 if scaled and is_antmaze(cfg) else 0)
        assert data.return_range == (scaled and not is_antmaze(cfg))
        theirs.pop("actor_dropout", None)  # not applied when CORL's table was made
        ours = {
            "actor_lr": algo.lr,
            "batch_size": algo.batch_size,
            "beta": algo.beta,
            "discount": algo.discount,
            "eval_freq": cfg.eval.every,
            "iql_deterministic": algo.policy == "deterministic",
            "iql_tau": algo.expectile,
            "max_timesteps": cfg.steps,
            "n_episodes": cfg.eval.episodes,
            "normalize": data.normalize_states,
            "normalize_reward": data.return_range or data.reward_shift != 0,
            "qf_lr": algo.lr,
            "tau": algo.polyak,
            "vf_lr": algo.lr,
        }
        check(dataset, theirs, ours)


def test_rebrac_has_the_coefficients_behind_the_published_scores(shared):
    """Evaluated where known, but for the one set whose evaluated run is not the published one."""
    rows = read(shared, "rebrac.csv")
    assert len(rows) == 39
    for row in rows:
        source = next(s for s in ("evaluated", "paper", "corl") if row[f"{s}_actor"])
        if row["dataset"] == "walker2d-medium-replay-v2":
            source = "paper"
        cfg = compose(rebrac.Config(), row["dataset"])
        algo, data = cfg.algo, cfg.algo.data
        expected = {
            "actor_bc_coef": row[f"{source}_actor"],
            "critic_bc_coef": row[f"{source}_critic"],
            "actor_lr": row["actor_lr"],
            "critic_lr": row["critic_lr"],
            "batch_size": row["batch"],
            "discount": row["gamma"],
        }
        for key, value in expected.items():
            assert getattr(algo, key) == float(value), f"{row['dataset']}: {key}"
        assert data.reward_scale == (100 if row["normalize_reward"] == "true" else 1)
        assert (data.reward_shift, data.return_range, data.normalize_states) == (0, False, False)


def test_rebrac_with_corls_table_has_their_coefficients(shared):
    """Also where no sweep has it: two of the four rows that differ are of random and expert sets."""
    for row in read(shared, "rebrac.csv"):
        algo = compose(rebrac.Config(), row["dataset"], table="rebrac_corl").algo
        theirs = float(row["corl_actor"]), float(row["corl_critic"])
        assert (algo.actor_bc_coef, algo.critic_bc_coef) == theirs, row["dataset"]


def test_rebrac_equals_corl_but_for_four_hopper_sets(shared):
    other = {f"hopper-{kind}-v2" for kind in ("expert", "medium", "medium-expert", "random")}
    for dataset, theirs in corl(shared, "rebrac").items():
        cfg = compose(rebrac.Config(), dataset)
        algo = cfg.algo
        if dataset in other:
            assert float(theirs.pop("critic_bc_coef")) != algo.critic_bc_coef
        ours = {
            "actor_bc_coef": algo.actor_bc_coef,
            "actor_learning_rate": algo.actor_lr,
            "actor_ln": False,
            "actor_n_hiddens": algo.hidden_layers,
            "batch_size": algo.batch_size,
            "critic_bc_coef": algo.critic_bc_coef,
            "critic_learning_rate": algo.critic_lr,
            "critic_ln": algo.critic_layer_norm,
            "critic_n_hiddens": algo.hidden_layers,
            "eval_episodes": cfg.eval.episodes,
            "eval_every": cfg.eval.every / 1000,  # in epochs of num_updates_on_epoch
            "gamma": algo.discount,
            "hidden_dim": algo.hidden_width,
            "noise_clip": algo.noise_clip,
            "normalize_q": algo.normalize_q,
            "normalize_reward": algo.data.reward_scale == 100,
            "normalize_states": algo.data.normalize_states,
            "num_epochs": cfg.steps / 1000,
            "num_updates_on_epoch": 1000,
            "policy_freq": algo.policy_delay,
            "policy_noise": algo.policy_noise,
            "tau": algo.polyak,
        }
        if dataset in other:
            del ours["critic_bc_coef"]
        check(dataset, theirs, ours)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [  # expectile, beta, dropout, return range, shift, evaluation interval and episodes
        ("halfcheetah-medium-v2", (0.7, 3, 0, True, 0, 5_000, 10)),
        ("hopper-medium-expert-v2", (0.7, 3, 0, True, 0, 5_000, 10)),
        ("walker2d-medium-replay-v2", (0.7, 3, 0, True, 0, 5_000, 10)),
        ("antmaze-large-play-v0", (0.9, 10, 0, False, -1, 100_000, 100)),
        ("antmaze-umaze-v2", (0.9, 10, 0, False, -1, 100_000, 100)),
        ("pen-human-v1", (0.7, 0.5, 0.1, False, 0, 5_000, 10)),
        ("relocate-expert-v1", (0.7, 0.5, 0.1, False, 0, 5_000, 10)),
        ("kitchen-mixed-v0", (0.7, 0.5, 0.1, False, 0, 5_000, 10)),
    ],
)
def test_iql_by_default_is_the_authors(dataset, expected):
    """Kostrikov et al. 2022, appendix B, and the authors' configuration files."""
    cfg = compose(iql.Config(), dataset)
    algo, data = cfg.algo, cfg.algo.data
    found = (algo.expectile, algo.beta, algo.dropout, data.return_range, data.reward_shift)
    assert (*found, cfg.eval.every, cfg.eval.episodes) == expected
    assert (algo.order, algo.critic_loss, algo.init) == ("value_first", "sum", "orthogonal")
    assert (algo.policy, algo.polyak, algo.lr, algo.discount) == ("gaussian", 0.005, 3e-4, 0.99)
    assert (data.normalize_states, data.clip_actions) == (False, 1 - 1e-5)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [  # beta_1, beta_2, actor lr, critic lr, batch, discount, reward scale
        ("halfcheetah-medium-expert-v2", (0.01, 0.1, 1e-3, 1e-3, 1024, 0.99, 1)),
        ("hopper-medium-replay-v2", (0.05, 0.5, 1e-3, 1e-3, 1024, 0.99, 1)),
        ("antmaze-medium-play-v2", (0.001, 0.0005, 3e-4, 5e-5, 256, 0.999, 100)),
        ("pen-cloned-v1", (0.05, 0.5, 3e-4, 3e-4, 256, 0.99, 1)),
    ],
)
def test_rebrac_spot_checks(dataset, expected):
    """Tarasov et al. 2023; "medium-expert" must not pick up the row of "medium"."""
    algo = compose(rebrac.Config(), dataset).algo
    found = (algo.actor_bc_coef, algo.critic_bc_coef, algo.actor_lr, algo.critic_lr)
    assert (*found, algo.batch_size, algo.discount, algo.data.reward_scale) == expected


def test_td3_bc_spot_checks():
    """Fujimoto and Gu 2021: alpha 2.5 everywhere, normalised states but for AntMaze."""
    gym = compose(td3_bc.Config(), "hopper-medium-v2").algo
    antmaze = compose(td3_bc.Config(), "antmaze-umaze-v2").algo
    assert (gym.alpha, gym.data.normalize_states, gym.data.reward_shift) == (2.5, True, 0)
    assert (antmaze.alpha, antmaze.data.normalize_states) == (2.5, False)


def test_the_command_line_has_the_last_word():
    cfg = compose(iql.Config(), "pen-human-v1", "algo.dropout=0.2", "eval.episodes=3")
    assert (cfg.algo.dropout, cfg.algo.beta, cfg.eval.episodes) == (0.2, 0.5, 3)
