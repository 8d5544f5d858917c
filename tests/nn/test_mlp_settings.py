"""Activation and LayerNorm of an algorithm's own perceptrons."""

import importlib

import pytest
import torch
from tiny import LEARNERS, Short, settings
from torch import nn
from torch.nn import functional as F
from wording import refused

from corerl.config import Config
from corerl.nn.encoders import Encoder
from corerl.nn.mlp_settings import ACTIVATIONS, MLPSettings
from corerl.nn.networks import MLP, LayerNorm
from corerl.runs.directory import config_hash
from corerl.runs.running_means import EPISODIC


def config_of(name: str) -> type:
    return importlib.import_module(f"corerl.algos.{name}").Config


WITH = [name for name in LEARNERS if issubclass(config_of(name), MLPSettings)]
OWN_NORM = {"wsrl": "", "rebrac": "actor", "goat": "actor"}
OWN_NORM |= dict.fromkeys(("cal_ql", "expo", "rlpd"), "critic")
"""Algorithms whose paper has a LayerNorm: where theirs is, or `layer_norm` in the actor alone."""
GELU = ("iql_ogbench", "fql", "ifql", "gcbc", "gcivl", "gciql", "crl", "qrl", "hiql", "laeo")
GELU += ("cfgrl_goals", "cfgrl_ogbench")
OWN_ACTIVATION = {"cfgrl": "mish", "subpo": "tanh"} | dict.fromkeys(GELU, "gelu_tanh")


def perceptrons(agent: object) -> dict[str, nn.Module]:
    """What has a hidden layer: perceptrons of two layers or more, and dense encoders."""
    parts = {name: part for name, part in vars(agent).items() if isinstance(part, nn.Module)}
    return {
        f"{name}.{inner}": module
        for name, part in parts.items()
        for inner, module in part.named_modules()
        if (isinstance(module, MLP) and len(module.layers) > 1)
        or (isinstance(module, Encoder) and module.dense is not None)
    }


def test_they_are_settings_wherever_an_algorithm_has_rectified_perceptrons():
    assert {"bc", "td3_bc", "iql", "rebrac", "awac", "edac", "cql", "sac", "cpl", "ipl"} < set(WITH)
    assert {"cal_ql", "wsrl", "rlpd", "cql_discrete", "qr_dqn", "iqn", "cvar_offline"} < set(WITH)


@pytest.mark.parametrize("name", WITH)
def test_every_network_of_an_algorithm_follows_its_settings(name):
    run = Short(settings(name, activation="gelu", layer_norm=True), seeds=[0], updates=2)
    found = perceptrons(run.parts["agent"])
    normed = {n for n, m in found.items() if any(isinstance(x, LayerNorm) for x in m.modules())}
    assert found and normed
    assert all(m.activation is F.gelu for m in found.values())
    expected = {n for n in found if OWN_NORM.get(name, "") in n}
    assert normed >= expected
    learned = [m for metrics in run.metrics for name, m in metrics.items() if name != EPISODIC]
    assert learned and all(m.isfinite().all() for m in learned)


@pytest.mark.parametrize("name", WITH)
def test_defaults_are_no_part_of_a_runs_name(name):
    own = config_of(name)()
    plain = config_hash(Config(algo=own, task="corerl/pendulum"))
    other = config_of(name)(activation="elu")
    assert config_hash(Config(algo=other, task="corerl/pendulum")) != plain
    names = {field for field in ("activation", "layer_norm") if field in vars(own)}
    assert names == {"activation", "layer_norm"}
    assert own.activation == OWN_ACTIVATION.get(name, "relu")


def test_the_epsilon_is_torchs():
    assert config_of("iql")(layer_norm=True).mlp_options["layer_norm"] == nn.LayerNorm(1).eps


def test_each_name_is_torchs_function():
    x = torch.linspace(-2, 2, 9)
    jaxs = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    for name, function in ACTIVATIONS.items():
        if name == "gelu_tanh":
            torch.testing.assert_close(function(x), jaxs)
            continue
        theirs = {"tanh": torch.tanh}.get(name) or getattr(F, name)
        assert torch.equal(function(x), theirs(x))
    with refused("algo.activation=swish"):
        config_of("iql")(activation="swish")
