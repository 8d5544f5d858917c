"""Rankings of K segments: their likelihood, teachers, files, labellers, sessions, the page, and a run."""

import itertools
import json
import threading

import numpy as np
import pytest
import torch
from small import random_dataset
from test_label import browser, request, until  # noqa: F401
from wording import refused

from corerl.cli import main
from corerl.data.tasks import resolve
from corerl.preferences import label_session, loading, readers, show, sources, teachers
from corerl.preferences.buffer import PairBuffer
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.label_pictures import Pictures
from corerl.preferences.label_server import Server
from corerl.preferences.label_session import Session
from corerl.preferences.reward_models import _ranking_loss, preference_loss
from corerl.preferences.sources import Preferences

DATA = random_dataset(300)
RETURNS = lambda compared: compared.segments(compared.rewards).sum(-1)  # noqa: E731


def taught(**own) -> Comparisons:
    return teachers.teach(DATA, Preferences(**({"pairs": 40, "length": 8, "ranked": 4} | own)))


def test_the_loss_by_hand():
    """Scores 1, 0, -1: minus the logs of e / (e + 1 + 1/e) and 1 / (1 + 1/e)."""
    loss, accuracy = preference_loss(torch.tensor([[1.0, 0.0, -1.0]]), torch.zeros(1))
    e = np.e
    assert float(loss) == pytest.approx(-np.log(e / (e + 1 + 1 / e)) - np.log(1 / (1 + 1 / e)))
    assert accuracy == 1.0
    _, accuracy = preference_loss(torch.tensor([[0.0, 1.0, -1.0]]), torch.zeros(1))
    assert float(accuracy) == pytest.approx(2 / 3)


def test_the_likelihoods_of_all_orders_sum_to_one():
    scores = torch.randn(4, dtype=torch.float64)
    orders = torch.tensor(list(itertools.permutations(range(4))))
    loss = torch.stack([_ranking_loss(scores[order][None])[0] for order in orders])
    assert float(torch.exp(-loss).sum()) == pytest.approx(1.0)


def test_a_ranking_of_two_is_a_pair_whose_first_is_preferred():
    scores = torch.randn(3, 5, 2, dtype=torch.float64)
    found = _ranking_loss(scores), preference_loss(scores, torch.zeros(3, 5, dtype=torch.float64))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_an_oracle_ranks_by_the_return_and_asks_the_same_of_everybody():
    compared = taught()
    returns = RETURNS(compared)
    assert compared.size == 4 and (np.diff(returns, axis=1) <= 0).all()
    asked = teachers.questions(DATA, Preferences(length=8, ranked=4), 40)
    assert (np.sort(asked, 1) == np.sort(compared.starts, 1)).all()
    assert (asked != compared.starts).any(), "questions must not show the order"
    assert compared.source == "teacher(ranked=4)" and not compared.labels.any()


def test_a_noisy_teacher_ranks_by_plackett_and_luce():
    """The first place of each is won with the softmax of beta times the returns."""
    beta, many = 0.7, 4_000
    compared = taught(beta=beta, pairs=many, ranked=3)
    returns = RETURNS(compared).astype(np.float64)
    weights = np.exp(beta * (returns - returns.max(1, keepdims=True)))
    chance = weights / weights.sum(1, keepdims=True)
    # of each set of three, the winner's chance averages to its mean over winners
    expected = (chance**2).sum(1)
    wins = chance[:, 0]
    assert abs((wins - expected).mean()) < 4 * (wins - expected).std() / np.sqrt(many)
    assert (returns[:, 0] < returns.max(1)).mean() > 0.05


def test_rankings_split_into_their_pairs_with_their_labellers():
    starts, who = np.array([[0, 10, 20], [30, 20, 0]]), np.array(["ben", "anna"])
    compared = Comparisons.of_dataset(DATA, starts, 5, np.zeros(2), "us", who)
    assert compared.names == ("anna", "ben") and compared.labellers.tolist() == [1, 0]
    pairs = compared.pairs()
    assert pairs.starts.tolist() == [[0, 10], [0, 20], [10, 20], [30, 20], [30, 0], [20, 0]]
    assert not pairs.labels.any() and pairs.labellers.tolist() == [1, 1, 1, 0, 0, 0]
    assert pairs.pairs() is pairs and compared.first(1).labellers.tolist() == [1]


def test_a_file_keeps_rankings_and_labellers(tmp_path):
    compared = taught()
    names = np.where(np.arange(40) % 3, "anna", "ben")
    compared = Comparisons.of_dataset(DATA, compared.starts, 8, compared.labels, "us", names)
    readers.write(tmp_path / "x.npz", compared, DATA)
    found = readers.read_own(tmp_path / "x.npz", DATA)
    assert (found.starts == compared.starts).all()
    assert [found.names[i] for i in found.labellers] == names.tolist()


def test_an_algorithm_of_pairs_gets_pairs_and_a_reward_whole_rankings(monkeypatch):
    monkeypatch.setattr(sources, "load", lambda run, cfg: taught())
    sizes = [
        loading.comparisons(None, Preferences(split=split), 1.0, rankings).starts.shape
        for split, rankings in ((False, True), (True, True), (False, False))
    ]
    assert sizes == [(40, 4), (240, 2), (240, 2)]


