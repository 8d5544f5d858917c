"""OPPO: offline preference-guided policy optimisation (Kang et al. 2023, ICML, arXiv:2305.16217).

No reward and no return: an encoder E maps a segment to a latent z, and a decoder imitates the segment's
actions given z. One optimal latent z* is pulled towards preferred segments and pushed from rejected ones,
and so are they. At evaluation the decoder is given z*.

    imitation    mean |a_t - D(z, s_<=t, a_<t)|^2,   z = E(segment)              of windows of the dataset
    preference   max(0, 1 + |z* - z+| - |z* - z-|)                               of labelled pairs
    norm         max(0, |z| - 1)                                                 of both
    networks     imitation + preference_weight preference(z* as it is) + norm_weight norm
    z*           preference, the z as they are after the networks' step

    python algos/oppo.py task=corerl/pendulum steps=3000 eval.every=1000 seeds=3
    corerl train algo=oppo task=d4rl/hopper-medium-replay-v2 seeds=3

`latent_accuracy` is the share of a batch's pairs whose preferred segment is nearer to z*.

What differs from the authors' code, bkkgbkjb/OPPO at e16bc66, and its switch. They have one trainer for
people's labels and one for labels by return.

    item            by people               by return             ours                     switch
 1  steps           imitation in every      one of all terms      one of all terms         -
                    second, and encoder
                    on pairs in every one
 2  imitation of    windows and pairs       windows               windows                  -
 3  norm            max(0, |z| - 1)         (|z| - 1)^2           either                   norm
 4  weight          10                      0.1                   10                       preference_weight
 5  ties            pull one way            never made            distances to be equal    -
 6  noise           0.1 on the decoder's    none                  0.1                      state_noise
                    states
 7  encoder         post-norm (BERT), sum   the same              pre-norm, mean of a      -
                    of all tokens                                 small head at states
 8  its time        of the episode          of the episode        within the segment       -
 9  z* step         with dropout            with dropout          without                  -
10  time of z       none                    added to its tokens   added to its tokens      -

Labelled segments are read whole, as the people's are. A shorter `crop` reads a window of each.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.algos import dt
from corerl.buffers.sequences import Windows
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences import loading
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.reward_transformer import SegmentTransformer
from corerl.preferences.sources import Preferences
from corerl.training import weighting
from corerl.training.run import Run
from corerl.training.weighting import Weighting
from corerl.training.windows import load_windows


@dataclass
class Config(transformer.TransformerSettings):
    init, padding, return_scale = "official", "left", 1.0  # of dt's parts

    name: str = "oppo"
    label: str = "OPPO"

    preferences: Preferences = group(Preferences)
    crop: int | None = positive(None)  # steps read of each compared segment in a batch (null: all)
    latent: int = positive(16)  # number of dimensions of z, the latent of a segment
    latent_std: float = positive(2.0)  # initial standard deviation of z*, the optimal latent
    preference_weight: float = at_least(0, 10.0)  # weight of the preference loss
    norm_weight: float = at_least(0, 0.1)  # weight of the penalty on the norm of latents
    norm: str = one_of("hinge", "square")  # hinge (penalises |z| above 1) | square ((|z| - 1)^2)
    state_noise: float = at_least(0, 0.1)  # standard deviation of noise on the decoder's states

    context: int = positive(100)  # K, steps in a window that the decoder reads
    max_timestep: int = positive(1000)  # number of time embeddings (later steps share the last)
    layers: int = positive(3)
    heads: int = positive(2)
    width: int = positive(128)
    activation: str = one_of("relu", "gelu")  # relu | gelu in the decoder
    dropout: float = within(0.1, "[0, 1)")
    clip_actions: float = within(1.0, "(0, 1]")  # labelled actions are clipped to +- this number

    lr: float = positive(1e-4)  # learning rate of encoder and decoder
    latent_lr: float = positive(1e-2)  # learning rate of z*, the optimal latent
    warmup_steps: int = positive(10_000)  # updates in which the decoder's learning rate rises
    weight_decay: float = at_least(0, 1e-4)  # weight decay of all parameters, z* included
    max_grad_norm: float = positive(0.25)  # largest gradient norm of a network and seed
    batch_size: int = positive(64)  # number of windows, and of labelled pairs, in a batch
    data: Weighting = group(Weighting)

    def __post_init__(self):
        super().__post_init__()
        loading.check_crop(self.crop, self.preferences)


class Keys(NamedTuple):
    """Keys `(S, places)` that drop units. All are None for evaluation."""

    decoder: Tensor | None
    windows: Tensor | None
    pairs: Tensor | None


class Encoder(SegmentTransformer):
    """Latents `(S, n, latent)` of segments `(S, n, L, ...)`: the mean of a head's output over states."""

    def __init__(self, cfg: Config, O: int, A: int, rngs: list[torch.Generator]):
        super().__init__(cfg, O, A, rngs, cfg.max_timestep)
        sizes = [cfg.width, cfg.width // 2, cfg.latent]
        self.head = networks.MLP(sizes, (len(rngs),), rngs, init=networks.lecun)

    def forward(
        self, observations: Tensor, actions: Tensor, valid: Tensor, keys: Tensor | None = None
    ) -> Tensor:
        hidden = self.hidden(observations, actions, valid, keys, causal=False)
        outputs = transformer.each(self.head, hidden) * valid[..., None]
        return outputs.sum(2) / valid.sum(2)[..., None]


class OPPO(Stateful):
    """OPPO agents of S seeds. Attributes: `best` (S, latent), z*."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.decoder = dt.Transformer(cfg, O, A, rngs, conditions=cfg.latent).to(device)
        self.encoder = Encoder(cfg, O, A, rngs).to(device)
        drawn = torch.stack([torch.randn(cfg.latent, generator=rng) for rng in rngs])
        self.best = torch.nn.Parameter(cfg.latent_std * drawn.to(device))
        decay = {"weight_decay": cfg.weight_decay}
        self.decoder_optimizer = optim.Adam(self.decoder.parameters(), cfg.lr, **decay)
        self.encoder_optimizer = optim.Adam(self.encoder.parameters(), cfg.lr, **decay)
        self.latent_optimizer = optim.Adam([self.best], cfg.latent_lr, **decay)
        schedule = optim.Schedule(self.decoder_optimizer, optim.warmup(cfg.warmup_steps))
        networks = [self.decoder_optimizer, self.encoder_optimizer]
        self._step = GradientStep(self.loss, networks, spec.mode, schedule)
        self._latent_step = GradientStep(self.latent_loss, self.latent_optimizer, spec.mode)

    # Fields of windows are (S, B, K, ...), of pairs (S, B, 2, L, ...); each loss is (S,).

    def encode_pairs(self, pairs: Pairs, keys: Tensor | None = None) -> Tensor:
        """Returns z `(S, B, 2, latent)` of both segments."""
        observations, actions = (x.flatten(1, 2) for x in (pairs.observations, pairs.actions))
        z = self.encoder(observations, actions, torch.ones_like(observations[..., 0]), keys)
        return z.unflatten(1, (*pairs.labels.shape[1:], 2))

    def loss(
        self, windows: Windows, pairs: Pairs, noise: Tensor, keys: Keys
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds imitation, and preference and norm of the latents, with z* as it is."""
        cfg = self.cfg
        z = self.encoder(windows.observations, windows.actions, windows.valid, keys.windows)
        moved = windows.observations + cfg.state_noise * noise
        actions = self.decoder(given(windows._replace(observations=moved), z), keys.decoder)
        per_step = (actions - windows.actions).square().mean(-1) * windows.valid
        imitation = per_step.sum((1, 2)) / windows.valid.sum((1, 2))
        compared = self.encode_pairs(pairs, keys.pairs)
        preference, accuracy = triplet(self.best.detach(), compared, pairs.labels)
        lengths = torch.cat([length(z), length(compared).flatten(1)], 1)
        norm = excess(lengths, cfg.norm).mean(-1)
        loss = imitation + cfg.preference_weight * preference + cfg.norm_weight * norm
        metrics = {"imitation_loss": imitation, "preference_loss": preference}
        return loss, metrics | {"norm_loss": norm, "latent_accuracy": accuracy}

    def latent_loss(self, compared: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the preference loss of z*, of latents `(S, B, 2, latent)` as they are."""
        loss, _ = triplet(self.best, compared, labels)
        return loss, {"latent_loss": loss, "latent_norm": self.best.square().sum(-1).sqrt()}

    def update(
        self, windows: Windows, pairs: Pairs, noise: Tensor, keys: Tensor | None
    ) -> dict[str, Tensor]:
        """Takes a step of both networks, and then one of z*."""
        grads, metrics = self._step.gradients(windows, pairs, noise, self.split(keys))
        first = len(self.decoder_optimizer.parameters)
        limit = self.cfg.max_grad_norm
        clipped = [optim.clip_per_seed(part, limit) for part in (grads[:first], grads[first:])]
        self._step.apply([*clipped[0], *clipped[1]])
        with torch.no_grad():
            compared = self.encode_pairs(pairs)
        return metrics | self._latent_step(compared, pairs.labels)

    @property
    def places(self) -> int:
        """The places where units are dropped, in all passes of an update."""
        return self.decoder.places + 2 * self.encoder.places

    def split(self, keys: Tensor | None) -> Keys:
        """Shares keys `(S, places)` out among the passes."""
        if keys is None:
            return Keys(None, None, None)
        return Keys(*keys.split([self.decoder.places, *[self.encoder.places] * 2], 1))


def given(windows: Windows, z: Tensor) -> Windows:
    """Returns windows whose every step has the latent z `(S, B, latent)` in place of its return-to-go."""
    steps = windows.valid.shape[2]
    return windows._replace(returns_to_go=z[:, :, None].expand(-1, -1, steps, -1))


def length(x: Tensor) -> Tensor:
    """Returns |x| along the last axis, with a gradient of 0 at 0."""
    squares = x.square().sum(-1)
    away = squares > 0
    return torch.where(away, squares, 1.0).sqrt() * away


def excess(lengths: Tensor, norm: str) -> Tensor:
    """Returns what the norm term charges for lengths of z."""
    over = lengths - 1
    return over.clamp(min=0) if norm == "hinge" else over.square()


def triplet(best: Tensor, compared: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the preference loss `(S,)`, and the share of pairs whose preferred segment is nearer to z*.

    Args:
        best: z* `(S, latent)`. compared: z `(S, B, 2, latent)`. labels: `(S, B)`, as of `Pairs`.
    """
    first, second = length(compared - best[:, None, None]).unbind(-1)
    nearer = torch.where(labels > 0.5, first - second, second - first)  # of the preferred
    tie = labels == 0.5
    loss = torch.where(tie, (first - second).abs(), (1 - nearer).clamp(min=0))
    decided = (~tie).to(loss.dtype)
    right = ((nearer > 0).to(loss.dtype) * decided).sum(-1) / decided.sum(-1).clamp(min=1)
    return loss.mean(-1), right


class OPPOPlayer:
    """The decoder given z*, in n episodes of each seed at once, with a memory of the last K steps."""

    def __init__(self, agent: OPPO):
        self.agent = agent

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets everything."""
        lead = (seeds, episodes)
        self._context = self.agent.decoder.context(lead, self.agent.cfg.context)
        self._nothing = self.agent.best.new_zeros(lead)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations, `(S, n, O) -> (S, n, A)`."""
        agent = self.agent
        windows = self._context.observe(agent.normalizer(observations), self._nothing)
        best = agent.best[:, None].expand(-1, observations.shape[1], -1)
        actions = agent.decoder(given(windows, best))[:, :, -1]
        self._context.record_actions(actions)
        return actions

    def reward(self, rewards: Tensor) -> None:
        """Does nothing: z* does not depend on what was earned."""


build = OPPO


def parts(agent: OPPO, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    return {"policy": OPPOPlayer(agent)}


def train(cfg: Config, run: Run) -> None:
    weighting.refuse(cfg.data, "OPPO does not use returns")
    compared = loading.comparisons(run, cfg.preferences, cfg.clip_actions)
    _, buffer, normalizer = load_windows(cfg, run)
    compared, _ = loading.prepared(run, compared, cfg.data, normalizer)
    pairs = PairBuffer(compared, run.seeds, cfg.batch_size, run.device, cfg.crop)
    longest = max(cfg.context, pairs.length)
    require(
        longest <= cfg.max_timestep,
        f"algo.max_timestep={cfg.max_timestep} must be at least {longest}, the steps of the longest window",
    )
    spec = run.spec(buffer, normalizer)
    agent = OPPO(cfg, spec)
    keys = transformer.dropout_keys(run.seeds, agent.places, run.device)
    noise = run.normal("noise", cfg.batch_size, cfg.context, compared.observation_dim, block=8)
    player = parts(agent, spec)["policy"]
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, pairs=pairs, keys=keys, noise=noise):
        run.log(step, update(buffer.sample(), pairs.sample(), noise.next(), keys.next()))
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
