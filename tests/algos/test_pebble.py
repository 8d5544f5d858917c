"""PEBBLE: the teacher and the choosers by hand, updates against a transcription, the course of a run."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import run, state_of
from test_sac import Transcription, batches
from wording import refused

from corerl import seeding
from corerl.algos import pebble
from corerl.buffers.replay import ReplayBuffer
from corerl.config import Config, Eval
from corerl.nn.learner import Spec
from corerl.nn.policies import PolicyNoise
from corerl.preferences import asking, label_session, person
from corerl.preferences.asking import Answers, Queries, Trail, judged, possible_starts, unit_of
from corerl.preferences.reward_models import Markov
from corerl.training.environments import Step

O, A, B = 3, 2, 16
REWARD = {"members": 2, "hidden_layers": 1, "hidden_width": 8, "batch_size": 4}


def agent_of(seeds, **own) -> pebble.PEBBLE:
    reward = Markov(**REWARD, stop_accuracy=1.0, seed=None)
    cfg = pebble.Config(batch_size=B, hidden_width=8, reward=reward, **own)
    spec = Spec(O, A, seeding.generators(seeds, "init"), identities=seeds)
    return pebble.PEBBLE(cfg, spec)


# The teacher.


@pytest.mark.parametrize(
    ("own", "labels"),
    [
        ({}, [0.0, 1.0, 0.5, 0.0]),
        ({"equal": 0.5}, [0.0, 0.5, 0.5, 0.0]),  # 1 apart, and the unit is 3
        ({"skip": 1.0}, [0.0, np.nan, np.nan, 0.0]),
        ({"gamma": 1e-9}, [1.0, 1.0, 0.5, 0.0]),  # the last step alone
        ({"epsilon": 1.0}, [1.0, 0.0, 0.5, 1.0]),
    ],
)
def test_the_teacher_by_hand(own, labels):
    """Pairs of two steps: returns 4 : 1, 1 : 2, 1 : 1 and 6 : 0."""
    rewards = np.array(
        [[[4, 0], [0, 1]], [[1, 0], [1, 1]], [[1, 0], [1, 0]], [[3, 3], [0, 0]]], float
    )
    found = judged(rewards, Queries(**own), 3.0, np.random.default_rng(0))
    np.testing.assert_array_equal(found, labels)


def test_a_noisy_teacher_answers_by_bradley_and_terry():
    rewards = np.tile([[[1.0, 0.0], [0.0, 0.0]]], (20_000, 1, 1))
    found = judged(rewards, Queries(beta=0.7), 0.0, np.random.default_rng(0))
    assert found.mean() == pytest.approx(1 / (1 + np.exp(0.7)), abs=0.01)


def test_segments_lie_within_episodes_and_their_unit_is_that_of_the_latest():
    over = np.array([0, 0, 1, 0, 0, 0, 1, 0], bool)
    assert possible_starts(over, 3).tolist() == [0, 3, 4]
    rewards = np.arange(8.0)  # episodes return 3 and 18, of 3 and 4 steps
    assert unit_of(rewards, over, 2) == (3 + 18) / 2 * 2 / 4
    with refused("algo.queries.length=5"):
        possible_starts(over, 5)


@pytest.mark.parametrize(
    ("schedule", "count"), [("constant", 100), ("falling", 75), ("rising", 133)]
)
def test_a_session_asks_by_its_schedule_within_the_budget(schedule, count):
    cfg = Queries(at_once=100, schedule=schedule, budget=500)
    assert cfg.count(25_000, 100_000, 0) == count
    assert cfg.count(25_000, 100_000, 490) == 10


def test_the_trail_is_the_latest_steps_in_order():
    trail = Trail(1, 4)
    for number in range(6):
        step = Step(
            *[np.zeros((1, 1))] * 2,
            np.array([float(number)]),
            np.zeros((1, 1)),
            *[np.array([number == 3])] * 2,
        )
        trail.add(step)
    rewards, over, first = trail.latest()
    assert rewards.tolist() == [[2, 3, 4, 5]] and over.tolist() == [[False, True, False, False]]
    assert first == 2
    trail.end_episodes(np.array([True]))  # which a resumed run cannot continue
    assert trail.latest()[1].tolist() == [[False, True, False, True]]


# What is asked.


def filled(seeds, steps: int = 40, capacity: int = 30):
    """A replay whose observations are the number of the step, and the trail beside it."""
    replay, trail = ReplayBuffer(1, 1, capacity, seeds, 4), Trail(len(seeds), capacity)
    for number in range(steps):
        here = np.full((len(seeds), 1), number, np.float32)
        over = np.full(len(seeds), number % 10 == 9)
        step = Step(here, here, here[:, 0], here, np.zeros_like(over), over)
        replay.add(step._replace(rewards=np.zeros(len(seeds))))
        trail.add(step)
    return replay, trail


def reward_of(seeds, **own):
    spec = Spec(1, 1, (), identities=seeds)
    return pebble.unfitted(Markov(**(REWARD | {"seed": None} | own)), spec)


@pytest.mark.parametrize("chooser", ["uniform", "disagreement", "entropy"])
def test_questions_are_segments_with_the_rewards_of_their_steps(chooser):
    seeds = [0, 5]
    replay, trail = filled(seeds)
    cfg = Queries(length=4, chooser=chooser, candidates=3)
    asked = asking.choose(cfg, trail, replay, reward_of(seeds), 6, seeds, session=1)
    assert asked.segments.shape == (2, 6, 2, 4, 2) and asked.rewards.shape == (2, 6, 2, 4)
    np.testing.assert_array_equal(asked.segments[..., 0], asked.rewards)  # step numbers in both
    assert (np.diff(asked.rewards, axis=-1) == 1).all() and asked.rewards.min() >= 10
    assert (asked.rewards[..., 0] // 10 == asked.rewards[..., -1] // 10).all()
    labels = asking.answered(cfg, asked, trail, seeds, 1)
    first, second = asked.rewards.sum(-1)[..., 0], asked.rewards.sum(-1)[..., 1]
    np.testing.assert_array_equal(labels, np.where(first == second, 0.5, second > first))


def test_the_most_doubtful_candidates_are_asked(float64):
    """Doubt by hand from each member's probability, and the largest of all candidates is asked."""
    seeds, reward = [3], reward_of([3], members=3)
    segments = torch.randn(1, 20, 2, 4, 2)
    with torch.no_grad():
        rewards = torch.stack(
            [reward(segments.reshape(1, 1, -1, 2))[0, m].view(20, 2, 4).sum(-1) for m in range(3)]
        )
    p = torch.sigmoid(rewards[..., 1] - rewards[..., 0]).numpy()
    np.testing.assert_allclose(asking.doubt(reward, segments, "disagreement")[0], p.std(0))
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean(0)
    np.testing.assert_allclose(asking.doubt(reward, segments, "entropy")[0], entropy)
    torch.set_default_dtype(torch.float32)
    replay, trail = filled(seeds)
    cfg = Queries(length=4, chooser="disagreement", candidates=5)
    reward = reward_of(seeds, members=3)
    few, all_of_them = (
        asking.choose(cfg, trail, replay, reward, n, seeds, session=2) for n in (2, 10)
    )
    assert few.segments.shape[1] == 2
    uniform = asking.choose(Queries(length=4), trail, replay, reward, 10, seeds, session=2)
    doubts = [
        asking.doubt(reward, x.segments, "disagreement").mean() for x in (all_of_them, uniform)
    ]
    assert doubts[0] > doubts[1]


