"""The tables of CQL, DT, AWAC, EDAC, SAC-N and LB-SAC against every key of CORL's files."""

import csv
from collections import defaultdict

import pytest
import yaml
from omegaconf import OmegaConf

from corerl.algos import awac, cql, cql_official, dt, edac
from corerl.config import Config
from corerl.launch.train import typed

PLUMBING = {"buffer_size", "deterministic_torch", "max_action", "episode_len"}


def corl(shared, algorithm: str, count: int) -> dict[str, dict[str, object]]:
    """dataset -> {key: value} of CORL's files."""
    files: dict[str, dict[str, object]] = defaultdict(dict)
    with open(
        shared / "reference" / "hparams" / "corl_offline.csv", encoding="utf-8", newline=""
    ) as file:
        for row in csv.DictReader(file):
            if row["algorithm"] == algorithm and row["param"] not in PLUMBING:
                files[row["dataset"]][row["param"]] = value_of(row["value"])
    assert len(files) == count
    return files


def value_of(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text.replace(".inf", "inf"))
    except ValueError:
        parts = yaml.safe_load(text)
        return [float(x) for x in (parts.split() if isinstance(parts, str) else parts)]


def compose(algo, dataset: str, table: str | None = None) -> Config:
    cfg = OmegaConf.structured(Config(algo=algo, task=f"d4rl/{dataset}", table=table))
    return typed(cfg, [])


