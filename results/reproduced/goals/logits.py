"""How many of CRL's logits lie below log 1e-6, where the published numbers' code has no gradient.

    python logits.py RUN SEED DATA.npz

Prints the share and the median of 20,000 rows of the data, at goals of their own later rows (as the policy
draws them) and at random ones.
"""

import sys

import numpy as np
import torch

from corerl.policies.load import load

FLOOR = np.log(1e-6)


def main(run: str, seed: int, path: str) -> None:
    critic = load(run, seed)._parts[0].act.__self__.critic
    data, rng = np.load(path), np.random.default_rng(0)
    states = torch.from_numpy(data["observations"]).float()
    ends = np.flatnonzero(data["terminals"])
    rows = rng.choice(np.flatnonzero(data["terminals"] == 0), 20_000)
    last, share = ends[np.searchsorted(ends, rows)], rng.random(len(rows))
    later = np.round((rows + 1) * share + last * (1 - share)).astype(int)
    first = torch.cat([states[rows], torch.from_numpy(data["actions"][rows]).float()], 1)
    for name, goals in (("later", later), ("random", rng.integers(0, len(states), len(rows)))):
        with torch.no_grad():
            logits = critic(first[None], states[goals][None]).amin(1)[0].numpy()
        print(
            f"{name}: below {FLOOR:.1f} {(logits < FLOOR).mean():.3f}, median {np.median(logits):.1f}"
        )


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