def test_answers_that_were_skipped_are_not_learned_from():
    answers = Answers(Queries(budget=10, length=2), (1, 1), 2, "cpu")
    segments = torch.arange(48.0).view(2, 3, 2, 2, 2)
    answers.add(segments, np.array([[0.0, np.nan, 1.0], [0.5, 1.0, 0.0]]))
    assert answers.count.tolist() == [2, 3] and int(answers.asked) == 3
    drawn = answers.draw(torch.tensor([[0.0, 0.99], [0.34, 0.99]]))
    assert drawn.labels.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    torch.testing.assert_close(drawn.observations[0, 1], segments[0, 2, ..., :1])
    torch.testing.assert_close(drawn.actions[1, 0], segments[1, 1, ..., 1:])


# Learning.


def test_updates_equal_the_transcription_on_learned_rewards(float64):
    seeds = [0, 7]
    agent = agent_of(seeds, polyak=0.005, actor_lr=1e-3)
    references = [Transcription(agent, i) for i in range(2)]
    weights = [[(l.weight, l.bias) for l in agent.reward.network.layers]]
    for batch, noise in batches(seeds, 5):
        agent.update([batch], [PolicyNoise(*noise.unbind(1))])
        for i, reference in enumerate(references):
            s, a, _, s2, d = (field[i] for field in batch[:5])
            x, out = torch.cat([s, a], 1), []
            for m in range(2):
                h = x
                for number, (w, b) in enumerate(weights[0]):
                    h = h @ w[i, m].detach() + b[i, m].detach()
                    h = torch.where(h > 0, h, 0.01 * h) if number == 0 else torch.tanh(h)
                out.append(h[:, 0])
            reference.update(s, a, sum(out) / 2, s2, d, noise[i])
    for i, reference in enumerate(references):
        mine = Transcription(agent, i)
        pairs = zip(
            reference.flat(reference.pi, *reference.q), mine.flat(mine.pi, *mine.q), strict=True
        )
        for expected, found in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_exploring_rewards_are_distances_over_their_running_spread(float64):
    agent = agent_of([0, 1], neighbours=2)
    rng = np.random.default_rng(0)
    met = torch.as_tensor(rng.normal(size=(2, 12, O)))
    states, count, kept = met[:, :5], torch.tensor(9.0), []
    for i in range(2):
        every = np.linalg.norm(states[i][:, None] - met[i, :9][None], axis=-1)
        kept.append(np.sort(every, 1)[:, 2])  # 0 is the state itself
    np.testing.assert_allclose(agent.distance(states, met, count), kept)
    seen = []
    for _ in range(3):
        values = torch.as_tensor(rng.normal(2.0, 3.0, size=(2, 5)))
        seen.append(values)
        found = agent.spread.update(values)
    expected = torch.cat(seen, 1).var(1).sqrt()
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0)  # batches' own n - 1
    batch, noise = next(iter(batches([0, 1], 1)))
    many = torch.cat([met, batch.observations], 1)
    metrics = agent.explore_update(
        [batch], [PolicyNoise(*noise.unbind(1))], many, torch.tensor(28.0)
    )
    distance = agent.distance(batch.observations, many, torch.tensor(28.0))
    torch.testing.assert_close(metrics["distance"], distance.mean(1))


