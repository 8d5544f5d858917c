"""Settings composed as for a run against every key of CORL's files and ReBRAC's three versions of its own.

They are in `shared/reference/hparams/` beside the checkout. The tests skip where it is absent.
"""

import csv
import importlib
from collections import defaultdict
from operator import attrgetter
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from corerl.config import Config
from corerl.launch import settings_tables
from corerl.launch.composition import cells
from corerl.launch.train import typed

PLUMBING = {"buffer_size", "deterministic_torch", "max_action", "episode_len"}
PLUMBING |= {"expl_noise", "max_traj_len"}  # without effect
FIRST = {
    "batch_size": "algo.batch_size",
    "eval_freq": "eval.every",
    "max_timesteps": "steps",
    "n_episodes": "eval.episodes",
    "normalize": "algo.data.normalize_states",
}
"""Ours of the keys that the files of BC, TD3+BC, CQL and IQL share."""
ENSEMBLES = {
    "actor_learning_rate": "algo.policy_lr",
    "alpha_learning_rate": "algo.alpha_lr",
    "batch_size": "algo.batch_size",
    "critic_learning_rate": "algo.critic_lr",
    "eval_episodes": "eval.episodes",
    "gamma": "algo.discount",
    "hidden_dim": "algo.hidden_width",
    "num_critics": "algo.critics",
    "tau": "algo.polyak",
}


def read(shared, name: str) -> list[dict[str, str]]:
    path = shared / "reference" / "hparams" / name
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def corl(shared, algorithm: str, count: int) -> dict[str, dict[str, Any]]:
    """dataset -> {key: value} of CORL's files."""
    files: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in read(shared, "corl_offline.csv"):
        if row["algorithm"] == algorithm and row["param"] not in PLUMBING:
            files[row["dataset"]][row["param"]] = value_of(row["value"])
    assert len(files) == count
    return files


def value_of(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text.replace(".inf", "inf"))
    except ValueError:
        parts = yaml.safe_load(text)
        return [float(x) for x in (parts.split() if isinstance(parts, str) else parts)]


def composed(table: str, dataset: str) -> Config:
    name = settings_tables.variants().get(table, table)
    algo = importlib.import_module(f"corerl.algos.{name}").Config()
    cfg = Config(algo=algo, task=f"d4rl/{dataset}", table=None if table == name else table)
    return typed(OmegaConf.structured(cfg), [])


def ours(cfg: Config, keys: dict[str, str], **derived: Any) -> dict[str, Any]:
    """Every key of a file, with our value: `keys` are the names of ours."""
    return {key: attrgetter(name)(cfg) for key, name in keys.items()} | derived


def in_thousands(cfg: Config) -> dict[str, float]:
    counted = {"eval_every": cfg.eval.every / 1000, "num_epochs": cfg.steps / 1000}
    return counted | {"num_updates_on_epoch": 1000}


def is_antmaze(dataset: str) -> bool:
    return dataset.startswith("antmaze")


@pytest.mark.parametrize("algorithm", ["bc", "bc_10"])
def test_bc(shared, algorithm):
    for dataset, theirs in corl(shared, algorithm, 42).items():
        theirs.pop("discount")  # ranks episodes: see bc_10 in authors_settings.txt; else no effect
        assert ours(composed(algorithm, dataset), FIRST | {"frac": "algo.best"}) == theirs


def test_td3_bc_but_for_states_on_antmaze(shared):
    keys = {name: f"algo.{name}" for name in ("alpha", "discount", "noise_clip", "policy_noise")}
    keys |= {"policy_freq": "algo.policy_delay", "tau": "algo.polyak"}
    for dataset, theirs in corl(shared, "td3_bc", 42).items():
        cfg = composed("td3_bc", dataset)
        data = cfg.algo.data
        assert data.reward_shift == (-1 if is_antmaze(dataset) else 0)
        assert (data.return_range, data.reward_scale) == (False, 1)
        normalized = data.normalize_states != is_antmaze(dataset)  # difference 3 of td3_bc.py
        found = ours(cfg, FIRST | keys, normalize_reward=data.reward_shift != 0)
        assert found | {"normalize": normalized} == theirs, dataset


