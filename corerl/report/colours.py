"""The colour and dash of every algorithm: the same in every figure of every report."""

import re
import zlib
from collections.abc import Iterable

PALETTE = (
    # six of Okabe and Ito's; the rest are far from these and from each other in OKLab, also as people with
    # protanopia and deuteranopia see them, and stand out from white and from a dark page
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#900060", "#8400FC"),
    *("#605400", "#9078FC", "#CC0CA8", "#90606C", "#30CC6C", "#543C84", "#2430CC", "#D80048"),
    *("#8FA31E", "#FC84FC", "#8400A8", "#F024F0"),
)
OWNERS = (
    *("IQL", "CQL", "BC", "TD3+BC", "ReBRAC", "DT", "AWAC", "EDAC", "Cal-QL", "WSRL"),
    *("RLPD", "SAC", "MR.Q", "IPL", "P-IQL", "CPL", "DTR", "PT+IQL", "CODAC", "O-RAAC"),
)
"""Who has the palette's colours, in its order; others take those whose owner is not in the report."""
DASHES = ("-", "--", ":", "-.")
_SETTING = re.compile(r",? \S+=\S+| \[\w+\]")


def looks(algorithms: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns matplotlib's `color` and `linestyle` by name. Up to 20 algorithms have their own colour.

    Configurations of one algorithm (`IQL expectile=0.9`) share its colour and differ in shade and dash.
    """
    names = sorted(set(algorithms))
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind(name), []).append(name)
    places = _places(kinds)
    found = {}
    for of, members in kinds.items():
        color = PALETTE[places[of] % len(PALETTE)]
        for i, name in enumerate(members):
            dash = DASHES[(i + places[of] // len(PALETTE)) % len(DASHES)]
            found[name] = {"color": _shade(color, i), "linestyle": dash}
    return found


def kind(name: str) -> str:
    """Returns the algorithm of a label: `IQL` of `IQL expectile=0.9` and of `IQL, wide`."""
    known = [owner for owner in OWNERS if re.match(rf"{re.escape(owner)}(?=$|[ ,])", name)]
    return max(known, key=len) if known else _SETTING.sub("", name)


def _places(kinds: Iterable[str]) -> dict[str, int]:
    """Positions in the palette: owners have theirs, others their own by name or the next free one."""
    places = {of: OWNERS.index(of) for of in kinds if of in OWNERS}
    for of in sorted(set(kinds) - places.keys()):
        home, taken = zlib.crc32(of.encode()) % len(PALETTE), set(places.values())
        turns = [
            (home + i) % len(PALETTE) + lap * len(PALETTE) for lap in range(4) for i in range(20)
        ]
        places[of] = next((place for place in turns if place not in taken), home)
    return places


def _shade(color: str, i: int) -> str:
    """Returns the colour itself, then lighter and darker ones."""
    share, end = (0.0, 0) if i == 0 else (0.45 - 0.35 / (1 + i // 2), 255 * (i % 2))
    parts = [int(color[k : k + 2], 16) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(p + (end - p) * share):02X}" for p in parts)