def test_critics_begin_anew_and_the_policy_does_not():
    agent = agent_of([0, 4])
    before = agent.state_dict()
    policy, critic = ({k: v.clone() for k, v in before[n].items()} for n in ("policy", "critic"))
    for batch, noise in batches([0, 4], 3):
        agent.update([batch], [PolicyNoise(*noise.unbind(1))])
    moved = {k: v.clone() for k, v in agent.policy.state_dict().items()}
    agent.reset_critics()
    for name, value in agent.critic.state_dict().items():
        assert (value != critic[name]).any() and torch.equal(agent.target.state_dict()[name], value)
    assert float(agent.critic_optimizer.state_dict()["count"]) == 0
    assert all(torch.equal(v, moved[k]) for k, v in agent.policy.state_dict().items()) and policy
    alone = agent_of([4])
    alone.reset_critics()
    for mine, other in zip(alone.critic.parameters(), agent.critic.parameters(), strict=True):
        assert torch.equal(mine[0], other[1])


def test_a_seed_that_is_accurate_stops_and_the_others_go_on():
    answers = Answers(Queries(budget=8, length=2, epochs=20), (1, 1), 2, "cpu")
    up = torch.tensor([[[[0.0, 0.0]] * 2, [[1.0, 0.0]] * 2]] * 8)
    labels = np.stack(
        [np.ones(8), np.tile([0.0, 1.0], 4)]
    )  # the second seed's contradict each other
    answers.add(torch.stack([up, up]), labels)
    reward = reward_of([0, 1], lr=0.1, stop_accuracy=1.0)
    uniforms = seeding.uniform([0, 1], "answers", (2, 8))
    accuracy = pebble.fit(Queries(epochs=20), reward, answers, reward.update, uniforms)
    assert accuracy[0] == 1.0 and accuracy[1] < 0.97
    assert reward.stopping.going.tolist() == [False, True]


def sessions(seeds, counts, members: int = 2):
    """The rewards' weights of each seed after two sessions of so many answers; seed 5's are luck."""
    cfg = Queries(budget=32, length=2, epochs=30)
    answers, reward = (
        Answers(cfg, (1, 1), len(seeds), "cpu"),
        reward_of(seeds, lr=0.05, batch_size=4),
    )
    for session in range(2):
        rngs = [np.random.default_rng([seed, session]) for seed in seeds]
        pairs = np.stack([rng.normal(size=(12, 2, 2, 2)) for rng in rngs])
        labels = (pairs[:, :, 1, :, 0].sum(-1) > pairs[:, :, 0, :, 0].sum(-1)).astype(float)
        for i, seed in enumerate(seeds):
            labels[i, counts[seed][session] :] = np.nan
            labels[i] = (
                labels[i]
                if seed != 5
                else np.where(labels[i] >= 0, rngs[i].integers(2, size=12), np.nan)
            )
        answers.add(torch.from_numpy(pairs), labels)
        uniforms = seeding.uniform(seeds, f"answers {session}", (8, members * 4))
        pebble.fit(cfg, reward, answers, reward.update, uniforms)
    return [[p[i].detach().clone() for p in reward.optimizer.parameters] for i in range(len(seeds))]


@pytest.mark.parametrize(
    "counts", [{3: (12, 12), 5: (12, 12)}, {3: (6, 3), 5: (12, 12)}, {3: (9, 9), 5: (0, 5)}]
)
def test_a_seeds_reward_does_not_know_the_seeds_beside_it(counts, float64):
    alone, (beside, _) = sessions([3], counts)[0], sessions([3, 5], counts)
    for mine, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


