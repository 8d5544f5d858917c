"""Another code's trainer on our data: what the stand-ins give it, and the table of both."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from corerl.data import export
from corerl.data.tasks import resolve
from corerl.training.evaluation import Evaluator

FOLDER = Path(__file__).parents[2] / "results" / "reproduced" / "same_data"
TRAINER = """
from dataclasses import dataclass
import d4rl, gym, numpy, pyrallis, wandb

@dataclass
class TrainConfig:
    env: str
    seed: int
    device: str = "cuda"
    n_episodes: int = 10
    eval_freq: int = 1000
    gain: float = 0.0

def evaluate(env, config):
    env.seed(config.seed)
    for _ in range(config.n_episodes):
        state, done = env.reset(), False
        while not done:
            state, _, done, _ = env.step(numpy.clip(config.gain * state[2:], -1, 1))

@pyrallis.wrap()
def train(config: TrainConfig):
    env = gym.wrappers.TransformObservation(gym.make(config.env), lambda x: 2 * x)
    data = d4rl.qlearning_dataset(env)
    print("rows", len(data["rewards"]), data["terminals"].sum())
    wandb.init(project="x"), wandb.run.save()
    env.seed(config.seed), env.action_space.seed(config.seed)
    for step in range(1, 5):
        wandb.log({"loss": 0.0}, step=step)
        if step % config.eval_freq == 0:
            evaluate(env, config)
            wandb.log({"score": 0.0}, step=step)

if __name__ == "__main__":
    train()
