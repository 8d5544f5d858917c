"""Holds MR.Q against its authors' own, unmodified classes, from equal weights on equal data.

    git clone https://github.com/facebookresearch/MRQ ../MRQ
    python results/reproduced/mrq/lockstep.py ../MRQ/MRQ --updates 200

Prints the largest difference of a weight after so many updates of encoders, values and policy in float64,
with targets copied every fifty, and what the two replays hold, may draw and return after 1,250 equal steps.
Their code asks a GPU for its memory, which is answered here.
"""

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from corerl.algos.mrq import MRQ, Config
from corerl.buffers.prioritized import Pieces, PrioritizedReplay
from corerl.nn import networks
from corerl.nn.learner import Spec

OBSERVATIONS, ACTIONS, BATCH, WIDTH = 17, 6, 64, 32
SIZES = dict.fromkeys(("zs_dim", "zsa_dim", "enc_hdim", "value_hdim", "policy_hdim"), WIDTH)
PERIOD, EPISODE, STEPS, ROOM = 50, 100, 1250, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the folder of their MRQ.py")
    parser.add_argument("--updates", type=int, default=200)
    args = parser.parse_args()
    sys.path.insert(0, str(args.path))
    torch.cuda.mem_get_info = lambda *_: (10**12, 10**12)
    replays(importlib.import_module("buffer"))
    torch.set_default_dtype(torch.float64)
    updates(importlib.import_module("MRQ"), args.updates)


# ---------------------------------------------------------------------------------------- updates


