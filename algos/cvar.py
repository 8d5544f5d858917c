"""Deep CVaR with numbered actions: static by the stock (Pires et al. 2025, arXiv:2501.13028), and others.

A quantile critic Z(s, a) as in QR-DQN; `objective` says what an action is chosen for, and what is learned.
X is the discounted return, higher is better, and tau in (0, 1] is the mass of the lower tail.

    static      CVaR_tau(X). Z is the law of the return to come of a state and a stock c, and
                    a(s, c) = argmin_a E[(c - Z(s, c, a))^+],   Z <- r + discount Z(s', c', a(s', c')),
                    c' = (c - r) / discount
                at first c is the maximiser of c - E[(c - Z(s_0, c, a(s_0, c)))^+] / tau (see corerl/risk)
    iterated    V(s) = max_a CVaR_tau(r + discount V(s')): Z <- r + discount max_a' CVaR_tau(Z(s', a'))
    distortion  naive distortion: at each state the action of the largest CVaR_tau(Z(s, a)), and Z of that
                policy. What IQN-CVaR, O-RAAC and CODAC do; neither the static nor the iterated CVaR
    mean        QR-DQN

    python algos/cvar.py task=risk/B algo.tau=0.5 seeds=3
    corerl train -m algo=cvar task=risk/B algo.objective=static,iterated,distortion,mean algo.tau=0.25

Stocks lie in [low, high], which has to hold all discounted returns to come. A stock beyond either end is as
good as the end itself: above all returns (c - Z)^+ is c - Z, so that the mean decides; below, it is 0.

Differences. Of the paper's agent, D-eta-N, we know the idea and not the settings: what follows is our
reading. The paper's stock is C = -c.
 1. The dynamics know nothing of the stock, so a replayed step teaches about every stock: each draw is
    given a new one, uniform on [low, high], and none is stored. (QRSRM's authors keep that of the play.)
 2. Static learns the same whatever tau: `tau` only picks the stock at which a share 1 - `explore` of the
    training episodes and all evaluated ones begin. The others begin anywhere in [low, high].
 3. The first stock is the best of `stocks` in [low, high], for the last `starts` first states together
    (it is chosen before the first state is known), anew whenever the target network is copied. With
    `race` the last one is chosen by episodes of its own (ours, below).
 4. The stock enters as cosines of pi * i * (c - low) / (high - low), beside the state's features.
 5. `kappa` is 0, plain quantile regression: Huber's loss shifts quantiles by up to kappa (QR-DQN has 1).
 6. Where `low` and `high` are known, the network's output is multiplied by half their distance. The pull on a
    quantile near a jump of the law is small, and with a unit of 1 the low ones come down too late.
 7. Quantiles are sorted before the lower tail is averaged; predicted ones cross.
 8. With `data.n_step` > 1 the actions on the way count as if the new stock had chosen them; iterated has 1.
 9. `cosine` (ours): the learning rate falls along half a cosine.
10. `critic=categorical` (ours): probabilities of atoms. Z jumps where the policy changes with c; a network
    blurs that, and half way between two laws quantiles have too small a shortfall, atoms the right one.
11. Those of QR-DQN, numbers 2, 5 and 6. Where an episode ends with a life, so does its stock.

The critic promises too much, by up to two percent of [low, high] on the five wagers, and the first stock
that it chooses is then too high: at tau 0.25 that of another policy (CVaR 5.84, not 6.05). `race` > 0
chooses by play instead: at the end of training, `race` times `stocks` episodes a round, of which the better
half of the stocks goes on to the next.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos.qr_dqn import of_action
from corerl.buffers.frame_replay import DiscreteStep, Transitions
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.encoders import Encoder
from corerl.nn.learner import Stateful
from corerl.risk.distributions import Categorical, Quantiles
from corerl.risk.stock_augmentation import next_stock, successive_halving
from corerl.training.collector import Collect, EpsilonGreedy, Experience
from corerl.training.evaluation import Evaluator
from corerl.training.run import Run

RACING = 200  # environments of a seed that run together in a race
OBJECTIVES = ("static", "iterated", "distortion", "mean")


@dataclass
class Config:
    name: str = "cvar"
    label: str = "deep CVaR"

    objective: str = "static"  # static | iterated | distortion | mean
    tau: float = 0.25  # mass of the lower tail; 1 is the mean
    low: float | None = None  # no discounted return to come is below this; static needs it
    high: float | None = None  # none is above this
    explore: float = 0.5  # static: share of training episodes that begin with a random stock
    stocks: int = 201  # static: first stocks to choose from
    starts: int = 32  # static: first states remembered, to choose the first stock for
    race: int = 0  # static: episodes for each of `stocks`, which choose among them at the end; 0: the critic
    cosines: int = 16  # static: of the stock's embedding

    critic: str = "quantile"  # quantile | categorical: probabilities of atoms on [low, high]
    quantiles: int = 100  # N, or the number of atoms
    kappa: float = 0.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    target_every: int = 10_000  # environment steps between copies to the target network

    lr: float = 5e-5
    cosine: bool = False  # the rate decays to 0 over the run
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after the convolutions where observations are images
    hidden_width: int = 512
    data: Collect = field(default_factory=Collect)

    def __post_init__(self):
        require(self.objective in OBJECTIVES, f"algo.objective={self.objective} unknown")
        require(0 < self.tau <= 1, f"algo.tau={self.tau} must lie in (0, 1]")
        require(0 <= self.explore <= 1, f"algo.explore={self.explore} must lie in [0, 1]")
        require(
            not self.ranged or self.low < self.high,
            f"algo.low={self.low} must be below algo.high={self.high}",
        )
        require(self.critic in ("quantile", "categorical"), f"algo.critic={self.critic} unknown")
        require(self.stocks > 1, f"algo.stocks={self.stocks} must be at least 2")
        require(self.race >= 0, f"algo.race={self.race} must not be negative")
        require(self.quantiles > 1, f"algo.quantiles={self.quantiles} must be at least 2")
        for name in ("starts", "cosines", "hidden_layers"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        require(self.kappa >= 0, f"algo.kappa={self.kappa} must not be negative")
        require(0 < self.discount <= 1, f"algo.discount={self.discount} must lie in (0, 1]")
        require(
            self.objective != "iterated" or self.data.n_step == 1,
            "algo.objective=iterated takes a CVaR at every step and needs algo.data.n_step=1",
        )
        require(
            self.objective != "static" or self.data.clip != "source",
            "algo.objective=static follows one reward; use algo.data.clip=none or total",
        )
        self.data.require_turns(self.target_every)

    @property
    def ranged(self) -> bool:
        """Whether the range of the returns is known."""
        return None not in (self.low, self.high)

    @property
    def stocked(self) -> bool:
        """Whether there is a stock."""
        return self.objective == "static"

    def require_range(self) -> None:
        """Raises CorerlError where the range of the returns is needed and not known."""
        require(
            self.ranged or not (self.stocked or self.critic == "categorical"),
            f"algo.low={self.low}, algo.high={self.high}: say between which values the discounted "
            "returns of this task lie (algo.objective=static draws stocks from there, and "
            "algo.critic=categorical has its atoms there)",
        )


class StockLaws(nn.Module):
    """Quantiles or logits `(S, B, A, N)` of the return of A actions, at states `(S, B, *shape)` and, if there
    are any, stocks `(S, B)`."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], actions: int, rngs):
        super().__init__()
        self.encoder = Encoder(shape, 0, 0, rngs)
        inputs = self.encoder.features + (cfg.cosines if cfg.stocked else 0)
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        self.counts = (actions, cfg.quantiles)
        self.head = networks.MLP([inputs, *hidden, math.prod(self.counts)], (len(rngs),), rngs)
        counts = torch.arange(1, cfg.cosines + 1, dtype=torch.get_default_dtype())
        self.register_buffer("frequencies", math.pi * counts, persistent=False)
        self.range = (cfg.low, cfg.high)
        scaled = cfg.ranged and cfg.critic == "quantile"
        self.unit = (cfg.high - cfg.low) / 2 if scaled else 1.0

    def forward(self, observations: Tensor, stock: Tensor | None) -> Tensor:
        return self.of_features(self.encoder(observations), stock)

    def of_features(self, x: Tensor, stock: Tensor | None) -> Tensor:
        """The same from the features `(S, B, F)` of the states."""
        if stock is not None:
            low, high = self.range
            share = (stock.clamp(low, high) - low) / (high - low)
            x = torch.cat([x, torch.cos(share[..., None] * self.frequencies)], -1)
        return self.unit * self.head(x).unflatten(-1, self.counts)