def test_a_session_without_an_answer_leaves_the_reward_as_it_is():
    reward, answers = reward_of([0]), Answers(Queries(budget=4, length=2), (1, 1), 1, "cpu")
    before = [p.detach().clone() for p in reward.optimizer.parameters]
    answers.add(torch.zeros(1, 4, 2, 2, 2), np.full((1, 4), np.nan))
    uniforms = seeding.uniform([0], "answers", (1, 8))
    assert pebble.fit(Queries(), reward, answers, reward.update, uniforms).tolist() == [0]
    assert all(map(torch.equal, before, reward.optimizer.parameters))


# Runs.


def job(root, queries=(), **changes) -> Config:
    asked = {"budget": 9, "at_once": 4, "every": 20, "length": 3, "epochs": 2} | dict(queries)
    reward = Markov(**REWARD, stop_accuracy=1.0, seed=None)
    algo = pebble.Config(
        random_steps=10,
        explore_steps=10,
        reset_updates=2,
        batch_size=8,
        hidden_width=8,
        queries=Queries(**asked),
        reward=reward,
    )
    cell = {"task": "gym/Pendulum-v1", "steps": 80, "eval": Eval(every=40, episodes=1)}
    often = {"log_every": 5, "save_every": 5, "save_minutes": 0, "root": str(root)}
    return Config(algo=algo, **({"compile": "off"} | often | cell | changes))


def test_the_budget_is_spent_and_no_more_and_the_replay_holds_no_true_reward(tmp_path):
    folder = run(job(tmp_path))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    answers = [line["answers"] for line in lines if "answers" in line and line["seed"] == 0]
    assert sorted(set(answers)) == [4.0, 8.0, 9.0]
    state = state_of(folder)
    assert not torch.as_tensor(np.asarray(state["replay"]["rows"][0]))[:, 4].any()
    assert state["teaching"]["trail"]["rewards"].any()
    assert state["teaching"].keys() == {
        "answers",
        "trail",
        "accuracy",
    }  # agent and replay are kept once


def test_the_critics_updates_after_a_reset_are_as_many_as_set(tmp_path):
    """With `utd=2`: 4 at the reset, which begins the optimiser anew, and 2 at each of the 60 steps behind."""
    cfg = job(tmp_path)
    cfg = replace(cfg, algo=replace(cfg.algo, utd=2, reset_updates=4))
    count = state_of(run(cfg))["agent"]["critic_optimizer"]["count"]
    assert count == 4 + 2 * 60


def test_a_person_answers_while_training_waits_and_a_stopped_run_finds_the_answers(
    tmp_path, monkeypatch
):
    servers = []

    class Answering(person.Server):
        def __init__(self, session, *rest):
            super().__init__(session, *rest)
            servers.append(self)
            threading.Thread(target=self.reply, daemon=True).start()

        def reply(self):
            while self.session.current() is not None:
                self.answer(self.session.current(), "left" if len(servers) == 1 else "skip")
                time.sleep(0.01)

    monkeypatch.setattr(person, "Server", Answering)
    monkeypatch.setattr(person.webbrowser, "open", lambda address: None)
    cfg = job(tmp_path, {"teacher": "person", "budget": 8}, seeds=[0])
    folder = run(cfg, [0], stop=25)
    kept = label_session.read(folder / "answers-0.npz")
    assert kept["labels"].tolist() == [0.0] * 4
    run(cfg, [0])
    state = state_of(folder)["teaching"]["answers"]
    assert len(servers) == 2 and state["count"].tolist() == [4] and int(state["asked"]) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 20}, "steps=20 algo.explore_steps=10"),
        ({"queries": {"teacher": "person"}, "seeds": [0, 1]}, "algo.queries.teacher=person 2"),
        ({"queries": {"budget": 0}}, "algo.queries.budget=0"),
        ({"queries": {"length": 300}}, "algo.queries.length=300"),
        ({"queries": {"skip": 0.1}}, "algo.queries.skip .equal seed 0"),
    ],
)
def test_what_cannot_be_asked_raises_an_error(tmp_path, changes, words):
    with refused(words):
        run(job(tmp_path, **changes))


@pytest.mark.parametrize("setting", [{"seed": 0}, {"stop_accuracy": 0.9}])
def test_settings_of_offline_labels_are_refused(setting):
    with refused("algo.reward.seed .stop_accuracy .steps algo.queries.epochs"):
        pebble.Config(reward=Markov(**{"stop_accuracy": 1.0, "seed": None} | setting))


def test_a_labeller_who_answers_nothing_raises_an_error_when_the_budget_is_spent(
    tmp_path, monkeypatch
):
    skipped = lambda cfg, questions, *_: np.full(questions.rewards.shape[:2], np.nan)  # noqa: E731
    monkeypatch.setattr(asking, "answered", skipped)
    with refused("9 algo.queries.budget algo.queries.skip"):
        run(job(tmp_path))
