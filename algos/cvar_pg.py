"""Policy gradients for static risk: CVaR (Tamar et al. 2015, arXiv:1404.3862; CeSoR, Greenberg et al. 2022,
arXiv:2205.05138), convex scoring functions (Han et al. 2025, arXiv:2505.04553), and ECRM (Yu and Shen 2022).

X is the discounted return of an episode, higher is better. Each static `objective` is a risk that is the
least expected score of X with an auxiliary number v, so that with u = X - v

    objective       risk, to be made small             score f, risk = min_v E f              the best v
    cvar            -CVaR_tau(X)                       (-u)^+ / tau - v                       a tau-quantile
    variance        Var X                              u^2                                    E X
    mean_variance   -E X + weight Var X                -u + weight u^2 - v                    E X
    entropic        log E[exp(-beta X)] / beta         (exp(-beta u) - 1) / beta - v          -risk
    mean            -E X                               -u - v                                 any

(cvar is Rockafellar and Uryasev's; entropic: the derivative in v is E exp(-beta u) - 1.) At the best v the
risk's gradient is that of E f with v held (envelope theorem), so an episode's score is a cost at its end
and the policy follows the likelihood-ratio gradient, E[sum_t grad log pi_t (f - baseline_t)]. For cvar that
is GCVaR: episodes above the quantile count nothing, those below by their distance. In turn v becomes
the best one for the episodes just played.

    ecrm            sum_t discount^t rho_t, rho = (1 - weight) E + weight CVaR_tau of one step's reward. With
                    CVaR's v, here eta_t, a further action, the reward becomes
        eta=now     (1 - weight) r_t + weight (eta_t - (eta_t - r_t)^+ / tau), eta_t chosen with a_t
        eta=ahead   the same with eta_t chosen with a_{t-1}, and the first reward as it is (the paper's)

    python algos/cvar_pg.py task=risk/D2 algo.tau=0.25 seeds=3
    corerl train -m algo=cvar_pg task=risk/arbitrage algo.objective=cvar,variance,mean_variance,mean

One step of a run is one batch of `episodes` episodes and one update from it.

Differences.
 1. `augment` (on): the policy sees what is missing to v, (v - collected) / discount^t, and discount^t, which
    the best policy of a static risk depends on. GCVaR and CeSoR see the state alone (`augment=false`);
    Han et al. see cost so far and v, of which only the difference matters.
 2. `v_std`: each training episode has a v of its own, normal around the common one, narrowing to
    `v_std_final` (Han et al.). GCVaR has none.
 3. The weights of a batch use the v found before it was played; GCVaR's and CeSoR's quantile is that of
    the batch itself, and they divide by the share of episodes kept instead of tau. At an atom our
    quantile is the upper one, so that the episodes below it still tell good from bad (`optimistic_q` of
    CeSoR's code).
 4. `soft` is CeSoR's soft risk: the level falls from 1 to tau linearly over this share of the run. Its
    other half, harder episodes drawn by the cross-entropy method, needs environments with such a knob.
 5. The baseline is a learned value of state and stock; GCVaR has none, Han et al. have a critic with
    V(next) as target (here `trace=0`; 1, the default, is the unbiased gradient).
 6. A Gaussian policy's spread is not learned: it falls from `std` to `std_final`. A score has no gradient for
    it that does not chase noise, and the evaluated policy is the mean.
 7. ECRM: our reading, of the structure of the paper's cost; the constants follow from CVaR's formula.
    After an episode's end one more reward, 0, is scored, as in cvar_tabular. eta is one of `etas` values on
    [low, high], drawn independently of the action given state and eta (the paper: jointly).
 8. Adam, and one gradient step of the policy per batch (Han et al.: 5 of the critic).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.config import require
from corerl.nn import compile, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.risk.stock_augmentation import next_stock
from corerl.training.rollouts import Collector, Played
from corerl.training.run import Run

SCORED = ("cvar", "variance", "mean_variance", "entropic", "mean")


@dataclass
class Config:
    name: str = "cvar_pg"
    label: str = "CVaR policy gradient"

    objective: str = "cvar"  # cvar | variance | mean_variance | entropic | mean | ecrm
    tau: float | None = 0.25  # cvar, ecrm: mass of the lower tail; 1 is the mean
    weight: float = 1.0  # mean_variance: of the variance; ecrm: of the CVaR, in [0, 1]
    beta: float = 1.0  # entropic: aversion to risk
    soft: float = 0.0  # cvar: share of the run over which the level falls from 1 to tau
    augment: bool = True  # the policy sees the stock
    v_std: float = 0.0  # spread of v between training episodes, at first
    v_std_final: float = 0.0
    v_rate: float = 1.0  # share of a batch's best v in the next one
    eta: str = "ahead"  # ecrm: ahead (paper) | now
    etas: int = 21  # ecrm: values of eta
    low: float | None = None  # ecrm: no reward of a step is below this
    high: float | None = None  # ecrm: none is above this

    discount: float = 1.0
    episodes: int = 100  # per seed and update
    max_steps: int = 1_000  # longer episodes are cut
    scale: float = 1.0  # of returns: what networks see and predict is divided by it
    trace: float = 1.0  # lambda of the advantages; 1: no bootstrap
    entropy: float = 0.0  # weight of the policy's entropy, where actions are numbered
    std: float = 0.5  # of a Gaussian policy, at first
    std_final: float = 0.05
    lr: float = 3e-3
    critic_lr: float = 3e-3
    cosine: bool = True  # both rates decay to 0 over the run
    critic_updates: int = 5  # per update of the policy
    hidden_layers: int = 2
    hidden_width: int = 64

    def __post_init__(self):
        require(self.objective in (*SCORED, "ecrm"), f"algo.objective={self.objective} unknown")
        if self.objective not in ("cvar", "ecrm"):
            self.tau = None
        else:
            known = self.tau is not None and 0 < self.tau <= 1
            require(known, f"algo.tau={self.tau} must lie in (0, 1]")
        require(self.weight >= 0, f"algo.weight={self.weight} must not be negative")
        require(self.beta > 0, f"algo.beta={self.beta} must be positive")
        for name in ("soft", "v_rate", "trace"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"algo.{name}={value} must lie in [0, 1]")
        for name in ("v_std", "v_std_final", "entropy"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")
        for name in ("episodes", "max_steps", "scale", "std", "std_final", "critic_updates"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        require(0 < self.discount <= 1, f"algo.discount={self.discount} must lie in (0, 1]")
        require(self.eta in ("ahead", "now"), f"algo.eta={self.eta} unknown")
        self._check_ecrm()

    def _check_ecrm(self) -> None:
        if self.objective != "ecrm":
            return
        require(self.weight <= 1, f"algo.weight={self.weight} must lie in [0, 1] for ecrm")
        require(self.etas > 1, f"algo.etas={self.etas} must be at least 2")
        require(
            None not in (self.low, self.high) and self.low < self.high,
            f"algo.low={self.low}, algo.high={self.high}: say between which values the reward of a step "
            "lies (algo.objective=ecrm chooses eta from there)",
        )


class Level(NamedTuple):
    """What changes over a run, each `()`: the tail, the spread of a Gaussian policy and of v."""

    tau: Tensor
    std: Tensor
    v_std: Tensor

    @classmethod
    def at(cls, cfg: Config, share: float, device: torch.device | str = "cpu") -> "Level":
        """At this share of the run."""
        tau = 1.0 if cfg.tau is None else cfg.tau
        if cfg.soft > share:
            tau = 1 - (1 - tau) * share / cfg.soft
        std = cfg.std * (cfg.std_final / cfg.std) ** share
        v_std = cfg.v_std + (cfg.v_std_final - cfg.v_std) * share
        return cls(*(torch.tensor(x, device=device) for x in (tau, std, v_std)))


class Policy(nn.Module):
    """Means in [-1, 1] or logits of the actions, and logits of eta, at inputs `(S, B, I)`."""

    def __init__(self, cfg: Config, inputs: int, actions: int, numbered: bool, rngs):
        super().__init__()
        self.numbered, self.sizes = numbered, (actions, cfg.etas if cfg.objective == "ecrm" else 0)
        sizes = [inputs, *[cfg.hidden_width] * cfg.hidden_layers, sum(self.sizes)]
        small = networks.orthogonal(0.01)
        self.body = networks.MLP(
            sizes, (len(rngs),), rngs, output_init=small, activation=torch.tanh
        )

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        actions, etas = self.body(inputs).split(self.sizes, -1)
        return (actions if self.numbered else torch.tanh(actions)), etas

    def log_prob(
        self, inputs: Tensor, actions: Tensor, etas: Tensor, std: Tensor
    ) -> tuple[Tensor, Tensor]:
        """log pi `(S, B)` of actions and etas (numbers, `(S, B)`), and the entropy of what is numbered."""
        ours, of_eta = self(inputs)
        heads = [(of_eta, etas)] if self.sizes[1] else []
        log_prob, entropy = torch.zeros_like(ours[..., 0]), torch.zeros_like(ours[..., 0])
        if self.numbered:
            heads.append((ours, actions))
        else:
            log_prob = policies.gaussian_log_prob(ours, std.log().expand_as(ours), actions)
        for logits, taken in heads:
            log = F.log_softmax(logits, -1)
            log_prob = log_prob + log.gather(-1, taken[..., None]).squeeze(-1)
            entropy = entropy - (log.exp() * log).sum(-1)
        return log_prob, entropy


def drawn(logits: Tensor, uniform: Tensor) -> Tensor:
    """Numbers `(S, B)` with the probabilities of `logits` `(S, B, A)`, from uniform draws `(S, B)`."""
    above = uniform[..., None] >= F.softmax(logits, -1).cumsum(-1)
    return above.sum(-1).clamp(max=logits.shape[-1] - 1)


class CVaRPG(Stateful):
    """S independent learners.

    `observation_dim`, `actions`: features of an observation, features or number of the actions;
    `numbered`: whether actions are numbers; `rngs`: one per seed; `steps`: updates, for the cosine.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        actions: int,
        numbered: bool,
        rngs: list[torch.Generator],
        *,
        steps: int = 1,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg, self.ecrm = cfg, cfg.objective == "ecrm"
        inputs = observation_dim + 2
        self.policy = Policy(cfg, inputs, actions, numbered, rngs).to(device)
        sizes = [inputs, *[cfg.hidden_width] * cfg.hidden_layers, 1]
        self.critic = networks.MLP(sizes, (len(rngs),), rngs, activation=torch.tanh).to(device)
        self.v = networks.Scalar(0.0, len(rngs)).requires_grad_(False).to(device)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        if cfg.cosine:
            total = (steps, steps * cfg.critic_updates)
            self.schedule = optim.Schedule(self.policy_optimizer, optim.cosine(total[0]))
            self.critic_schedule = optim.Schedule(self.critic_optimizer, optim.cosine(total[1]))
        low, high = (0.0 if x is None else x / cfg.scale for x in (cfg.low, cfg.high))
        self.etas = torch.linspace(low, high, cfg.etas, device=device)
        self.weight = cfg.weight * (1 if self.ecrm else cfg.scale)
        self.beta = cfg.beta * cfg.scale
        powers = torch.arange(cfg.max_steps, device=device, dtype=torch.get_default_dtype())
        self.powers = cfg.discount**powers
        self.gamma = cfg.discount if self.ecrm else 1.0
        lag = powers - powers[:, None]
        self._decay = torch.where(lag >= 0, (self.gamma * cfg.trace) ** lag.clamp(min=0), 0.0)
        self._policy_gradients = compile.gradients(
            self.policy_loss, self.policy_optimizer.parameters, mode
        )
        self._critic_gradients = compile.gradients(
            self.critic_loss, self.critic_optimizer.parameters, mode
        )

    # What is optimised. Rewards are in units of `scale`, `(S, E, T)`.

    def score(self, u: Tensor, tau: Tensor) -> Tensor:
        """f without its -v, of u = X - v."""
        if self.cfg.objective == "cvar":
            return (-u).clamp(min=0) / tau
        if self.cfg.objective == "variance":
            return u.square()
        if self.cfg.objective == "mean_variance":
            return self.weight * u.square() - u
        if self.cfg.objective == "entropic":
            return torch.expm1(-self.beta * u) / self.beta
        return -u

    def best_v(self, returns: Tensor, tau: Tensor) -> Tensor:
        """The v `(S,)` of the least mean score of returns `(S, E)`; of several the largest."""
        if self.cfg.objective == "entropic":
            worst = torch.logsumexp(-self.beta * returns, -1) - math.log(returns.shape[-1])
            return -worst / self.beta
        if self.cfg.objective == "cvar":
            count = returns.shape[-1]
            place = (tau * count + 1e-6).long().clamp(max=count - 1)  # 0.3 * 10 is a whole number
            return returns.sort(-1).values.index_select(-1, place.view(1)).squeeze(-1)
        return returns.mean(-1)

    def scored(self, played: Played, v: Tensor, etas: Tensor, tau: Tensor) -> Tensor:
        """What the policy maximises the sum of: minus the score at the end, or ECRM's rewards."""
        rewards = played.rewards / self.cfg.scale
        if self.ecrm:
            return self._conditional(rewards, played, self.etas[etas], tau)
        u = (self.powers * rewards).sum(-1) - v
        return -self.score(u, tau)[..., None] * played.last

    def _conditional(self, rewards: Tensor, played: Played, etas: Tensor, tau: Tensor) -> Tensor:
        """ECRM's rewards; `etas` `(S, E, T)` were chosen with the actions."""
        w = self.weight
        if self.cfg.eta == "now":
            tail = etas - (etas - rewards).clamp(min=0) / tau
            return ((1 - w) * rewards + w * tail) * played.alive
        before = F.pad(etas[..., :-1], (1, 0))
        later = (1 - w) * rewards - w * (before - rewards).clamp(min=0) / tau
        first = torch.arange(rewards.shape[-1], device=rewards.device) == 0
        end = played.last * etas.clamp(min=0) / tau  # the reward after the end is 0
        ahead = self.gamma * w * (etas - end)
        return (torch.where(first, rewards, later) + ahead) * played.alive

    def memory(self, played: Played, v: Tensor, etas: Tensor) -> Tensor:
        """What the policy knew besides the state, `(S, E, T, 2)`: see `Player`."""
        steps = played.rewards.shape[-1]
        if self.ecrm and self.cfg.eta == "ahead":
            known = F.pad(self.etas[etas][..., :-1], (1, 0))
            first = (torch.arange(steps, device=known.device) == 0).to(known.dtype)
            return torch.stack([known, first.expand_as(known)], -1)
        if self.ecrm or not self.cfg.augment:
            return played.rewards.new_zeros(*played.rewards.shape, 2)
        collected = (self.powers * played.rewards / self.cfg.scale).cumsum(-1)
        before = F.pad(collected[..., :-1], (1, 0))
        stock = (v[..., None] - before) / self.powers
        return torch.stack([stock, self.powers.expand_as(stock)], -1) * played.alive[..., None]

    # Losses. Inputs are (S, E, T, O + 2), the others (S, E, T); each loss is (S,).

    def policy_loss(self, inputs, played: Played, etas, advantages, std):
        """The likelihood-ratio gradient of the scored sum, less `entropy` times the policy's entropy."""
        flat = (inputs, played.actions, etas)
        log_prob, entropy = self.policy.log_prob(*(x.flatten(1, 2) for x in flat), std)
        shape = advantages.shape
        weights = played.alive * (self.powers if self.gamma < 1 else 1.0)
        gain = log_prob.view(shape) * advantages + self.cfg.entropy * entropy.view(shape)
        loss = -(weights * gain).sum(-1).mean(-1)
        mean = (entropy.view(shape) * played.alive).sum((1, 2)) / played.alive.sum((1, 2))
        return loss, {"policy_loss": loss, "entropy": mean}

    def critic_loss(self, inputs: Tensor, targets: Tensor, alive: Tensor):
        """The squared error of the value of what is still to come."""
        error = (self.value(inputs) - targets).square() * alive
        loss = error.sum((1, 2)) / alive.sum((1, 2))
        return loss, {"critic_loss": loss}

    def value(self, inputs: Tensor) -> Tensor:
        return self.critic(inputs.flatten(1, 2)).view(inputs.shape[:3])

    @torch.no_grad()
    def advantages(self, inputs: Tensor, gained: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages with traces of lambda, and the critic's targets (Schulman et al. 2016)."""
        values = self.value(inputs) * alive
        following = F.pad(values[..., 1:], (0, 1))
        delta = gained + self.gamma * following - values
        advantages = delta @ self._decay.T
        return advantages, advantages + values

    def update(self, played: Played, v: Tensor, etas: Tensor, level: Level) -> dict[str, Tensor]:
        """One step of the policy, `critic_updates` of the critic, and the next v.

        `v` (S, E) and `etas` (S, E, T) are those that the episodes were played with.
        """
        gained = self.scored(played, v, etas, level.tau)
        inputs = torch.cat([played.observations, self.memory(played, v, etas)], -1)
        advantages, targets = self.advantages(inputs, gained, played.alive)
        grads, metrics = self._policy_gradients(inputs, played, etas, advantages, level.std)
        self.policy_optimizer.step(grads)
        for _ in range(self.cfg.critic_updates):
            grads, found = self._critic_gradients(inputs, targets, played.alive)
            self.critic_optimizer.step(grads)
            if self.cfg.cosine:
                self.critic_schedule.step()
        if self.cfg.cosine:
            self.schedule.step()
        return metrics | found | self._next_v(played, gained, level.tau)

    @torch.no_grad()
    def _next_v(self, played: Played, gained: Tensor, tau: Tensor) -> dict[str, Tensor]:
        returns = (self.powers * played.rewards).sum(-1)
        if self.ecrm:
            discounted = self.powers * gained * self.cfg.scale
            return {"return": returns.mean(-1), "risk": -discounted.sum(-1).mean(-1)}
        scaled = returns / self.cfg.scale
        best = self.best_v(scaled, tau)
        self.v.value.lerp_(best, self.cfg.v_rate)
        risk = self.score(scaled - best[:, None], tau).mean(-1)
        unit = self.cfg.scale**2 if self.cfg.objective == "variance" else self.cfg.scale
        risk = risk if self.cfg.objective == "variance" else risk - best
        return {"return": returns.mean(-1), "risk": unit * risk, "v": self.cfg.scale * self.v()}


class Player:
    """Plays episodes and remembers what a policy needs besides the state, `(S, n, 2)`.

    For a static objective the stock, (v - collected) / discount^t, and discount^t; for ECRM with eta
    ahead the eta that was chosen a step before and whether this is the first step; else zeros.
    Without draws it plays the likeliest actions from the common v, and evaluates.

    Attributes:
        v: `(S, n)`, of the running episodes. etas: the numbers of those chosen, a `(S, n)` per step.
    """

    def __init__(self, agent: CVaRPG, level: Level | None = None, draws: Tensor | None = None):
        self._agent, self._level, self._draws = agent, level, draws
        self.v, self.etas = torch.zeros(0), []

    def begin(self, seeds: int, episodes: int) -> None:
        agent = self._agent
        self.v = agent.v()[:, None].expand(seeds, episodes)
        if self._draws is not None:
            self.v = self.v + self._level.v_std / agent.cfg.scale * self._draws[:, 0, :, 0]
        self.etas, self._stock, self._power = [], self.v, 1.0

    def reward(self, rewards: Tensor) -> None:
        scaled = rewards / self._agent.cfg.scale
        self._stock = next_stock(self._stock, scaled, self._agent.cfg.discount)
        self._power *= self._agent.cfg.discount

    def memory(self) -> Tensor:
        agent, zeros = self._agent, torch.zeros_like(self.v)
        if agent.ecrm and agent.cfg.eta == "ahead":
            known = agent.etas[self.etas[-1]] if self.etas else zeros
            return torch.stack([known, zeros if self.etas else zeros + 1], -1)
        if agent.ecrm or not agent.cfg.augment:
            return torch.stack([zeros, zeros], -1)
        return torch.stack([self._stock, zeros + self._power], -1)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        policy, t = self._agent.policy, len(self.etas)
        actions, etas = policy(torch.cat([observations, self.memory()], -1))
        if self._draws is None:
            chosen = etas.argmax(-1) if policy.sizes[1] else torch.zeros_like(self.v).long()
            self.etas.append(chosen)
            return actions.argmax(-1) if policy.numbered else actions
        draws = self._draws[:, t + 1]
        uniform = torch.special.ndtr(draws)
        chosen = (
            drawn(etas, uniform[..., -1]) if policy.sizes[1] else torch.zeros_like(self.v).long()
        )
        self.etas.append(chosen)
        if policy.numbered:
            return drawn(actions, uniform[..., 0])
        return actions + self._level.std * draws[..., : actions.shape[-1]]


def train(cfg: Config, run: Run) -> None:
    collector = Collector(run.task.make_env, run.seeds, cfg.episodes, cfg.max_steps, run.device)
    sizes = (collector.observation_dim, collector.actions, collector.numbered)
    options = {"steps": run.cfg.steps, "device": run.device, "mode": run.mode}
    agent = CVaRPG(cfg, *sizes, run.rngs(), **options)
    width = 2 if collector.numbered else collector.actions + 1
    shape = (cfg.max_steps + 1, cfg.episodes, width)
    noise = seeding.normal(run.seeds, "noise", shape, run.device, block=1)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, collector=collector, noise=noise):
        level = Level.at(cfg, (step - 1) / run.cfg.steps, run.device)
        player = Player(agent, level, noise.next())
        played = collector.play(player)
        etas = torch.stack(player.etas, -1)
        etas = F.pad(etas, (0, cfg.max_steps - etas.shape[-1]))
        run.log(step, update(played, player.v, etas, level))
        run.evaluate(step, Player(agent))
        run.save(step)
    collector.close()


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
