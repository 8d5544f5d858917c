"""Actions by inverse dynamics: closed forms, a transcription, what is hidden, own files, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from agreement import assert_networks, net, scramble
from small import config, train
from wording import refused, says

from corerl.config import Config, Data
from corerl.data.dataset import Dataset
from corerl.data.files import own_files
from corerl.data.tasks import resolve
from corerl.runs.directory import config_hash
from corerl.training import inverse_dynamics
from corerl.training.inverse_dynamics import Inverse, InverseDynamics, fitted, hidden, with_actions
from corerl.training.preprocessing import Preprocess


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path / "data"))


def linear(episodes: int = 200, length: int = 20, noise: float = 0.1) -> tuple[Dataset, np.ndarray]:
    """s' = A s + B a + e, and the weights of E[a | s, s'] in closed form."""
    rng = np.random.default_rng(0)
    size = episodes * length
    A, B = rng.normal(size=(3, 3)) / 2, rng.normal(size=(3, 2))
    s, a = rng.normal(size=(size, 3)), 0.3 * rng.normal(size=(size, 2)).clip(-3, 3)
    after = s @ A.T + a @ B.T + noise * rng.normal(size=(size, 3))
    gain = 0.09 * B.T @ np.linalg.inv(0.09 * B @ B.T + noise**2 * np.eye(3))
    cut = np.arange(1, size + 1) % length == 0
    data = Dataset.from_steps("test/linear", s, a, rng.normal(size=size), after, 0 * cut, cut)
    return data, (after - s @ A.T) @ gain.T


def test_labels_are_the_conditional_means_of_a_linear_gaussian_system():
    data, expected = linear()
    data = hidden(data, 0.5, "random")
    made = fitted(data, Inverse(steps=1500, hidden_width=64, lr=1e-3))[1:]
    rows = data.unlabelled
    error = np.sqrt(np.square(made - expected)[rows].mean())
    assert error < 0.25 * np.sqrt(np.square(expected)[rows].mean())
    assert error < 0.06


def test_five_updates_equal_the_equations(tolerance):
    """Minus the log-density of a Gaussian whose mean and deviation two networks give, and Adam."""
    model = InverseDynamics(4, 2, Inverse(hidden_width=8, lr=1e-2))
    scramble(model.mean, model.log_std)
    mine = [
        {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in net(m, 0).items()}
        for m in (model.mean, model.log_std)
    ]
    optimizer = torch.optim.Adam([x for part in mine for x in part.values()], lr=1e-2)
    rng = np.random.default_rng(0)
    for _ in range(5):
        pairs, actions = (
            torch.tensor(rng.normal(size=(6, n)), dtype=torch.float64) for n in (4, 2)
        )
        losses = []
        for pair, action in zip(pairs, actions, strict=True):
            mean, log_std = (_forward(part, pair) for part in mine)
            std = log_std.clamp(-5, 2).exp()
            density = torch.exp(-(((action - mean) / std) ** 2) / 2) / (std * (2 * np.pi) ** 0.5)
            losses.append(-density.log().sum())
        loss = sum(losses) / 6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kind = torch.get_default_dtype()
        model.step(pairs.to(kind)[None], actions.to(kind)[None])
    theirs = tuple({k: v.detach().numpy() for k, v in part.items()} for part in mine)
    assert_networks((net(model.mean, 0), net(model.log_std, 0)), theirs, tolerance)


def _forward(part: dict, x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        x = x @ part[f"layers.{i}.weight"] + part[f"layers.{i}.bias"][0]
        x = x.relu() if i < 2 else x
    return x


def test_the_labelled_episodes_are_drawn_from_the_worse_half():
    data, _ = linear(20)
    low = hidden(data, 0.25, "low")
    kept = ~low.unlabelled[low.episode_starts]
    assert kept.sum() == 5 and data.episode_returns()[kept].max() <= np.median(
        data.episode_returns()
    )
    assert (low.actions[low.unlabelled] == 0).all()
    assert np.array_equal(low.actions[~low.unlabelled], data.actions[~low.unlabelled])
    both = hidden(data, 1.0, "random")
    assert both.unlabelled is None and np.array_equal(both.actions, data.actions)
    with refused("algo.data.inverse.labelled=0.6 0.5 pick=random"):
        hidden(data, 0.6, "low")


def test_labelled_rows_keep_their_actions_and_the_model_is_fitted_once(capsys, monkeypatch):
    data, _ = linear(20)
    settings = Preprocess(actions="inverse", inverse=Inverse(labelled=0.5, steps=3, hidden_width=8))
    found = with_actions(data, settings)
    says(capsys.readouterr().err, "algo.data.actions=inverse 200 400 10")
    known = ~hidden(data, 0.5, "low").unlabelled
    assert np.array_equal(found.actions[known], data.actions[known]) and found.unlabelled is None
    assert (found.actions[~known] != data.actions[~known]).all()
    mended = replace(data, has_next=data.has_next & (np.arange(len(data)) % 7 > 0))
    assert not np.array_equal(with_actions(mended, settings).actions, found.actions)
    monkeypatch.setattr(inverse_dynamics, "InverseDynamics", None)
    assert np.array_equal(with_actions(data, settings).actions, found.actions)


def test_on_pendulum_a_tenth_of_the_episodes_gives_all_actions():
    """Its step is a function of state and action that can be inverted: a random guess errs by 0.6."""
    data = resolve("corerl/pendulum").load()
    data = data.select_episodes(np.arange(100))
    some = hidden(data, 0.2, "random")
    made = fitted(some, Inverse(steps=1500, hidden_width=64, lr=1e-3))
    rows = some.unlabelled
    error = np.sqrt(np.square(made[1:] - data.actions)[rows].mean())
    assert error < 0.1 and made[0, 0] == pytest.approx(error, rel=0.5)


def blank_rows(tmp_path, rows, suffix="csv"):
    """A file of 4 episodes of 5 steps, where actions of these rows are missing."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(1, 3, (20, 2))
    actions[rows] = np.nan
    arrays = {"obs": rng.normal(size=(20, 2)), "act": actions, "reward": np.arange(20.0)}
    arrays["episode"] = np.repeat(np.arange(4), 5)
    path = tmp_path / f"x.{suffix}"
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        names = ["obs_0", "obs_1", "act_0", "act_1", "reward", "episode"]
        lines = np.column_stack([arrays["obs"], actions, arrays["reward"], arrays["episode"]])
        text = [",".join("" if np.isnan(x) else repr(float(x)) for x in line) for line in lines]
        path.write_text("\n".join([",".join(names), *text]))
    return path


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_empty_cells_of_whole_episodes_are_episodes_without_actions(tmp_path, suffix):
    path = blank_rows(tmp_path, range(5, 10), suffix)
    data = own_files.load(str(path), Data(action_low=1, action_high=3))
    assert np.flatnonzero(data.unlabelled).tolist() == [5, 6, 7, 8, 9]
    assert (data.actions[5:10] == 0).all() and (data.actions[:5] != 0).all()
    own_files.write(tmp_path / "y.npz", data)
    again = own_files.load(str(tmp_path / "y.npz"), Data(action_low=-1, action_high=1))
    assert np.array_equal(again.unlabelled, data.unlabelled)
    with refused("1 of 4 episodes no actions algo.data.actions=inverse"):
        with_actions(data, Preprocess())
    settings = Preprocess(actions="inverse", inverse=Inverse(steps=3, hidden_width=8))
    assert (with_actions(data, settings).actions[5:10] != 0).any()


