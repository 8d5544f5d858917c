"""Labelling: nothing is lost, the page is for this machine alone, and it works in a real browser."""

import json
import shlex
import shutil
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from small import random_dataset
from wording import refused, says

from corerl.cli import main
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.launch.composition import cells
from corerl.preferences import label_session, sources, teachers
from corerl.preferences.label_pictures import Pictures, placer
from corerl.preferences.label_server import Server
from corerl.preferences.label_session import Session
from corerl.preferences.sources import Preferences

DATA, PENDULUM = random_dataset(300), resolve("corerl/pendulum")
COMMAND = "corerl train data.action_low=-2 algo.preferences.source=file"


def session(path, pairs: int = 5, **other) -> Session:
    return Session(
        DATA, path, **({"pairs": pairs, "length": 8, "seed": 0, "labeller": "anna"} | other)
    )


# The session.


def test_every_answer_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "new" / "labels.npz"
    asked = session(path)
    said = {0: 0.0, 1: 1.0, 2: -1.0, 3: 0.5}
    for pair, label in said.items():
        assert asked.current() == pair
        asked.answer(pair, label)
        kept = [p for p, l in said.items() if p <= pair and l >= 0]
        found = sources.find(
            PENDULUM, lambda: DATA, Preferences(source="file", path=str(path), length=8)
        )
        np.testing.assert_array_equal(found.starts, asked.pairs[kept])
        np.testing.assert_array_equal(found.labels, [said[p] for p in kept])
    assert found.source == "person(anna)" and found.length == 8
    assert asked.state()["answered"] == 3 and asked.state()["skipped"] == 1


def test_a_later_session_goes_on_and_can_ask_for_more(tmp_path):
    first = session(tmp_path / "x.npz")
    for pair, label in ((0, 1.0), (1, -1.0)):
        first.shown(pair)
        first.answer(pair, label)
    later = session(tmp_path / "x.npz", pairs=9, labeller="")
    assert (later.current(), later.order, later.labeller) == (2, [0, 1], "anna")
    assert later.seconds[:5].tolist() == first.seconds.tolist() and first.seconds[:2].min() > 0
    np.testing.assert_array_equal(later.pairs[:5], first.pairs)
    assert later.undo() == 1 and later.undo() == 0 and later.undo() is None
    assert np.isnan(label_session.read(tmp_path / "x.npz")["answers"]).all()


def test_a_name_may_be_told_later(tmp_path):
    session(tmp_path / "x.npz", labeller="").answer(0, 1.0)
    session(tmp_path / "x.npz", labeller="anna").answer(1, 0.0)
    assert str(label_session.read(tmp_path / "x.npz")["source"]) == "person(anna)"


def test_what_cannot_be_saved_is_neither_answered_nor_taken_back(tmp_path, monkeypatch):
    asked = session(tmp_path / "x.npz")
    asked.answer(0, 1.0)

    def full(self):
        raise CorerlError("The disk is full")

    monkeypatch.setattr(Session, "save", full)
    for change in (asked.undo, lambda: asked.answer(1, 0.0)):
        with refused("disk"):
            change()
        assert asked.order == [0] and asked.answers[0] == 1 and np.isnan(asked.answers[1:]).all()


def test_pairs_are_those_that_a_teacher_judges(tmp_path):
    taught = teachers.teach(DATA, Preferences(pairs=5, length=8))
    np.testing.assert_array_equal(session(tmp_path / "x.npz").pairs, taught.starts)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"length": 9}, "8 steps"),
        ({"seed": 1}, "pairs"),
        ({"pairs": 4}, "pairs"),
        ({"labeller": "ben"}, "--labeller"),
    ],
)
def test_another_question_is_no_continuation(tmp_path, other, words):
    session(tmp_path / "x.npz").answer(0, 1.0)
    with refused(words):
        session(tmp_path / "x.npz", **other)


def test_other_data_or_another_file_is_refused(tmp_path):
    session(tmp_path / "x.npz").answer(0, 1.0)
    with refused("data"):
        Session(random_dataset(seed=1), tmp_path / "x.npz", 5, 8, 0, "")
    np.savez(tmp_path / "y.npz", starts=0)
    with refused("corerl label"):
        session(tmp_path / "y.npz")
    parts = label_session.read(tmp_path / "x.npz")
    parts.pop("sha256")
    np.savez(tmp_path / "z.npz", **parts)
    with refused("sha256"):
        label_session.read(tmp_path / "z.npz")


