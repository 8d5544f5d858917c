from itertools import combinations

import pytest

from corerl.report.colours import OWNERS, PALETTE, kind, looks


def test_twenty_algorithms_have_colours_of_their_own():
    assert len(set(PALETTE)) == len(OWNERS) == len(set(OWNERS)) == 20
    assert [looks(OWNERS)[name]["color"] for name in OWNERS] == list(PALETTE)
    strangers = [f"algorithm {i}" for i in range(12)]
    mixed = [*OWNERS[:8], *strangers]
    assert len({look["color"] for look in looks(mixed).values()}) == 20


@pytest.mark.parametrize("others", [["IQL"], ["Mine", "BC"], list(OWNERS), ["O-RAAC", "A", "B"]])
def test_a_colour_belongs_to_its_algorithm_in_every_report(others):
    for name in ("IQL", "CQL", "WSRL"):
        assert looks([name, *others])[name] == looks([name])[name]


def test_a_stranger_keeps_its_colour_where_its_owner_is_away():
    assert looks(["Mine"])["Mine"] == looks(["Mine", "Yours"])["Mine"]
    assert looks(["B", "A"]) == looks(["A", "B"])


def test_configurations_share_a_colour_and_stay_apart():
    names = ["IQL", "IQL expectile=0.9", "IQL, wide", "IQL expectile=0.5", "IQL-2"]
    look = looks(names)
    assert [kind(name) for name in names] == ["IQL"] * 4 + ["IQL-2"]
    assert look["IQL"]["color"] == PALETTE[0]
    for a, b in combinations(names, 2):
        assert look[a] != look[b]


def test_more_than_twenty_differ_in_their_dash():
    look = looks([f"algorithm {i:02}" for i in range(60)])
    assert len({tuple(v.items()) for v in look.values()}) == 60
