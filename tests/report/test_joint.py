"""The picture of what MD3QN learned of a maze."""

import joint
import numpy as np
import pytest
import torch
from exact_mazes import joint_moments
from small import config, train
from wording import refused, says

from corerl.envs import mazes
from corerl.training.experience import Collect

OWN = {
    "particles": 3,
    "policy": "uniform",
    "hidden_width": 4,
    "batch_size": 4,
    "target_every": 10,
    "data": Collect(epsilon=1.0, learning_starts=20, train_every=10, capacity=100),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    job = config(root, "md3qn", own=OWN, task="maze/v1-vector", steps=40)
    job.eval.episodes = 0
    job.seeds, job.processes = [3], 1
    return train(job) / "seeds-3"


def test_the_picture_is_drawn(run, tmp_path, capsys):
    out = tmp_path / "v1.png"
    assert joint.main([str(run), "--out", str(out), "--episodes", "20"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG") and f"{out}\n" in capsys.readouterr().out
    assert joint.main([str(run), "--out", str(out / "in/a/file"), "--episodes", "1"]) == 1
    says(capsys.readouterr().err, "report")


def test_particles_are_those_of_the_policy(run):
    agent, env = joint.load(run)
    first = torch.from_numpy(env.reset(seed=0)[0])
    with torch.no_grad():
        every = agent.particles(first[None, None])[0, 0]
    np.testing.assert_allclose(joint.learned(agent, env), every.reshape(-1, 2))
    agent.cfg.policy = "greedy"
    best = max(range(4), key=lambda a: every[a].sum())
    np.testing.assert_allclose(joint.learned(agent, env), every[best])


def test_episodes_have_the_exact_moments(run):
    agent, env = joint.load(run)
    returns = joint.played(agent, env, 1500)
    mean, covariance = joint_moments(mazes.MAZES["v1"])
    error = np.sqrt(np.diag(covariance) / len(returns))
    assert (np.abs(returns.mean(0) - mean) < 4 * error).all()


def test_other_runs_are_refused(tmp_path, capsys):
    with refused("config.yaml"):
        joint.load(tmp_path / "seeds-0")
    (tmp_path / "config.yaml").write_text("algo: {name: hra}\ntask: maze/v1\n")
    assert joint.main([str(tmp_path / "seeds-0")]) == 1
    says(capsys.readouterr().err, "maze/v1 md3qn")
    settings = (
        "algo: {name: md3qn, label: MMD-QN, sources: total, data: {}}\ntask: maze/v1-vector\n"
    )
    (tmp_path / "config.yaml").write_text(settings)
    with refused("seeds-0 return"):
        joint.load(tmp_path / "seeds-0")
