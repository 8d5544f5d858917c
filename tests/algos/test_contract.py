"""What every algorithm owes, over the files of `algos/` as they are found: a new file is tested unasked.

A seed is the same alone and in company, and deaf to its neighbours; a run that was stopped goes on as if it
had not been; odd sizes train, or are refused with a sentence. Compiled and captured updates are held to the
same files in tests/nn/test_compile.py and test_graphs.py.
"""

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import tiny
import torch
import yaml
from small import flatten, goes_on, parameters, run

from corerl import algos, seeding
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.policies.load import load
from corerl.runs import checkpoint, directory
from corerl.runs.running_means import EPISODIC
from corerl.training.run import Run

UPDATES = 3


@pytest.fixture(scope="module", autouse=True)
def short_episodes():
    """Pendulum's episodes end after 20 steps, also in the runs that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gymnasium.spec("Pendulum-v1"), "max_episode_steps", 20)
        yield


class Watched(tiny.Short):
    """Keeps the state before the first update, and may disturb one seed's weights there."""

    disturbed: int | None = None

    def steps(self, *, stride: int = 1, **parts):
        self.streams = streams(parts | {f"run.{name}": s for name, s in self._streams.items()})
        self.initial = flatten(weights({k: p for k, p in parts.items() if p is not None}))
        if self.disturbed is not None:
            for tensor in weights(parts).values():
                tensor.data[self.disturbed] *= 1.5
        yield from super().steps(stride=stride, **parts)


class Disturbed(Watched):
    disturbed = 0


def weights(parts: dict) -> dict[str, torch.Tensor]:
    """What an algorithm learns, by name; every tensor has the seed axis in front."""
    agents = {name: part for name, part in parts.items() if name in ("agent", "reward")}
    return {
        f"{name}/{key}": tensor
        for name, agent in agents.items()
        for key, tensor in parameters(agent).items()
        if "normalizer" not in key
    }


def streams(parts: dict) -> dict[str, seeding.Stream]:
    """The streams of random numbers that parts of a run are or hold, by where they are."""
    found = {}
    for name, part in parts.items():
        if isinstance(part, seeding.Stream):
            found[name] = part
        elif hasattr(part, "__dict__") and type(part).__module__.startswith("corerl."):
            found |= streams({f"{name}.{key}": value for key, value in vars(part).items()})
    return found


@pytest.fixture(scope="module", params=tiny.LEARNERS)
def cfg(request):
    return tiny.settings(request.param)


@pytest.fixture(scope="module")
def together(cfg) -> Watched:
    return Watched(cfg, (1, 3), updates=UPDATES)


def test_a_seed_is_the_same_alone_and_in_company(cfg, together):
    alone = Watched(cfg, (3,), updates=UPDATES)
    assert alone.initial.keys() == together.initial.keys() and alone.initial
    for name, (shape, mine) in alone.initial.items():
        assert together.initial[name][0][0] == 2 * shape[0], name
        assert together.initial[name][1].endswith(mine), f"{name} begins otherwise in company"
    for one, both in zip(alone.metrics, together.metrics, strict=True):
        assert one.keys() == both.keys()
        for name in one:
            unknown = {"equal_nan": name == EPISODIC}  # until an episode has ended
            torch.testing.assert_close(one[name][0], both[name][1], rtol=2e-3, atol=1e-4, **unknown)


def test_a_seed_does_not_hear_its_neighbour(cfg, together):
    disturbed = Disturbed(cfg, (1, 3), updates=UPDATES)
    one, other = weights(together.parts), weights(disturbed.parts)
    assert any(not torch.equal(one[name][0], other[name][0]) for name in one)
    for name in one:
        assert torch.equal(one[name][1], other[name][1]), name


def test_no_two_streams_of_a_run_are_one(together):
    """Streams of one purpose draw from the same random numbers; so do two seeds that share a generator."""
    different = {id(stream): (name, stream) for name, stream in together.streams.items()}
    known: dict[int, str] = {}
    for name, stream in different.values():
        for seed, state in zip(together.seeds, stream.state_dict()["generators"], strict=True):
            begins, whose = hash(bytes(state.numpy())), f"{name} of seed {seed}"
            assert begins not in known, f"{whose} and {known[begins]} are one stream"
            known[begins] = whose
    assert known


