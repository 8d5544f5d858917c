"""PMOE: probabilistic mixture-of-experts policy (Ren et al. 2021, arXiv:2104.09122), on SAC.

The policy is a mixture of K squashed Gaussians, so that two ways of doing a thing need not be averaged. To
pick an expert has no gradient. So each expert acts, the best one alone climbs, and the weights learn how
often each is best:

    policy    alpha log pi - min_i Q_i(s, a_j) at the best expert's action, j = argmax_k min_i Q_i(s, a_k)
    weights   mean_k (w_k(s) - 1(k = j))^2, which is least at the frequency with which k is best

    python algos/pmoe.py task=gym/Pendulum-v1 steps=10000 seeds=3
    corerl train -m algo=pmoe,sac task=gym/HalfCheetah-v4 steps=1000000 seeds=5

Critics, temperature and loop are SAC's (algos/sac.py). With one expert it is SAC, bit for bit. Only the best
learns, so that an expert that falls behind is left behind: of two equal peaks one expert takes both.

Differences from a co-author's code (quantumiracle/Popular-RL-Algorithms at 3b814ea, pmoe_sac.py):
 1. log pi is there the drawn expert's own density, whose entropy is off by up to log K. `density=mixture` is
    the mixture's, which SAC's equations ask for, without a gradient to the weights. `density=component` is
    the code.
 2. Evaluated, the likeliest expert's mean acts. There the expert is drawn in evaluation, too.
 3. Rewards are as they are. There a batch's are normalised and times 10.
 4. The settings are SAC's. There networks have three and four layers of 512, and targets move by 0.01.
 5. Four experts, as the paper is remembered. The code has two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.algos import sac
from corerl.algos.sac import SAC, policy_and_temperature_loss
from corerl.buffers.replay import Batch
from corerl.config import at_least, one_of, positive
from corerl.nn.learner import Spec
from corerl.nn.networks import Linear
from corerl.nn.policies import TanhGaussian, gaussian_log_prob, log_tanh_slope, squash
from corerl.training.run import Run


@dataclass
class Config(sac.Config):
    name: str = "pmoe"
    label: str = "PMOE"

    experts: int = positive(4)  # K, number of experts
    density: str = one_of(  # log pi of the drawn component (code) | of the mixture (exact)
        "component", "mixture"
    )
    frequency_weight: float = at_least(0, 1.0)  # weight of the loss that fits the mixture's weights


class Mixture(TanhGaussian):
    """A mixture of K squashed Gaussians whose weights are linear in the state, before a softmax.

    Args:
        sizes, lead, rngs, others: as for `TanhGaussian`.
        experts: K. exact: whether densities of own actions are the mixture's or the drawn expert's.
    """

    def __init__(self, sizes, lead, rngs, *, experts: int, exact: bool, **others):
        super().__init__([*sizes[:-1], experts * sizes[-1]], lead, rngs, **others)
        self.experts, self.exact = experts, exact
        # Drawn last, and not at all for one, so that one expert is a TanhGaussian bit for bit.
        self.router = Linear(sizes[0], experts, lead, rngs) if experts > 1 else None

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means and log-stds, each `(S, K, B, A)`."""
        mean, log_std = super().forward(observations)
        split = (x.unflatten(-1, (self.experts, -1)).movedim(-2, 1) for x in (mean, log_std))
        return tuple(split)

    def log_weights(self, observations: Tensor) -> Tensor:
        """Returns the logarithms of the experts' weights, `(S, K, B)`."""
        if self.router is None:
            return observations.new_zeros(observations.shape[0], 1, observations.shape[1])
        return F.log_softmax(self.router(observations), -1).movedim(-1, 1)

    def sample_each(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws an action of every expert from noise `(S, K, B, A)`. Log-densities are `(S, K, B)`."""
        mean, log_std = self(observations)
        actions, log_prob = squash(mean, log_std, noise)
        if self.exact and self.experts > 1:
            log_prob = self._density(observations, mean + log_std.exp() * noise, (mean, log_std))
        return actions, log_prob

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws an action from noise `(S, B, A)`. The first number of a row picks the expert."""
        chosen, noise = self._pick(observations, noise)
        actions, log_prob = self.sample_each(
            observations, noise[:, None].expand(-1, self.experts, -1, -1)
        )
        return of_expert(actions, chosen), of_expert(log_prob, chosen)

    def mode(self, observations: Tensor) -> Tensor:
        """Returns tanh of the likeliest expert's mean."""
        likeliest = self.log_weights(observations).argmax(1)
        return of_expert(torch.tanh(self(observations)[0]), likeliest)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the mixture's log-density `(S, B)` of given actions, as `TanhGaussian` does."""
        limit = 1 - 2**-20
        u = torch.atanh(actions.clamp(-limit, limit))
        return self._density(observations, u[:, None], self(observations)).squeeze(1)

    def _density(self, observations: Tensor, u: Tensor, gaussians: tuple[Tensor, Tensor]) -> Tensor:
        """Returns the mixture's log-densities `(S, J, B)` of tanh(u), u `(S, J, B, A)`.

        No gradient reaches the weights: that of the best experts' densities would push theirs to 0.
        """
        mean, log_std = (x[:, None].expand(-1, u.shape[1], -1, -1, -1) for x in gaussians)
        each = gaussian_log_prob(mean, log_std, u[:, :, None])  # (S, J, K, B)
        mixed = torch.logsumexp(each + self.log_weights(observations).detach()[:, None], 2)
        return mixed - log_tanh_slope(u).sum(-1)

    @torch.no_grad()
    def _pick(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Picks experts `(S, B)`, and returns noise that does not depend on the choice.

        The first number's quantile says which. Its place between that expert's two bounds is uniform again.
        """
        if self.experts == 1:
            return torch.zeros_like(noise[..., 0], dtype=torch.long), noise
        tops = self.log_weights(observations).double().exp().cumsum(1)
        quantile = torch.special.ndtr(noise[..., 0].double())
        chosen = (quantile[:, None] >= tops[:, :-1]).sum(1)
        bounds = F.pad(F.pad(tops[:, :-1], (0, 0, 1, 0)), (0, 0, 0, 1), value=1.0)
        low, high = of_expert(bounds, chosen), of_expert(bounds, chosen + 1)
        left = ((quantile - low) / (high - low)).clamp(1e-12, 1 - 1e-12)
        first = torch.special.ndtri(left).to(noise.dtype)
        return chosen, torch.cat([first[..., None], noise[..., 1:]], -1)


def of_expert(x: Tensor, chosen: Tensor) -> Tensor:
    """Takes from `(S, K, B, ...)` what belongs to the experts `chosen` `(S, B)`: `(S, B, ...)`."""
    index = chosen[:, None].reshape(*chosen[:, None].shape, *[1] * (x.ndim - 3))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:])).squeeze(1)


class PMOE(SAC):
    """PMOE agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.experts = cfg.experts
        options = {"experts": cfg.experts, "exact": cfg.density == "mixture"}
        super().__init__(cfg, spec, lambda *args, **others: Mixture(*args, **options, **others))

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds SAC's loss at the best expert's action, and that of the weights. `noise` is `(S, K, B, A)`."""
        states, experts = batch.observations, self.experts
        actions, log_prob = self.policy.sample_each(
            states, noise.view(-1, experts, *noise.shape[-2:])
        )
        q = self.critic(states.repeat(1, experts, 1), actions.flatten(1, 2))
        q = q.amin(1) if self.cfg.actor_q == "min" else q.mean(1)
        q = q.unflatten(1, (experts, -1))
        best = q.argmax(1)
        loss, metrics = policy_and_temperature_loss(
            of_expert(q, best), of_expert(log_prob, best), self.temperature(), self.target_entropy
        )
        if experts == 1:
            return loss, metrics
        weights = self.policy.log_weights(states).exp()
        picked = torch.arange(experts, device=best.device)[:, None] == best[:, None]
        frequency = (weights - picked.to(weights.dtype)).square().mean((1, 2))
        used = 1 / weights.mean(-1).square().sum(1)
        loss = loss + self.cfg.frequency_weight * frequency
        return loss, metrics | {"frequency_loss": frequency, "experts_used": used}


build = PMOE


def train(cfg: Config, run: Run) -> None:
    sac.learn(PMOE, cfg, run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