def test_iql_with_its_table(shared):
    keys = {name: "algo.lr" for name in ("actor_lr", "qf_lr", "vf_lr")}
    keys |= {"beta": "algo.beta", "discount": "algo.discount", "iql_tau": "algo.expectile"}
    for dataset, theirs in corl(shared, "iql", 42).items():
        cfg = composed("iql_corl", dataset)
        algo, data = cfg.algo, cfg.algo.data
        assert (algo.order, algo.critic_loss, algo.init) == ("joint", "mean", "torch")
        assert (algo.log_std_min, algo.log_std_max) == (-20, 2)
        assert (data.clip_actions, data.reward_scale, algo.cosine) == (1, 1, True)
        assert (algo.max_weight, algo.dropout) == (100, 0)
        scaled = theirs["normalize_reward"]
        assert data.reward_shift == (-1 if scaled and is_antmaze(dataset) else 0)
        assert data.return_range == (scaled and not is_antmaze(dataset))
        theirs.pop("actor_dropout", None)  # not applied when CORL's table was made
        found = ours(
            cfg,
            FIRST | keys | {"tau": "algo.polyak"},
            iql_deterministic=algo.policy == "deterministic",
            normalize_reward=data.return_range or data.reward_shift != 0,
        )
        assert found == theirs, dataset


def test_cql(shared):
    keys = {
        "alpha_multiplier": "algo.alpha",
        "cql_alpha": "algo.weight",
        "cql_importance_sample": "algo.importance_sampling",
        "cql_n_actions": "algo.samples",
        "cql_temp": "algo.temperature",
        "discount": "algo.discount",
        "policy_lr": "algo.policy_lr",
        "q_n_hidden_layers": "algo.critic_layers",
        "qf_lr": "algo.critic_lr",
        "reward_bias": "algo.data.reward_shift",
        "reward_scale": "algo.data.reward_scale",
        "soft_target_update_rate": "algo.polyak",
        "use_automatic_entropy_tuning": "algo.tune_alpha",
    }
    for dataset, theirs in corl(shared, "cql", 42).items():
        cfg = composed("cql", dataset)
        algo, data = cfg.algo, cfg.algo.data
        found = ours(
            cfg,
            FIRST | keys,
            backup_entropy=False,  # cql_official has it and a warm start
            bc_steps=0,
            cql_clip_diff_max=float("inf") if algo.gap_max is None else algo.gap_max,
            cql_clip_diff_min=-float("inf") if algo.gap_min is None else algo.gap_min,
            cql_lagrange=algo.lagrange == "young_geng",
            cql_max_target_backup=algo.max_backup == "min_first",
            cql_target_action_gap=-1 if algo.lagrange == "off" else algo.threshold,
            normalize_reward=data.return_range or data.reward_scale != 1,
            orthogonal_init=algo.init == "corl",
            target_update_period=1,
        )
        assert found == theirs, dataset
        assert data.return_range == (theirs["normalize_reward"] and not is_antmaze(dataset))
        assert (algo.policy_layers, algo.hidden_width, algo.log_std_multiplier) == (3, 256, 1.0)


def test_awac(shared):
    keys = {
        "awac_lambda": "algo.temperature",
        "batch_size": "algo.batch_size",
        "eval_frequency": "eval.every",
        "gamma": "algo.discount",
        "hidden_dim": "algo.hidden_width",
        "learning_rate": "algo.lr",
        "n_test_episodes": "eval.episodes",
        "num_train_ops": "steps",
        "tau": "algo.polyak",
    }
    for dataset, theirs in corl(shared, "awac", 42).items():
        cfg = composed("awac", dataset)
        data = cfg.algo.data
        shifted = theirs.pop("normalize_reward", False)  # only in the AntMaze files
        assert data.reward_shift == (-1 if shifted else 0)
        assert ours(cfg, keys) == theirs, dataset
        assert (data.normalize_states, data.return_range, cfg.algo.hidden_layers) == (
            True,
            False,
            3,
        )


@pytest.mark.parametrize("algorithm", ["edac", "sac_n"])
def test_edac_and_sac_n(shared, algorithm):
    for dataset, theirs in corl(shared, algorithm, 30).items():
        cfg = composed(algorithm, dataset)
        data = cfg.algo.data
        theirs.setdefault("eta", 0)
        assert not theirs.pop("normalize_reward", False)
        assert not (data.return_range or data.reward_shift or data.normalize_states)
        assert ours(cfg, ENSEMBLES | {"eta": "algo.eta"}, **in_thousands(cfg)) == theirs, dataset
        assert (cfg.label == "SAC-N") == (algorithm == "sac_n")