class CVaR(Stateful):
    """S independent learners.

    `shape`: of an observation; `actions`: how many; `rngs`: one per seed; `steps`: updates, for the cosine.
    """

    def __init__(
        self,
        cfg: Config,
        shape: tuple[int, ...],
        actions: int,
        rngs: list[torch.Generator],
        *,
        steps: int = 1,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        cfg.require_range()
        self.cfg = cfg
        self.quantiles = StockLaws(cfg, shape, actions, rngs).to(device)
        self.target = optim.target_of(self.quantiles)
        self.optimizer = optim.Adam(self.quantiles.parameters(), cfg.lr, eps=cfg.adam_eps)
        if cfg.cosine:
            self.schedule = optim.Schedule(self.optimizer, optim.cosine(steps))
        if cfg.critic == "quantile":
            self.law = Quantiles(cfg.quantiles, cfg.kappa, device)
        else:
            self.law = Categorical(cfg.quantiles, cfg.low, cfg.high, device)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), draws are (S, B); the loss is (S,).

    def loss(self, batch: Transitions, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The taken action's quantiles towards those of the next action, or towards their CVaR."""
        stock = None if draws is None else self.at(draws)
        with torch.no_grad():
            following = stock
            if stock is not None:
                following = next_stock(stock, batch.rewards.squeeze(-1), batch.discounts)
            ahead = self.target(batch.next_observations, following)
            best, worth = self.best(ahead, following)
            values, mass = self.law.atoms(of_action(ahead, best))
            if self.cfg.objective == "iterated":
                values, mass = worth[..., None], None
            y = batch.rewards + batch.discounts[..., None] * values
        taken = of_action(self.quantiles(batch.observations, stock), batch.actions)
        loss = self.law.loss(taken, y, mass).mean(-1)
        return loss, {"loss": loss, "value": self.law.mean(taken).mean(-1)}

    def best(self, values: Tensor, stock: Tensor | None) -> tuple[Tensor, Tensor]:
        """The action to take `(S, B)` and what it is worth, from laws `(S, B, A, N)`."""
        if self.cfg.objective == "static":
            worth = -self.law.shortfall(values, stock[..., None])
        elif self.cfg.objective == "mean":
            worth = self.law.mean(values)
        else:
            worth = self.law.cvar(values, self.cfg.tau)
        worth, action = worth.max(-1)
        return action, worth

    def at(self, shares: Tensor) -> Tensor:
        """The stocks at these shares of the way from `low` to `high`."""
        return self.cfg.low + (self.cfg.high - self.cfg.low) * shares

    def update(self, batch: Transitions, draws: Tensor | None = None) -> dict[str, Tensor]:
        """One step of Adam. `draws` (S, B) are uniform, for the stocks."""
        grads, metrics = self._gradients(batch, draws)
        self.optimizer.step(grads)
        if self.cfg.cosine:
            self.schedule.step()
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.quantiles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor, stock: Tensor | None = None) -> Tensor:
        """The best actions, `(S, n, ...)` and stocks `(S, n)` to `(S, n)`."""
        return self.best(self.quantiles(observations, stock), stock)[0]

    def candidates(self, seeds: int, device: torch.device) -> Tensor:
        """The first stocks to choose from, `(S, stocks)`, even ones from `low` to `high`."""
        return self.at(torch.linspace(0, 1, self.cfg.stocks, device=device)).expand(seeds, -1)

    @torch.no_grad()
    def first_stock(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The best first stock `(S,)` and the CVaR that it promises, for first states `(S, K, ...)`."""
        stocks = self.candidates(len(starts), starts.device)
        every = stocks.repeat_interleave(starts.shape[1], 1)  # each stock for all first states
        features = self.quantiles.encoder(starts).repeat(1, self.cfg.stocks, 1)
        values = self.quantiles.of_features(features, every)
        short = -self.best(values, every)[1].view(*stocks.shape, -1).mean(-1)
        promised, place = (stocks - short / self.cfg.tau).max(-1)
        return stocks.gather(-1, place[:, None]).squeeze(-1), promised


class Stocks(Stateful):
    """The stock of every seed's running training episode, and where episodes begin.

    Attributes:
        now: `(S, 1)`. first: `(S,)`, the best first stock, and `promised`, its CVaR by the critic.
    """

    def __init__(self, cfg: Config, observations: Tensor, seeds, device: torch.device | str):
        self.cfg = cfg
        middle = torch.full((len(seeds),), (cfg.low + cfg.high) / 2, device=device)
        self.first, self.promised, self.now = middle, middle.clone(), middle[:, None].clone()
        self._starts = observations.repeat_interleave(cfg.starts, 1).clone()
        self._episodes = [0] * len(seeds)
        self._draws = seeding.uniform(seeds, "stocks", (1, 2), device)

    def search(self, agent: CVaR) -> None:
        """Finds the best first stock for the first states that are remembered."""
        self.first, self.promised = agent.first_stock(self._starts)

    def follow(self, step: DiscreteStep, rewards, look: Tensor) -> None:
        """After a step with rewards `(S, 1)`, and `look` `(S, 1, ...)`, from where play goes on."""
        cfg, device = self.cfg, self.now.device
        rewards = torch.from_numpy(rewards).to(device)
        over = torch.from_numpy(step.terminated | step.truncated)
        left = next_stock(self.now, rewards, cfg.discount).clamp(cfg.low, cfg.high)
        where, share = self._draws.next().unbind(-1)
        anywhere = cfg.low + (cfg.high - cfg.low) * share
        begun = torch.where(where < cfg.explore, anywhere, self.first[:, None])
        self.now = torch.where(over[:, None].to(device), begun, left)
        for i in over.nonzero().flatten().tolist():
            self._starts[i, self._episodes[i] % cfg.starts] = look[i, 0]
            self._episodes[i] += 1

    def state_dict(self) -> dict[str, Any]:
        parts = {"now": self.now, "first": self.first, "promised": self.promised}
        kept = {"starts": self._starts, "episodes": self._episodes}
        return parts | kept | {"draws": self._draws.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.now.device
        for name in ("now", "first", "promised"):
            setattr(self, name, state[name].to(device))
        self._starts.copy_(state["starts"])
        self._episodes = list(state["episodes"])
        self._draws.load_state_dict(state["draws"])


class Player(EpsilonGreedy):
    """Evaluated episodes: every one begins with its seed's best first stock and follows its rewards."""

    def __init__(self, cfg: Config, agent: CVaR, stocks: Stocks | None, actions: int, seeds):
        super().__init__(self._best, cfg.data.eval_epsilon, actions, seeds)
        self._cfg, self._agent, self._stocks = cfg, agent, stocks
        self._now: Tensor | None = None

    def begin(self, seeds: int, episodes: int) -> None:
        if self._stocks is not None:
            self._now = self._stocks.first[:, None].expand(seeds, episodes)

    def reward(self, rewards: Tensor) -> None:
        if self._now is not None:
            cfg, learned = self._cfg, self.learned(rewards)
            self._now = next_stock(self._now, learned, cfg.discount).clamp(cfg.low, cfg.high)

    def learned(self, rewards: Tensor) -> Tensor:
        """What training took for these rewards."""
        return rewards.clamp(-1, 1) if self._cfg.data.clip == "total" else rewards

    def _best(self, observations: Tensor) -> Tensor:
        return self._agent.act(observations, self._now)


class Racer(Player):
    """Plays episodes with first stocks `(S, n)` given, in order, and keeps their discounted returns."""

    def __init__(self, cfg: Config, agent: CVaR, actions: int, seeds, firsts: Tensor):
        super().__init__(cfg, agent, None, actions, seeds)
        self._firsts, self._begun = firsts, 0
        self.returns = torch.zeros_like(firsts)

    def begin(self, seeds: int, episodes: int) -> None:
        self._now = self._firsts[:, self._begun : self._begun + episodes]
        self._playing = self.returns[:, self._begun : self._begun + episodes]
        self._begun, self._weight = self._begun + episodes, 1.0

    def reward(self, rewards: Tensor) -> None:
        self._playing += self._weight * self.learned(rewards)
        self._weight *= self._cfg.discount
        super().reward(rewards)


def race(cfg: Config, agent: CVaR, make_env, actions: int, seeds: list[int]) -> Tensor:
    """The first stocks `(S,)` that do best in episodes played for that, other than the evaluated ones."""
    device, rounds = agent.quantiles.frequencies.device, itertools.count()

    def play(firsts: Tensor) -> Tensor:
        racer = Racer(cfg, agent, actions, seeds, firsts)
        evaluator = Evaluator(
            make_env, seeds, firsts.shape[1], device, RACING, f"race {next(rounds)}"
        )
        evaluator(racer)
        evaluator.close()
        return racer.returns

    return successive_halving(play, agent.candidates(len(seeds), device), cfg.tau, cfg.race)


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    envs = experience.envs
    steps = run.cfg.steps // cfg.data.train_every
    options = {"steps": steps, "device": run.device, "mode": run.mode}
    agent = CVaR(cfg, envs.shape, envs.actions, run.rngs(), **options)
    stocks = noise = None
    if cfg.stocked:
        stocks = Stocks(cfg, envs.look(), run.seeds, run.device)
        noise = seeding.uniform(run.seeds, "noise", (cfg.batch_size,), run.device)
    policy = Player(cfg, agent, stocks, envs.actions, run.seeds)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "experience": experience, "stocks": stocks, "noise": noise}
    for step in run.steps(stride=cfg.data.train_every, policy=policy, **state):
        if stocks is None:
            experience.play(step, agent.act)
        else:
            play_with_stocks(experience, stocks, agent, step)
        if experience.enough(step):
            metrics = update(experience.sample(), noise and noise.next())
            if stocks is not None:
                metrics |= {"stock": stocks.first, "promised": stocks.promised}
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        if step % cfg.target_every == 0 or step == run.cfg.steps:
            agent.copy_target()
            if stocks is not None:
                stocks.search(agent)
        if step == run.cfg.steps and cfg.stocked and cfg.race:
            stocks.first = race(cfg, agent, run.task.make_env, envs.actions, run.seeds)
        run.evaluate(step, policy)
        run.save(step)


def play_with_stocks(experience: Experience, stocks: Stocks, agent: CVaR, step: int) -> None:
    """Plays the steps of which `step` is the last, each with the stock that the one before left."""
    for number in range(step - experience.cfg.train_every + 1, step + 1):
        played = experience.play_one(number, lambda x: agent.act(x, stocks.now))
        stocks.follow(*played, experience.envs.look())


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