def test_a_second_session_on_a_file_is_refused_until_the_first_ends(tmp_path, monkeypatch):
    words = ["label", "corerl/pendulum", "--pairs", "2", "--no-browser"]
    words += ["--out", str(tmp_path / "new" / "x.npz")]
    ended = []

    def second(self, poll_interval):
        assert main(words) == 2
        ended.append(self.session.path)

    monkeypatch.setattr(Server, "serve_forever", second)
    assert main(words) == 0 and len(ended) == 1


@pytest.mark.parametrize("length", [20, 64])
def test_the_command_that_is_printed_and_shown_trains(tmp_path, monkeypatch, capsys, length):
    own, shown = tmp_path / "own data.csv", []
    data = resolve("corerl/pendulum").load()
    rows = np.column_stack([data.observations, data.actions, data.rewards])[:600]
    ends = np.arange(1, 601) % 200 == 0
    table = np.column_stack([rows, ends])
    header = "observations_0,observations_1,observations_2,actions_0,rewards,timeouts"
    np.savetxt(own, table, delimiter=",", header=header, comments="")
    settings = ["data.action_low=-2", "data.action_high=2"]

    def served(self, poll_interval):
        self.answer(0, "left")
        shown.append(self.state()["command"])

    monkeypatch.setattr(Server, "serve_forever", served)
    words = ["label", f"file/{own}", *settings, "--pairs", "2", "--no-browser"]
    out = str(tmp_path / "my labels.npz")
    assert main([*words, "--length", str(length), "--out", out]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert shown == [printed]
    (cell,) = cells(shlex.split(printed)[2:])
    assert cell.task == f"file/{own}" and cell.data.action_high == 2
    assert cell.algo.preferences.path == out
    assert cell.algo.crop == (None if length < 64 else 64)


def test_seconds_count_from_when_a_pair_is_shown(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(label_session.time, "monotonic", lambda: clock[0])
    asked = session(tmp_path / "x.npz")
    for pair, waited in enumerate((3.0, 5.0)):
        clock[0] += 1000  # nobody looks
        asked.shown(pair)
        clock[0] += waited
        asked.answer(pair, 0.0)
    asked.undo()
    clock[0] += 1000
    asked.shown(1)
    clock[0] += 7
    asked.answer(1, 1.0)
    assert label_session.read(tmp_path / "x.npz")["seconds"][:2].tolist() == [3, 7]


# Agreement, by hand: of ten pairs, 6 equal answers; by chance 0.5 * 0.4 + 0.3 * 0.4 + 0.2 * 0.2 = 0.36.

ONE = [0, 0, 0, 0, 0, 1, 1, 1, 0.5, 0.5]
TWO = [0, 0, 0, 1, 0.5, 1, 1, 0, 0.5, 1]


def labels(values, first: int = 0) -> dict:
    starts = np.arange(first, first + len(values))
    return {"starts": np.stack([starts, starts + 1], 1), "labels": np.array(values), "length": 1}


def test_agreement_is_cohens_kappa():
    found = label_session.agreement(labels(ONE), labels(TWO))
    assert found["pairs"] == 10 and found["same"] == pytest.approx(0.6)
    assert found["kappa"] == pytest.approx((0.6 - 0.36) / (1 - 0.36))
    assert found["opposed"] == pytest.approx(0.2)


def test_agreement_is_over_the_pairs_that_both_answered():
    shifted = label_session.agreement(labels(ONE), labels(TWO[4:], first=4))
    assert shifted["pairs"] == 6 and shifted["same"] == pytest.approx(3 / 6)
    with refused("pair"):
        label_session.agreement(labels(ONE), labels(TWO, first=50))


def test_two_who_always_say_the_same_one_thing_have_no_kappa():
    found = label_session.agreement(labels([1, 1]), labels([1, 1]))
    assert found["same"] == 1 and np.isnan(found["kappa"])


def test_files_of_one_labeller_and_of_nobody_are_told_apart(tmp_path):
    paths = [tmp_path / f"{name}.npz" for name in ("one", "two", "three")]
    for path, name in zip(paths, ("anna", "anna", ""), strict=True):
        session(path, labeller=name).answer(0, 1.0)
    assert list(label_session.by_name(paths)) == ["anna", str(paths[1]), "three"]


def test_segments_of_other_lengths_are_not_compared():
    with refused("1 2 steps"):
        label_session.agreement(labels(ONE), labels(TWO) | {"length": 2})


def test_agreement_with_the_true_rewards():
    data = SimpleNamespace(rewards=np.array([1.0, 2.0, 2.0, 0.0]))
    found = label_session.with_teacher(labels([1, 1, 0]), data)  # rewards say 1, 0.5, 0
    assert found["same"] == pytest.approx(2 / 3) and found["opposed"] == 0


def test_agreement_from_the_command_line(tmp_path, capsys):
    data = resolve("corerl/pendulum").load()
    for name, said in (("anna", (1.0, 0.0, 0.5)), ("ben", (1.0, 1.0, 0.5))):
        asked = Session(data, tmp_path / f"{name}.npz", 3, 64, 0, name)
        for pair, label in enumerate(said):
            asked.answer(pair, label)
    files = [str(tmp_path / f"{name}.npz") for name in ("anna", "ben")]
    assert main(["label", "corerl/pendulum", "--agreement", *files]) == 0
    text = capsys.readouterr().out
    assert "anna, ben" in text
    assert "67%" in text
    says(text, "rewards")
    session(tmp_path / "other.npz", labeller="eve").answer(0, 1.0)
    other = [*files, str(tmp_path / "other.npz")]
    assert main(["label", "corerl/pendulum", "--agreement", *other]) == 2
    says(capsys.readouterr().err, "eve")


# Pictures.


def test_a_pendulum_is_drawn_in_the_observed_states():
    pytest.importorskip("pygame")
    data = resolve("corerl/pendulum").load()
    pictures = Pictures(resolve("corerl/pendulum"), data)
    assert not pictures.why
    one, again = (pictures.segment(0, 3)["frames"] for _ in range(2))
    assert one == again and len(one) == 3 and len(set(one)) > 1
    env = resolve("corerl/pendulum").make_env()
    env.reset(seed=0)
    put = placer(env)
    put(data.observations[7], data.actions[7], 0)
    assert env.unwrapped.last_u == pytest.approx(2 * data.actions[7, 0])  # the arrow that is drawn
    following = env.step(data.actions[7])[0]
    np.testing.assert_allclose(following, data.next_observations[7], atol=1e-5)


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4"])
def test_a_robot_is_put_into_the_state_that_it_observed(name):
    env = resolve(f"gym/{name}").make_env()
    env.reset(seed=0)
    env.action_space.seed(0)
    seen = [env.step(env.action_space.sample())[0].astype(np.float32) for _ in range(3)]
    put = placer(env)
    for step, observation in enumerate(seen):
        put(observation, np.zeros(env.action_space.shape), step)
        np.testing.assert_allclose(env.unwrapped._get_obs(), observation, atol=1e-5)
    assert env.unwrapped.data.qpos[0] != 0  # it has moved on


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5"])
def test_a_robot_that_observes_all_positions_is_put_there(name):
    env = gymnasium.make(name, exclude_current_positions_from_observation=False)
    env.reset(seed=0)
    seen = env.step(np.ones(env.action_space.shape))[0]
    positions = env.unwrapped.data.qpos.copy()
    env.reset(seed=1)
    placer(env)(seen, np.zeros(env.action_space.shape), 0)
    np.testing.assert_allclose(env.unwrapped.data.qpos, positions, atol=1e-6)


def test_what_cannot_be_drawn_is_curves_on_one_scale():
    pictures = Pictures(resolve("risk/pointmass"), DATA)
    says(pictures.why, "observations")
    low, high = DATA.observations.min(0), DATA.observations.max(0)
    for start in (10, 200):
        curves = pictures.segment(start, 5)["curves"]
        rows = slice(start, start + 5)
        expected = (DATA.observations[rows] - low) / (high - low)
        np.testing.assert_allclose(curves["observations"], expected, atol=1e-3)
        np.testing.assert_allclose(curves["actions"], (DATA.actions[rows] + 1) / 2, atol=1e-3)


# The server.


@pytest.fixture
def served(tmp_path):
    """A running server, without pictures, and its session."""
    asked = session(tmp_path / "x.npz")
    made = Server(asked, lambda: Pictures(resolve("risk/pointmass"), DATA), COMMAND)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def request(address: str, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    asked = urllib.request.Request(address, data, kind | headers)
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return (
            json.loads(answer.read()) if "json" in answer.headers["Content-Type"] else answer.read()
        )


def test_answers_and_undo_over_the_wire(served):
    assert b"<title>corerl label" in request(served.address)
    state = request(f"{served.address}state")
    assert state["current"] == 0 and not state["can_undo"]
    state = request(f"{served.address}answer", {"pair": 0, "answer": "right"})
    assert state["current"] == 1 and state["can_undo"]
    assert label_session.read(served.session.path)["labels"].tolist() == [1.0]
    assert request(f"{served.address}undo", {})["current"] == 0
    assert len(request(f"{served.address}pair/4")) == 2


def test_only_this_machine_and_only_this_page(served):
    assert served.server_address[0] == "127.0.0.1"
    state, outside = f"{served.address}state", served.address.replace(served.token, "other")
    refused = [
        (state, None, {"Host": "evil.example"}),  # a name of another site that leads here
        (f"{outside}state", None, {}),
        (f"{served.address}pair/5", None, {}),
        (f"{served.address}../state", None, {}),
        (f"{served.address}answer", {"pair": 0, "answer": "best"}, {}),
        (f"{served.address}answer", [1], {}),
        *(
            (f"{served.address}answer", {"pair": pair, "answer": "left"}, {})
            for pair in (float("inf"), 4.9, True, "0", -1, 5, 10**30)
        ),
        (f"{served.address}pair/{'9' * 5_000}", None, {}),
        (f"{served.address}pair/-1", None, {}),
        (f"{served.address}answer", {"pair": 0, "answer": "left"}, {"Content-Type": "text/plain"}),
        (f"{served.address}answer", {"pair": "x" * 20_000, "answer": "left"}, {}),
    ]
    for address, body, headers in refused:
        with pytest.raises(urllib.error.HTTPError) as error:
            request(address, body, **headers)
        assert error.value.code in (400, 404), address
    assert served.session.current() == 0 and not served.session.path.exists()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_there_is_not_is_told(tmp_path, port):
    pictures = SimpleNamespace(close=lambda: None)
    with refused(f"{port}"):
        Server(session(tmp_path / "x.npz"), lambda: pictures, COMMAND, port)


def test_a_page_that_is_closed_is_no_error(served, capsys):
    for error, reported in ((BrokenPipeError, False), (ZeroDivisionError, True)):
        try:
            raise error
        except error:
            served.handle_error(None, ("127.0.0.1", 1))
        assert ("Traceback" in capsys.readouterr().err) == reported


def test_a_full_disk_is_told_and_the_pair_asked_again(served, monkeypatch):
    def full(self):
        raise CorerlError("The disk is full")

    monkeypatch.setattr(Session, "save", full)
    with pytest.raises(urllib.error.HTTPError) as error:
        request(f"{served.address}answer", {"pair": 0, "answer": "left"})
    says(error.value.read().decode(), "disk")
    assert served.session.current() == 0


def test_a_pair_that_cannot_be_drawn_is_told_and_drawn_when_asked_again(served, monkeypatch):
    def broken(*_):
        raise RuntimeError("no context")

    with monkeypatch.context() as patch:
        patch.setattr(served._pictures, "segment", broken)
        with pytest.raises(urllib.error.HTTPError) as error:
            request(f"{served.address}pair/2")
        says(error.value.read().decode(), "2 RuntimeError")
    assert len(request(f"{served.address}pair/2")) == 2


def test_seconds_count_from_a_pairs_pictures(served):
    shown = []
    served.session.shown = shown.append
    request(f"{served.address}pair/0")  # draws pair 1 too, which nobody sees yet
    assert shown == [0]


# The page.


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    made = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield made
    made.quit()


def until(browser, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda b: b.execute_script(f"return {condition}"))


def test_a_person_labels_with_keys_undoes_and_comes_back(browser, served):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def at(pair) -> None:
        until(browser, f"document.body.dataset.pair === '{pair}'")

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    browser.get(served.address)
    at(0)
    canvas = "document.querySelector('#left canvas').getContext('2d')"
    until(browser, f"{canvas}.getImageData(0, 0, 440, 330).data.some(x => x)")
    before = browser.execute_script("return step")
    until(browser, f"step !== {before}")  # it plays
    press(Keys.ARROW_LEFT)
    at(1)
    press(Keys.ARROW_RIGHT)
    at(2)
    press("s")
    at(3)
    press("z")
    at(2)
    press(Keys.ARROW_DOWN)
    at(3)
    assert browser.find_element(By.ID, "count").text == "3 of 5"
    found = label_session.read(served.session.path)
    assert found["labels"].tolist() == [0.0, 1.0, 0.5] and found["seconds"][:3].min() > 0

    browser.get("about:blank")  # closed, and opened again
    browser.get(served.address)
    at(3)
    browser.find_element(By.ID, "left").click()
    at(4)
    browser.find_element(By.CSS_SELECTOR, "[data-answer=right]").click()
    at("none")
    assert browser.find_element(By.ID, "command").text == COMMAND
    assert label_session.read(served.session.path)["labels"].tolist() == [0.0, 1.0, 0.5, 0.0, 1.0]
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in severe if "favicon" not in entry["message"]], severe


DROPS = """
const [dropped] = arguments, real = window.fetch;
window.fetch = (path, ...more) => {
  if (path !== dropped) return real(path, ...more);
  window.fetch = real;
  return Promise.reject(new TypeError("Failed to fetch"));
};
"""


@pytest.mark.parametrize(
    ("dropped", "words", "kept"),
    [
        ("pair/1", "Saved", [0.0, 1.0]),
        ("answer", "not saved", [1.0]),
    ],
)
def test_what_was_not_shown_is_not_answered(browser, served, dropped, words, kept):
    """The connection drops once: the next key brings the pictures, and only the one after it answers."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    browser.get(served.address)
    until(browser, "pair !== null")
    browser.execute_script(DROPS, dropped)
    press(Keys.ARROW_LEFT)
    until(browser, f"document.getElementById('message').textContent.includes('{words}')")
    assert not browser.execute_script("return document.querySelectorAll('.side *').length")
    press(Keys.ARROW_RIGHT)
    until(browser, "pair !== null && !busy")
    assert browser.execute_script("return document.getElementById('message').className") == ""
    assert served.session.current() == len(kept) - 1
    press(Keys.ARROW_RIGHT)
    until(browser, f"state && state.current === {len(kept)} && pair !== null")
    assert label_session.read(served.session.path)["labels"].tolist() == kept


def test_a_key_before_the_first_pictures_answers_nothing(browser, served, monkeypatch):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    drawn, draw = threading.Event(), served._pictures.segment
    monkeypatch.setattr(served._pictures, "segment", lambda *where: drawn.wait(20) and draw(*where))
    browser.get(served.address)
    until(browser, "state !== null")
    ActionChains(browser).send_keys(Keys.ARROW_LEFT).perform()
    drawn.set()
    until(browser, "pair !== null && !busy")
    assert served.session.current() == 0 and not served.session.path.exists()


def test_pictures_reach_the_page(browser, tmp_path):
    pytest.importorskip("pygame")
    task = resolve("corerl/pendulum")
    data = task.load()
    asked = Session(data, tmp_path / "p.npz", 2, 4, 0, "")
    made = Server(asked, lambda: Pictures(task, data), COMMAND)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    try:
        browser.get(made.address)
        until(browser, "[...document.querySelectorAll('.side img')].length === 2")
        until(
            browser,
            "[...document.querySelectorAll('.side img')].every(i => i.naturalWidth === 320)",
        )
        browser.save_screenshot(str(tmp_path / "page.png"))
    finally:
        made.shutdown()
        made.server_close()