def test_lb_sac(shared):
    for dataset, theirs in corl(shared, "lb-sac", 18).items():
        cfg = composed("lb_sac", dataset)
        algo = cfg.algo
        initial = {"edac_init": algo.init == "corl"} | in_thousands(cfg)
        keys = ENSEMBLES | {"critic_layernorm": "algo.critic_layer_norm"}
        assert ours(cfg, keys, **initial) == theirs, dataset
        assert (cfg.label, algo.eta, algo.hidden_layers) == ("LB-SAC", 0.0, 3)
        assert (algo.order, algo.init in ("lb_sac", "corl")) == ("alpha_actor_critic", True)


def test_dt_with_its_table(shared):
    keys = {name: "algo.dropout" for name in ("attention_dropout", "embedding_dropout")}
    keys |= {
        "batch_size": "algo.batch_size",
        "clip_grad": "algo.max_grad_norm",
        "embedding_dim": "algo.width",
        "eval_episodes": "eval.episodes",
        "eval_every": "eval.every",
        "learning_rate": "algo.lr",
        "num_heads": "algo.heads",
        "num_layers": "algo.layers",
        "residual_dropout": "algo.dropout",
        "seq_len": "algo.context",
        "target_returns": "algo.targets",
        "update_steps": "steps",
        "warmup_steps": "algo.warmup_steps",
        "weight_decay": "algo.weight_decay",
    }
    for dataset, theirs in corl(shared, "dt", 30).items():
        cfg = composed("dt_corl", dataset)
        if dataset.startswith("maze2d"):
            theirs["reward_scale"] = 0.001  # the runs of its table; 1 was written later
        found = ours(cfg, keys, betas=[0.9, 0.999], reward_scale=1 / cfg.algo.return_scale)
        assert found == theirs, dataset


def test_rebrac_but_for_four_hopper_sets(shared):
    other = {f"hopper-{kind}-v2" for kind in ("expert", "medium", "medium-expert", "random")}
    keys = {
        "actor_bc_coef": "algo.actor_bc_coef",
        "actor_learning_rate": "algo.actor_lr",
        "actor_n_hiddens": "algo.hidden_layers",
        "batch_size": "algo.batch_size",
        "critic_bc_coef": "algo.critic_bc_coef",
        "critic_learning_rate": "algo.critic_lr",
        "critic_ln": "algo.critic_layer_norm",
        "critic_n_hiddens": "algo.hidden_layers",
        "eval_episodes": "eval.episodes",
        "gamma": "algo.discount",
        "hidden_dim": "algo.hidden_width",
        "noise_clip": "algo.noise_clip",
        "normalize_q": "algo.normalize_q",
        "normalize_states": "algo.data.normalize_states",
        "policy_freq": "algo.policy_delay",
        "policy_noise": "algo.policy_noise",
        "tau": "algo.polyak",
    }
    for dataset, theirs in corl(shared, "rebrac", 39).items():
        cfg = composed("rebrac", dataset)
        scaled = cfg.algo.data.reward_scale == 100
        found = ours(cfg, keys, actor_ln=False, normalize_reward=scaled, **in_thousands(cfg))
        if dataset in other:
            assert theirs.pop("critic_bc_coef") != found.pop("critic_bc_coef")
        assert found == theirs, dataset


def test_rebrac_has_the_coefficients_behind_the_published_scores(shared):
    """Evaluated where known, but for the one set whose evaluated run is not the published one."""
    rows = read(shared, "rebrac.csv")
    assert len(rows) == 39
    for row in rows:
        source = next(s for s in ("evaluated", "paper", "corl") if row[f"{s}_actor"])
        if row["dataset"] == "walker2d-medium-replay-v2":
            source = "paper"
        algo = composed("rebrac", row["dataset"]).algo
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
        data = algo.data
        assert data.reward_scale == (100 if row["normalize_reward"] == "true" else 1)
        assert (data.reward_shift, data.return_range, data.normalize_states) == (0, False, False)


def test_rebrac_with_corls_table_has_their_coefficients(shared):
    """Also where no sweep has it: two of the four rows that differ are of random and expert sets."""
    for row in read(shared, "rebrac.csv"):
        algo = composed("rebrac_corl", row["dataset"]).algo
        theirs = float(row["corl_actor"]), float(row["corl_critic"])
        assert (algo.actor_bc_coef, algo.critic_bc_coef) == theirs, row["dataset"]


def test_the_command_line_has_the_last_word():
    words = ["algo=iql", "task=d4rl/pen-human-v1", "algo.dropout=0.2", "eval.episodes=3"]
    (cfg,) = cells(words)
    assert (cfg.algo.dropout, cfg.algo.beta, cfg.eval.episodes) == (0.2, 0.5, 3)
