"""A setting is held to what it declares, in the words of the command line."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from wording import refused

from corerl.config import Settings, added, at_least, group, one_of, positive, within
from corerl.older_settings import renamed

ROOT = Path(__file__).parents[1]


@dataclass
class Inner(Settings):
    prefix: ClassVar[str] = "algo.inner."

    share: float | None = within(None, "[0, 1)")


@dataclass
class Outer(Settings):
    lr: float = positive(1e-3)
    layers: int = at_least(0, 2)
    atoms: int = at_least(2, 51)
    limit: float = within(1.0, "(0, inf]")
    free: float = 0.0
    order: str = one_of("first", "second")
    flag: bool = False
    widths: list[int] = field(default_factory=lambda: [64])
    bandwidths: list[float] = field(default_factory=lambda: [1.0])
    late: float = added(positive(1.0))
    gap_min: float | None = None
    gap_max: float | None = -1.0
    inner: Inner = group(Inner, share=0.5)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lr": 0.0}, "algo.lr=0.0"),
        ({"lr": float("nan")}, "algo.lr=nan"),
        ({"lr": float("inf")}, "algo.lr=inf"),
        ({"layers": -1}, "algo.layers=-1"),
        ({"atoms": 1}, "algo.atoms=1 2"),
        ({"limit": 0}, "algo.limit=0 0 inf"),
        ({"free": float("nan")}, "algo.free=nan"),
        ({"free": -float("inf")}, "algo.free=-inf"),
        ({"free": -1e30}, "algo.free=-1e+30 -1e+18"),
        ({"lr": 1e30}, "algo.lr=1e+30 10"),
        ({"layers": 10**18}, f"algo.layers={10**18} 1,000"),
        ({"atoms": 10**18}, f"algo.atoms={10**18} 1,000,000"),
        ({"widths": [64, 10**18]}, f"algo.widths=[64 {10**18} 16,384"),
        ({"late": 0.0}, "algo.late=0.0"),
        ({"gap_min": 0.0}, "algo.gap_min=0.0 algo.gap_max=-1.0"),
        ({"order": "third"}, "algo.order=third"),
    ],
)
def test_what_is_outside_is_refused(given, problem):
    with refused(f"{problem}"):
        Outer(**given)


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan")])
def test_settings_inside_settings_have_a_prefix_of_their_own(share):
    with refused(f"algo.inner.share={share} 0 1"):
        Inner(share=share)


def test_what_lies_inside_is_taken():
    cfg = Outer(lr=10, free=-1e18, layers=0, atoms=2, limit=float("inf"), order="second", flag=True)
    assert (cfg.order, cfg.inner.share) == ("second", 0.5)
    assert Outer(gap_min=-1.0).gap_min == -1.0 and Outer(gap_min=2.0, gap_max=None).gap_max is None
    assert Outer(bandwidths=[1e9]).bandwidths == [1e9]
    assert Inner().share is None and Inner(share=0.0).share == 0.0


def test_the_page_on_own_algorithms_names_all_that_corerl_asks():
    page = (ROOT / "docs" / "own_algorithm.md").read_text(encoding="utf-8")
    asked = {name for name in vars(Settings) if name[0] != "_"} - {"prefix"}
    assert asked == {
        name for name in asked if re.search(rf"^\| .*`{name}(\(\))?`.* \|", page, re.M)
    }


def test_nothing_else_is_asked_of_an_algorithms_settings():
    sniffs = re.compile(r'(get|has)attr\(([\w.]+\.)?algo, "')
    files = (ROOT / "corerl").rglob("*.py")
    found = {path.name for path in files if sniffs.search(path.read_text(encoding="utf-8"))}
    assert found == {"load.py"}  # of a checkpoint of corerl 0.1, which tells no sources


def test_settings_of_an_older_run_get_the_names_of_today():
    old = {"task": "t", "algo": {"name": "rlpd", "asked": 2, "online": {"asked": 3}}}
    new = {"task": "t", "algo": {"name": "rlpd", "critic_subsample": 2, "online": {"asked": 3}}}
    assert renamed(old) == new == renamed(new)