"""


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("gym", "d4rl", "wandb", "pyrallis"):  # found again as they were before
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    import compare
    import run_corl

    return run_corl, compare


def test_an_unmodified_trainer_gets_our_rows_and_our_initial_states(scripts, tmp_path, capsys):
    run_corl, _ = scripts
    task = resolve("corerl/pendulum")
    dataset = task.load()
    export.to_hdf5(dataset, tmp_path / "data.hdf5", {})
    (tmp_path / "trainer.py").write_text(TRAINER)
    arguments = [tmp_path / "trainer.py", task.id, tmp_path / "data.hdf5", tmp_path / "out.csv"]
    options = ["--seeds", "3", "4", "--every", "2", "--episodes", "2", "--set", "gain=-0.25"]
    run_corl.main([*map(str, arguments), *options])
    rows = pd.read_csv(tmp_path / "out.csv")
    printed = capsys.readouterr().out
    assert printed.count(f"rows {len(dataset) - dataset.truncated.sum()} ") == 2
    ours = Evaluator(task.make_env, [3, 4], 2)
    expected = ours(lambda x: (-0.5 * x[..., 2:]).clamp(-1, 1)).returns
    assert abs(expected[0, 0] - expected[0, 1]) > 1
    assert rows[["seed", "step"]].to_numpy().tolist() == [[3, 2], [3, 4], [4, 2], [4, 4]]
    for row in rows.itertuples():
        got = np.array(row.returns.split(), float)
        assert got == pytest.approx(expected[row.seed - 3], abs=0.5)


def test_rows_at_a_time_limit_are_kept_where_asked(scripts, tmp_path):
    run_corl, _ = scripts
    dataset = resolve("corerl/pendulum").load()
    export.to_hdf5(dataset, tmp_path / "data.hdf5", {})
    kept, left = (run_corl.rows(tmp_path / "data.hdf5", keep) for keep in (True, False))
    assert len(kept["rewards"]) == len(dataset)
    assert np.array_equal(left["observations"], dataset.observations[~dataset.truncated])
    assert np.array_equal(kept["next_observations"], dataset.next_observations)


def test_a_dictionarys_parts_lie_side_by_side_as_in_the_dataset(scripts, tmp_path):
    run_corl, _ = scripts
    dataset = replace(resolve("corerl/pendulum").load(), parts=(("arm", 1), ("speed", 2)))
    export.to_hdf5(dataset, tmp_path / "data.hdf5", {})
    data = run_corl.rows(tmp_path / "data.hdf5", keep_time_limits=True)
    assert np.array_equal(data["observations"], dataset.observations)
    assert np.array_equal(data["next_observations"], dataset.next_observations)


def test_the_table_counts_whole_seeds_at_the_steps_of_both(scripts, tmp_path):
    _, compare = scripts
    rows = []
    for task in ("t", "halfcheetah"):
        cells = [("CORL", "a", task, s, step, "4000 0") for s in (0, 1) for step in (5, 10, 15)]
        cells += [("corerl", "a", task, s, 10 * k, "2000 4000") for s in (0, 1) for k in (1, 2)]
        rows += [*cells, ("corerl", "a", task, 2, 20, "9 9"), ("CORL", "a", task, 2, 5, "0 0")]
    pd.DataFrame(rows, columns=compare.COLUMNS).to_csv(tmp_path / "rows.csv", index=False)
    text = compare.table(compare.read(tmp_path / "rows.csv"))
    assert "| a, t | 10 | 1 | mean return | 2000 ± 0 (2) | 3000 ± 0 (2) | +1000 [" in text
    share = "| a, halfcheetah | 10 | 1 | share that runs | 0.50 ± 0.00 (2) | 1.00 ± 0.00 (2) | +0.50 [n/a] |"
    assert share in text and text.count("share that runs") == 1  # no other robot stands still
    assert len(compare.table(compare.read(tmp_path / "rows.csv"), begin=11).splitlines()) == 2


def test_the_draws_are_those_of_one_seeding_and_go_on_where_they_stopped(scripts):
    import corl_draws

    actor, critics, rng = corl_draws.initial(7, (3, 2), corl_draws.Config(hidden_width=4))
    torch.manual_seed(7)
    sizes = [(3, 4), (4, 4), (4, 2), *2 * [(5, 4), (4, 4), (4, 1)]]
    expected = [torch.nn.Linear(*size) for size in sizes]
    found = [*actor, *critics[0], *critics[1]]
    assert all(torch.equal(x.weight, y.weight) for x, y in zip(found, expected, strict=True))
    assert torch.equal(corl_draws._normal(rng, (5, 2))(), torch.randn_like(torch.empty(5, 2)))
    np.random.seed(7)  # noqa: NPY002 - as CORL does
    drawn = [corl_draws.Draws([corl_draws._numbers(7, 100, 5)]) for _ in range(2)]
    for _ in range(3):
        assert drawn[0].next()[0].tolist() == np.random.randint(0, 100, size=5).tolist()  # noqa: NPY002
    drawn[1].load_state_dict(drawn[0].state_dict())
    assert torch.equal(drawn[0].next(), drawn[1].next())


def test_runs_of_ours_are_collected(scripts, tmp_path):
    _, compare = scripts
    run = tmp_path / "runs" / "t" / "a" / "seeds-1"
    run.mkdir(parents=True)
    (run.parent / "config.yaml").write_text("task: t\nalgo: {name: a}\n")
    (run / "returns.jsonl").write_text('{"step": 10, "seed": 1, "returns": [1.25, -2.0]}\n')
    (tmp_path / "corl.csv").write_text("code,algorithm,task,seed,step,returns\nCORL,a,t,1,10,3.0\n")
    found = compare.collect(tmp_path / "runs", [tmp_path / "corl.csv"])
    assert found.to_numpy().tolist() == [
        ["CORL", "a", "t", 1, 10, "3.0"],
        ["corerl", "a", "t", 1, 10, "1.2 -2.0"],
    ]


@pytest.mark.parametrize(
    ("files", "algorithm", "begin"),
    [
        (("returns", "pointmaze", "hopper"), "iql", 100_000),
        (("returns", "pointmaze", "hopper"), "iql", 0),
        (("pointmaze", "hopper"), "td3_bc", 100_000),
        (("pointmaze", "hopper"), "td3_bc", 0),
        (("cql",), "cql", 20_000),
        (("cql",), "cql", 0),
    ],
)
def test_the_page_s_tables_are_those_of_its_rows(scripts, files, algorithm, begin):
    _, compare = scripts
    page = (FOLDER / "README.md").read_text()
    rows = compare.read(*(FOLDER / f"{file}.csv" for file in files))
    lines = compare.table(rows[rows["algorithm"] == algorithm], begin).splitlines()
    assert len(lines) > 2 + len(files) - 1 and all(line in page for line in lines)