def test_an_episode_with_some_actions_is_a_fault(tmp_path):
    path = blank_rows(tmp_path, range(6, 10))
    with refused("line 8 act_0 no action other rows of its episode"):
        own_files.load(str(path), Data(action_low=1, action_high=3))


def test_too_few_episodes_with_actions_are_refused(tmp_path):
    path = blank_rows(tmp_path, range(5, 20), "npz")
    data = own_files.load(str(path), Data(action_low=1, action_high=3))
    with refused("1 episodes actions 2"):
        with_actions(data, Preprocess(actions="inverse"))


def test_discrete_actions_are_refused():
    data = resolve("corerl/cartpole").load().select_episodes(np.arange(3))
    with refused("algo.data.actions=inverse continuous discrete"):
        with_actions(data, Preprocess(actions="inverse"))


def test_an_algorithm_learns_from_them_and_a_run_without_keeps_its_name(tmp_path):
    settings = Preprocess(actions="inverse", inverse=Inverse(labelled=0.1, steps=5, hidden_width=8))
    cell = train(config(tmp_path, "td3_bc", own={"data": settings}, steps=20))
    assert (cell / "seeds-0/scores.csv").is_file()
    plain = config(tmp_path, "td3_bc")
    assert config_hash(plain) != config_hash(
        replace(plain, algo=replace(plain.algo, data=settings))
    )
    assert isinstance(plain, Config)