def test_a_batch_holds_all_segments_in_their_order():
    compared = taught()
    batch = PairBuffer(compared, [0, 1], 6).sample()
    assert batch.observations.shape[:4] == (2, 6, 4, 8)
    found = {tuple(x) for x in batch.observations[:, :, :, 0].flatten(0, 1).flatten(1).tolist()}
    every = compared.segments(compared.observations)[:, :, 0].reshape(40, -1)
    assert found <= {tuple(x) for x in every.tolist()}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"ranked": 1}, "algo.preferences.ranked 1"),
        ({"ranked": 3, "epsilon": 0.1}, "algo.preferences.epsilon algo.preferences.ranked=3"),
        ({"ranked": 3, "source": "pt"}, "algo.preferences.ranked=3 algo.preferences.source=pt"),
    ],
)
def test_settings_that_do_not_fit_raise_an_error(own, words):
    with refused(words):
        Preferences(**own)


@pytest.mark.parametrize(
    ("labels", "labellers", "words"),
    [([0.0, 1.0], None, "ranking 1 label"), ([0.0, 0.0], ["anna"], "labellers (2,)")],
)
def test_rankings_that_do_not_fit_raise_an_error(labels, labellers, words):
    starts = np.array([[0, 10, 20], [30, 20, 0]])
    with refused(words):
        Comparisons.of_dataset(DATA, starts, 5, np.array(labels), "us", labellers)


def test_the_command_shows_rankings(capsys):
    words = ["corerl/pendulum", "--ranked", "3", "--pairs", "20", "--length", "16"]
    assert main(["data", "preferences", *words]) == 0
    shown = capsys.readouterr().out
    assert "20 of 3 segments of 16 steps, 60 pairs" in shown and "100.0 %" in shown
    assert show.facts(taught())["rankings"].endswith("240 pairs")


# A person's.


def session(path, **other) -> Session:
    return Session(
        DATA, path, **({"pairs": 5, "length": 8, "seed": 0, "labeller": "a", "ranked": 3} | other)
    )


def test_an_order_is_kept_taken_back_and_found_again(tmp_path):
    asked = session(tmp_path / "x.npz")
    asked.answer(0, 0.0, [2, 0, 1])
    asked.answer(1, -1.0)
    asked.answer(2, 0.0, [0, 1, 2])
    asked.undo()
    again = session(tmp_path / "x.npz")
    assert again.current() == 2 and again.ranks[0].tolist() == [2, 0, 1]
    file = label_session.read(tmp_path / "x.npz")
    assert file["starts"].tolist() == [asked.pairs[0][[2, 0, 1]].tolist()]
    found = readers.read_own(tmp_path / "x.npz", DATA)
    assert found.size == 3 and found.names == ("a",)
    with refused("[0, 1] 3"):
        asked.answer(3, 0.0, [0, 1])
    with refused("--ranked 3"):
        session(tmp_path / "x.npz", ranked=2)


def test_agreement_of_orders_is_that_of_their_pairs(tmp_path):
    one, other = session(tmp_path / "x.npz"), session(tmp_path / "y.npz", labeller="b")
    one.answer(0, 0.0, [0, 1, 2])
    other.answer(0, 0.0, [0, 2, 1])
    files = [label_session.read(asked.path) for asked in (one, other)]
    found = label_session.agreement(*files)
    assert (found["pairs"], found["same"]) == (3, pytest.approx(2 / 3))
    returns = RETURNS(readers.read_own(one.path, DATA))[0]
    right = np.mean([a > b for a, b in itertools.combinations(returns, 2)])
    assert label_session.with_teacher(files[0], DATA)["same"] == pytest.approx(right)


@pytest.fixture
def served(tmp_path):
    asked = session(tmp_path / "x.npz")
    made = Server(asked, lambda: Pictures(resolve("risk/pointmass"), DATA), "corerl train")
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_an_order_over_the_wire(served):
    assert len(request(f"{served.address}pair/0")) == 3
    state = request(f"{served.address}answer", {"pair": 0, "answer": [1, 2, 0]})
    assert (state["current"], state["size"]) == (1, 3)
    for wrong in ([0, 1], [0, 1, 1], "left", ["a", 0, 1]):
        with pytest.raises(Exception, match="400"):
            request(f"{served.address}answer", {"pair": 1, "answer": wrong})
    assert request(f"{served.address}answer", {"pair": 1, "answer": "skip"})["skipped"] == 1


def test_a_person_orders_three_with_keys_and_clicks(browser, served):  # noqa: F811
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    def at(pair) -> None:
        until(browser, f"document.body.dataset.pair === '{pair}'")

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    browser.get(served.address)
    at(0)
    assert browser.find_element(By.ID, "question").text == "Order them, the best first"
    press("2")
    press("z")  # takes the choice back, no answer
    press("3")
    press("1")
    at(1)
    browser.find_element(By.ID, "segment2").click()
    browser.find_element(By.ID, "segment1").click()
    at(2)
    press("s")
    at(3)
    press("z")
    at(2)
    assert served.session.ranks[:3].tolist() == [[2, 0, 1], [1, 0, 2], [-1, -1, -1]]
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in severe if "favicon" not in entry["message"]], json.dumps(severe)
