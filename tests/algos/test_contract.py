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
from small import AVERSE, OFFLINE, flatten, goes_on, parameters, run

from corerl import algos, seeding
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.policies.load import load
from corerl.runs import checkpoint, directory
from corerl.runs.running_means import EPISODIC
from corerl.training.run import Run

UPDATES = 3
FLOAT32 = {
    *(
        "arsq",
        "cqn",
        "cvar",
        "dqn",
        "hra",
        "iqn",
        "laeo",
        "md3qn",
        "mex",
        "mrq",
        "orpo_sac",
        "pebble",
    ),
    *("pmoe", "qr_dqn", "reload_sac", "rlpd", "rrs", "sac", "spo", "sqirl", "subpo", "td3"),
}
"""Algorithms that cannot learn in float64, since they keep what they learn from in float32."""


@pytest.fixture(scope="module", autouse=True)
def short_episodes():
    """Pendulum's episodes end after 20 steps, also in the runs that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gymnasium.spec("Pendulum-v1"), "max_episode_steps", 20)
        yield


class Watched(tiny.Short):
    """Three updates after a first phase, in float64, where rounding is not taken for a neighbour.

    Attributes:
        initial: the state before the first update. disturbance: scales the first seed's weights there.
        near: how far two runs may differ.
    """

    disturbance: float | None = None

    def __init__(self, cfg, seeds):
        single = cfg.algo.name in FLOAT32
        self.near = {"rtol": 1e-4, "atol": 1e-5} if single else {"rtol": 1e-6, "atol": 1e-8}
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if single else torch.float64)
        try:
            super().__init__(cfg, seeds, updates=cfg.algo.first_phase()[0] + UPDATES)
        finally:
            torch.set_default_dtype(before)

    def steps(self, *, stride: int = 1, **parts):
        self.streams = streams(parts | {f"run.{name}": s for name, s in self._streams.items()})
        self.initial = flatten(weights({k: p for k, p in parts.items() if p is not None}))
        if self.disturbance is not None:
            for tensor in weights(parts).values():
                tensor.data[0] *= self.disturbance
        yield from super().steps(stride=stride, **parts)


class Disturbed(Watched):
    disturbance = 1.5


class Poisoned(Watched):
    disturbance = torch.nan


def weights(parts: dict) -> dict[str, torch.Tensor]:
    """What an algorithm learns, by name; the first half of every tensor is of the first of two seeds."""
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


@pytest.fixture(scope="module", params=tiny.JOBS)
def cfg(request):
    return tiny.settings(request.param)


@pytest.fixture(scope="module")
def together(cfg) -> Watched:
    return Watched(cfg, (1, 3))


def test_a_seed_is_the_same_alone_and_in_company(cfg, together):
    alone = Watched(cfg, (3,))
    assert alone.initial.keys() == together.initial.keys() and alone.initial
    for name, (shape, mine) in alone.initial.items():
        assert together.initial[name][0][0] == 2 * shape[0], name
        assert together.initial[name][1].endswith(mine), f"{name} begins otherwise in company"
    one, both = (weights(run.parts) for run in (alone, together))
    for name in one:
        named = {"msg": lambda m, name=name: f"{name}: {m}"} | together.near
        torch.testing.assert_close(one[name], both[name].chunk(2)[1], **named)
    drawn = [name for name in both if name.endswith("weight") and "norm" not in name]
    assert all(not torch.equal(*both[name].chunk(2)) for name in drawn)
    for one, both in zip(alone.metrics, together.metrics, strict=True):
        assert one.keys() == both.keys()
        for name in one:
            unknown = {"equal_nan": name == EPISODIC}  # until an episode has ended
            torch.testing.assert_close(one[name][0], both[name][1], **together.near, **unknown)


def learns_from_data(cfg) -> bool:
    return cfg.task == tiny.OFFLINE and cfg.algo.phase == "offline"


@pytest.mark.parametrize("kind", [Disturbed, Poisoned])
def test_a_seed_does_not_hear_its_neighbour(cfg, together, kind):
    if kind is Poisoned and (cfg.algo.preferences or not learns_from_data(cfg)):
        pytest.skip("environments, and rewards to be learned, take no NaN")
    disturbed = kind(cfg, (1, 3))
    one, other = weights(together.parts), weights(disturbed.parts)
    (mine, theirs), (changed, deaf) = (
        [{name: x.chunk(2)[i] for name, x in found.items()} for i in (0, 1)]
        for found in (one, other)
    )
    assert any(not torch.equal(mine[name], changed[name]) for name in one)
    assert [name for name in one if not torch.equal(theirs[name], deaf[name])] == []
    for one, other in zip(together.metrics, disturbed.metrics, strict=True):
        found, expected = ({k: v[1] for k, v in x.items()} for x in (other, one))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OFFLINE + AVERSE)
def test_seeds_act_alike_and_apart(name):
    run = tiny.Short(tiny.settings(name), (0, 1, 2), updates=2)
    observations = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    actions = run.act(observations)
    assert actions.shape == (3, 5, 1) and actions.abs().max() <= 1
    other = observations.clone()
    other[1] = torch.nan
    assert torch.equal(run.act(other)[[0, 2]], actions[[0, 2]])
    swapped = run.act(observations[:, [1, 0, 2, 3, 4]])
    torch.testing.assert_close(swapped[:, [1, 0]], actions[:, :2], rtol=1e-5, atol=1e-6)


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
    stride, _ = cfg.algo.steps_multiple()
    stops = [*([first - stride, first] if first else []), 36]
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


@pytest.mark.parametrize("name", tiny.LEARNERS)
def test_a_batch_of_one_trains(name):
    cfg = tiny.settings(name)
    own = {name: 1 for name in ("batch_size", "pairs") if hasattr(cfg.algo, name)}
    finite_or_refused(tiny.Short, replace(cfg, algo=replace(cfg.algo, **own)))


@pytest.mark.parametrize("name", [x for x in tiny.LEARNERS if learns_from_data(tiny.settings(x))])
def test_episodes_of_one_step_and_one_action_train(name):
    finite_or_refused(ShortEpisodes, tiny.settings(name))