def bound(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def test_cql(shared):
    for dataset, theirs in corl(shared, "cql", 42).items():
        cfg = compose(cql.Config(), dataset)
        algo, data = cfg.algo, cfg.algo.data
        antmaze = dataset.startswith("antmaze")
        ours = {
            "alpha_multiplier": algo.alpha,
            "backup_entropy": False,  # cql_official has it and a warm start
            "batch_size": algo.batch_size,
            "bc_steps": 0,
            "cql_alpha": algo.weight,
            "cql_clip_diff_max": bound(algo.gap_max, float("inf")),
            "cql_clip_diff_min": bound(algo.gap_min, -float("inf")),
            "cql_importance_sample": algo.importance_sampling,
            "cql_lagrange": algo.lagrange == "young_geng",
            "cql_max_target_backup": algo.max_backup == "min_first",
            "cql_n_actions": algo.samples,
            "cql_target_action_gap": -1 if algo.lagrange == "off" else algo.threshold,
            "cql_temp": algo.temperature,
            "discount": algo.discount,
            "eval_freq": cfg.eval.every,
            "max_timesteps": cfg.steps,
            "n_episodes": cfg.eval.episodes,
            "normalize": data.normalize_states,
            "normalize_reward": data.return_range or data.reward_scale != 1,
            "orthogonal_init": algo.init == "corl",
            "policy_lr": algo.policy_lr,
            "q_n_hidden_layers": algo.critic_layers,
            "qf_lr": algo.critic_lr,
            "reward_bias": data.reward_shift,
            "reward_scale": data.reward_scale,
            "soft_target_update_rate": algo.polyak,
            "target_update_period": 1,
            "use_automatic_entropy_tuning": algo.tune_alpha,
        }
        assert ours == theirs, dataset
        assert data.return_range == (theirs["normalize_reward"] and not antmaze)
        assert (algo.policy_layers, algo.hidden_width, algo.log_std_multiplier) == (3, 256, 1.0)


def test_awac(shared):
    for dataset, theirs in corl(shared, "awac", 42).items():
        cfg = compose(awac.Config(), dataset)
        algo, data = cfg.algo, cfg.algo.data
        ours = {
            "awac_lambda": algo.temperature,
            "batch_size": algo.batch_size,
            "eval_frequency": cfg.eval.every,
            "gamma": algo.discount,
            "hidden_dim": algo.hidden_width,
            "learning_rate": algo.lr,
            "n_test_episodes": cfg.eval.episodes,
            "num_train_ops": cfg.steps,
            "tau": algo.polyak,
        }
        if "normalize_reward" in theirs:  # only in the AntMaze files; false in the code
            ours["normalize_reward"] = data.reward_shift == -1
        else:
            assert data.reward_shift == 0
        assert ours == theirs, dataset
        assert (data.normalize_states, data.return_range, algo.hidden_layers) == (True, False, 3)


@pytest.mark.parametrize(("algorithm", "table"), [("edac", None), ("sac_n", "sac_n")])
def test_edac_and_sac_n(shared, algorithm, table):
    for dataset, theirs in corl(shared, algorithm, 30).items():
        cfg = compose(edac.Config(), dataset, table)
        algo, data = cfg.algo, cfg.algo.data
        ours = {
            "actor_learning_rate": algo.policy_lr,
            "alpha_learning_rate": algo.alpha_lr,
            "batch_size": algo.batch_size,
            "critic_learning_rate": algo.critic_lr,
            "eta": algo.eta,
            "eval_episodes": cfg.eval.episodes,
            "eval_every": cfg.eval.every / 1000,
            "gamma": algo.discount,
            "hidden_dim": algo.hidden_width,
            "normalize_reward": data.return_range or data.reward_shift != 0,
            "num_critics": algo.critics,
            "num_epochs": cfg.steps / 1000,
            "num_updates_on_epoch": 1000,
            "tau": algo.polyak,
        }
        if algorithm == "sac_n":
            assert ours.pop("eta") == 0
            assert cfg.label == "SAC-N"
        theirs.pop("normalize_reward", None)
        assert ours.pop("normalize_reward") is False
        assert ours == theirs, dataset
        assert not data.normalize_states


def test_lb_sac(shared):
    for dataset, theirs in corl(shared, "lb-sac", 18).items():
        cfg = compose(edac.Config(), dataset, "lb_sac")
        algo = cfg.algo
        ours = {
            "actor_learning_rate": algo.policy_lr,
            "alpha_learning_rate": algo.alpha_lr,
            "batch_size": algo.batch_size,
            "critic_layernorm": algo.critic_layer_norm,
            "critic_learning_rate": algo.critic_lr,
            "edac_init": algo.init == "corl",
            "eval_episodes": cfg.eval.episodes,
            "eval_every": cfg.eval.every / 1000,
            "gamma": algo.discount,
            "hidden_dim": algo.hidden_width,
            "num_critics": algo.critics,
            "num_epochs": cfg.steps / 1000,
            "num_updates_on_epoch": 1000,
            "tau": algo.polyak,
        }
        assert ours == theirs, dataset
        assert (cfg.label, algo.eta, algo.hidden_layers) == ("LB-SAC", 0.0, 3)
        assert (algo.order, algo.init in ("lb_sac", "corl")) == ("alpha_actor_critic", True)


def test_dt_with_its_table(shared):
    for dataset, theirs in corl(shared, "dt", 30).items():
        cfg = compose(dt.Config(), dataset, "dt_corl")
        algo = cfg.algo
        if dataset.startswith("maze2d"):
            theirs["reward_scale"] = 0.001  # the runs of its table; 1 was written later
        ours = {
            "attention_dropout": algo.dropout,
            "batch_size": algo.batch_size,
            "betas": [0.9, 0.999],
            "clip_grad": algo.max_grad_norm,
            "embedding_dim": algo.width,
            "embedding_dropout": algo.dropout,
            "eval_episodes": cfg.eval.episodes,
            "eval_every": cfg.eval.every,
            "learning_rate": algo.lr,
            "num_heads": algo.heads,
            "num_layers": algo.layers,
            "residual_dropout": algo.dropout,
            "reward_scale": 1 / algo.return_scale,
            "seq_len": algo.context,
            "target_returns": algo.targets,
            "update_steps": cfg.steps,
            "warmup_steps": algo.warmup_steps,
            "weight_decay": algo.weight_decay,
        }
        assert ours == theirs, dataset


@pytest.mark.parametrize(
    ("dataset", "targets", "scale"),
    [
        ("hopper-medium-v2", [3600, 1800], 1000),
        ("halfcheetah-medium-expert-v2", [12000, 6000], 1000),
        ("walker2d-medium-replay-v2", [5000, 2500], 1000),
        ("maze2d-large-v1", [280, 140], 1000),
        ("pen-human-v1", [3100, 1550], 1),
    ],
)
def test_dt_by_default_is_the_authors(dataset, targets, scale):
    """Chen et al. 2021, appendix B: batch 64, lr 1e-4, K 20, 100k updates, 100 episodes a target."""
    cfg = compose(dt.Config(), dataset)
    algo = cfg.algo
    assert (algo.targets, algo.return_scale) == (targets, scale)
    assert (algo.batch_size, algo.lr, algo.context, cfg.steps) == (64, 1e-4, 20, 100_000)
    assert (cfg.eval.every, cfg.eval.episodes) == (10_000, 100)
    assert (algo.activation, algo.padding, algo.loss_over) == ("relu", "left", "valid")


def test_official_cql():
    """The README's commands, and the defaults of the authors' two scripts."""
    gym, antmaze = (
        compose(cql_official.Config(), d).algo for d in ("hopper-medium-v2", "antmaze-umaze-v2")
    )
    for algo in (gym, antmaze):
        assert (algo.weight, algo.policy_lr, algo.critic_lr) == (5, 1e-4, 3e-4)
        assert (algo.order, algo.init, algo.log_std_min) == ("alpha_first", "official", -5)
        assert (algo.log_std_multiplier, algo.bc_steps) == (None, 39_999)
        assert not algo.data.normalize_states
    assert gym.lagrange == "off"
    assert (antmaze.lagrange, antmaze.threshold) == ("official", 5)
    assert (antmaze.data.reward_scale, antmaze.data.reward_shift) == (4, -2)  # (r - 0.5) * 4