def updates(theirs, count: int) -> None:
    """Prints how far apart the networks are after `count` updates."""
    settings = {**SIZES, "za_dim": WIDTH // 2, "batch_size": BATCH, "buffer_size": ROOM}
    their = theirs.Agent((OBSERVATIONS,), ACTIONS, 1.0, False, False, "cpu", 1, settings)
    cfg = Config(hidden_width=WIDTH, action_width=WIDTH // 2, batch_size=BATCH)
    our = MRQ(cfg, Spec(OBSERVATIONS, ACTIONS, [torch.Generator().manual_seed(0)], mode="off"))
    layers = paired(their, our)
    with torch.no_grad():
        for own, others in layers:
            own.weight.copy_(torch.stack([x.weight.T for x in others]).view_as(own.weight))
            own.bias.copy_(torch.stack([x.bias for x in others]).view_as(own.bias))
    begun = [own.weight.detach().clone() for own, _ in layers]
    rng = np.random.default_rng(0)
    priorities = 0.0
    for number in range(count):
        if number % PERIOD == 0:
            copy(their, our, 0.3 + number / 500)
            for _ in range(PERIOD):
                represent(their, our, drawn(rng, cfg.horizon))
        priorities = max(priorities, update(theirs, their, our, drawn(rng, cfg.n_step), rng))
    weights = max(apart(own, others) for own, others in layers)
    moved = max(
        (own.weight - x).abs().max().item() for (own, _), x in zip(layers, begun, strict=True)
    )
    print(
        f"after {count} updates, which moved weights by up to {moved:.2g}: weights differ by "
        f"{weights:.1e}, priorities by {priorities:.1e}"
    )


def paired(their, our: MRQ) -> list[tuple[networks.Linear, list[nn.Linear]]]:
    """Returns each of our layers with theirs: one, or the two of twin critics."""
    encoder = their.encoder
    single = [*linear(encoder.zs_mlp), encoder.za, *linear(encoder.zsa), encoder.model]
    single += linear(their.policy)
    twins = zip(linear(their.value.q1), linear(their.value.q2), strict=True)
    own = our.encoder
    ours = [*linear(own.state), own.action, *linear(own.both), own.model, *linear(our.policy)]
    return list(
        zip([*ours, *linear(our.critic)], [*([x] for x in single), *map(list, twins)], strict=True)
    )


def linear(module: nn.Module) -> list:
    return [x for x in module.modules() if isinstance(x, nn.Linear | networks.Linear)]


def drawn(rng: np.random.Generator, steps: int) -> Pieces:
    """Draws a batch of pieces without an end, of one seed."""
    lead = (1, BATCH)
    shapes = ((*lead, OBSERVATIONS), (*lead, steps, ACTIONS), (*lead, steps))
    s, a, r, after = (rng.normal(size=x) for x in (*shapes, (*lead, steps, OBSERVATIONS)))
    fields = (s, a.clip(-1, 1), r, after, np.zeros(shapes[2]), np.ones(shapes[2]))
    return Pieces(*map(torch.from_numpy, fields))


def copy(their, our: MRQ, size: float) -> None:
    for name in ("policy", "value", "encoder"):
        getattr(their, f"{name}_target").load_state_dict(getattr(their, name).state_dict())
    their.target_reward_scale, their.reward_scale = their.reward_scale, size
    our.copy_targets(torch.tensor([size]))


def represent(their, our: MRQ, pieces: Pieces) -> None:
    s, a, r, after, _, counted = (x[0] for x in pieces)
    states = torch.cat([s[:, None], after[:, :-1]], 1)
    their.train_encoder(states, a, after, r[..., None], counted[..., None], False)
    our.update_encoder(pieces, torch.zeros(1))


def update(theirs, their, our: MRQ, pieces: Pieces, rng: np.random.Generator) -> float:
    """Steps both; returns the largest difference of a priority."""
    s, a, r, after, _, counted = (x[0] for x in pieces)
    noise, normal = torch.from_numpy(rng.normal(size=(BATCH, ACTIONS))), torch.randn_like
    torch.randn_like = lambda _: noise
    goes_on = counted[..., None]
    summed = theirs.multi_step_reward(r[..., None], goes_on, their.gammas.double())
    scales = (their.reward_scale, their.target_reward_scale)
    q, goal = their.train_rl(s, a[:, 0], after[:, -1], *summed, *scales)
    torch.randn_like = normal
    expected = (q - goal).abs().amax(1).clamp(min=their.min_priority) ** their.alpha
    _, found = our.update(pieces, noise[None])
    return (found[0] - expected).abs().max().item()


def apart(own: networks.Linear, others: list[nn.Linear]) -> float:
    expected: Tensor = torch.stack([x.weight.T for x in others]).view_as(own.weight)
    return (own.weight - expected).abs().max().item()


# ---------------------------------------------------------------------------------------- replays


def replays(theirs) -> None:
    """Prints whether both replays hold, may draw and return the same after equal steps."""
    their = theirs.ReplayBuffer((OBSERVATIONS,), ACTIONS, 1.0, False, "cpu", 1, 5, ROOM, BATCH)
    their.priority.zero_()  # theirs are uninitialised, which a CPU may fill with NaN
    our = PrioritizedReplay(OBSERVATIONS, ACTIONS, ROOM, [0], BATCH, horizon=5)
    rng = np.random.default_rng(0)
    places, following = [], rng.normal(size=OBSERVATIONS)
    for number in range(1, STEPS + 1):
        a, after, begun = (rng.normal(size=n) for n in (ACTIONS, OBSERVATIONS, OBSERVATIONS))
        s, r, cut = following, float(rng.normal()), number % EPISODE == 0
        following = begun if cut else after
        places.append(their.ind)
        their.add(s, a, after, r, False, cut)
        row = (s, a, r, after, False, cut)
        our.add([np.asarray(x)[None].astype(np.float32) for x in row])
        if number % 3 == 0:
            changed = np.unique(rng.choice(number, BATCH))
            values = torch.from_numpy(1 + 3 * rng.random(len(changed))).float()
            their.sampled_ind = np.array(places)[changed]
            their.update_priority(values)
            our.prioritise(torch.from_numpy(changed)[None], values[None])
    places = np.array(places)
    weights = their.priority * their.mask
    same = (weights[places] == (our._priorities * our._open)[0, :STEPS]).all()
    print(f"replays: {STEPS} weights of draws equal: {bool(same)}")
    for length, whole in ((5, True), (3, False)):
        s, a, after, r, _ = their.sample(length, whole)
        chosen = torch.from_numpy(np.searchsorted(places, their.sampled_ind))[None]
        pieces = our._pieces(chosen, length)
        own = (pieces.rewards, pieces.observations, pieces.actions, pieces.next_observations)
        if whole:
            both = zip(own, (r[..., 0], s[:, 0], a, after), strict=True)
        else:
            first, last = own[2][:, :, 0], own[3][:, :, -1]
            both = zip((*own[:2], first, last), (r[..., 0], s, a, after), strict=True)
        print(f"pieces of {length}: equal: {all(torch.equal(x[0], y) for x, y in both)}")


if __name__ == "__main__":
    main()