@pytest.mark.parametrize("name", tiny.JOBS)
def test_a_run_stopped_and_resumed_ends_as_an_unbroken_one(tmp_path, name, monkeypatch, capsys):
    """Stopped also before and at the end of what comes before a policy's updates."""
    monkeypatch.setattr(Run, "dataset", lambda self: tiny._episodes(self.task))
    cfg = tiny.settings(name)
    cfg = replace(cfg, save_every=20, log_every=10, device="cpu", compile="off")
    first, _ = cfg.algo.first_phase()
    stops = [*([first - 1, first] if first else []), 36]
    goes_on(replace(cfg, eval=replace(cfg.eval, episodes=1)), tmp_path, stops, (0, 4))
    assert "checkpoints do not save" not in capsys.readouterr().err


def answers(policy, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """What a policy of two seeds does in three episodes side by side, three steps of them."""
    rng = torch.Generator().manual_seed(0)
    if hasattr(policy, "begin"):
        policy.begin(2, 3)
    found = []
    for _ in range(3):
        found.append(policy(torch.rand(2, 3, *shape, generator=rng)))
        rewards = torch.rand(2, 3, generator=rng)
        if hasattr(policy, "reward"):
            policy.reward(rewards)
    return found


@pytest.mark.parametrize("spec", ["kept", "of before"])
@pytest.mark.parametrize("name", algos.names())
def test_a_trained_policy_is_loaded_and_acts_the_same(tmp_path, name, spec, monkeypatch):
    """Also from a checkpoint of a version that did not keep what its agent was built from."""
    handed_over = []
    monkeypatch.setattr(Run, "dataset", lambda self: tiny._episodes(self.task))
    monkeypatch.setattr(Run, "evaluate", lambda self, step, act, also=None: handed_over.append(act))
    cfg = replace(tiny.settings(name), root=str(tmp_path), device="cpu", compile="off")
    if spec != "kept" and cfg.algo.knows_goals:
        pytest.skip("no version before had goals")
    folder = run(cfg, (3, 4))
    settings = directory.settings(cfg) | {"seeds": [3, 4]}
    (folder.parent / "config.yaml").write_text(yaml.safe_dump(settings))
    file = folder / "checkpoint.safetensors"
    if spec == "kept":
        monkeypatch.setattr(Task, "load", lambda self: pytest.fail("the data was read"))
    elif file.exists():
        saved = checkpoint.load_checkpoint(file)
        del saved["spec"]
        checkpoint.save_checkpoint(file, saved)
        monkeypatch.setattr(Task, "load", tiny._episodes)
    agent = load(folder.parent)
    expected = answers(handed_over[-1], agent.shapes.observation)
    for one, other in zip(answers(agent, agent.shapes.observation), expected, strict=True):
        assert torch.equal(one, other)


def test_every_file_of_algos_is_among_these():
    files = {path.stem for path in Path(algos.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(tiny.LEARNERS) | tiny.EXACT == files


def episodes_of_one_step(size: int = 60) -> Dataset:
    """One observation and one action, and every episode ends with its first step."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((size, 1), dtype=np.float32)
    return Dataset.from_steps(
        id="test/short",
        observations=observations,
        actions=np.tanh(rng.standard_normal((size, 1), dtype=np.float32)),
        rewards=rng.standard_normal(size, dtype=np.float32),
        next_observations=observations + 1,
        terminated=np.ones(size, bool),
        truncated=np.zeros(size, bool),
    )


class ShortEpisodes(tiny.Short):
    def dataset(self) -> Dataset:
        return episodes_of_one_step()


def finite_or_refused(kind: type, cfg) -> None:
    try:
        metrics = kind(cfg, updates=UPDATES).metrics
    except CorerlError:
        return
    assert len(metrics) == UPDATES
    for update in metrics:
        for name, value in update.items():
            assert torch.isfinite(value).all() or name == "episode_return", name


def test_a_batch_of_one_trains(cfg):
    own = {name: 1 for name in ("batch_size", "pairs") if hasattr(cfg.algo, name)}
    finite_or_refused(tiny.Short, replace(cfg, algo=replace(cfg.algo, **own)))


def learns_from_data(name: str) -> bool:
    cfg = tiny.settings(name)
    return cfg.task == tiny.OFFLINE and cfg.algo.phase == "offline"


@pytest.mark.parametrize("name", [name for name in tiny.LEARNERS if learns_from_data(name)])
def test_episodes_of_one_step_and_one_action_train(name):
    finite_or_refused(ShortEpisodes, tiny.settings(name))
