"""PEBBLE: preferences asked while learning, relabelled experience, unsupervised start (Lee, Smith and Abbeel
2021, ICML, arXiv:2106.05091).

SAC on a reward that is learned from a teacher's answers. Only the teacher sees the true reward.

 1. `random_steps` of uniform actions come first. In the next `explore_steps` SAC seeks states far from those
    that it has met: the reward of s is the distance to its k-th nearest neighbour in the replay, over its
    running standard deviation.
 2. The first session asks about random pairs of segments. An ensemble of rewards is fitted to the answers
    (cross-entropy of Bradley and Terry's model). The critics begin anew and take `reset_updates`.
 3. SAC learns from the mean of the ensemble. A session follows every `queries.every` steps, until
    `queries.budget` is spent. All experience has the reward of today.

    python algos/pebble.py task=gym/Pendulum-v1 steps=10000 seeds=3 algo.queries.budget=200
    corerl train -m algo=pebble task=gym/HalfCheetah-v4 algo.queries.chooser=uniform,entropy seeds=3

`algo.queries.teacher=person` asks you, on the page of `corerl label`. Answers go to a file in the run's
folder, and a stopped run finds them again. `queries.beta` to `equal` are the faults of B-Pref's teachers.
`algo=hindsight_prior` adds Hindsight PRIOR (corerl/preferences/hindsight.py). Each session first fits a world
model to the experience, and `reward.prior` weighs its say in which steps mattered.

What differs from the authors' later code, and its switch (rll-research/BPref at f3ece2e).

    item                  authors                              ours                           switch
 1  rewards in replay     relabelled after every session       predicted for every batch      -
 2  segments              of the last 100 episodes, all of     of the last 100,000 steps,     queries.memory
                          one length, uniform over episodes    uniform over starts
 3  reward's batches      epochs of permutations               with replacement               -
 4  thresholds            skip and equal are multiplied twice  once, as the paper says        -
 5  targets               0.005 every second update            0.0025 every update            polyak
 6  log-std               tanh into [-5, 2]                    clamped there                  log_std_min
 7  first weights         orthogonal, bias 0                   torch's                        init
 8  explore: neighbours   among all states met                 among those before learning    -
 9  ties without `equal`  the first is preferred               count as 1/2                   -

The authors' settings on MetaWorld are 9,000 steps that explore, batches of 512, three layers of 256 and
rates of 3e-4.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from corerl import seeding
from corerl.algos import sac
from corerl.buffers.replay import Batch, ReplayBuffer
from corerl.config import added, at_least, group, positive, require, seed_list, within
from corerl.nn import compile, optim
from corerl.nn.critics import Critics
from corerl.nn.learner import Spec, Stateful
from corerl.nn.policies import PolicyNoise
from corerl.nn.running import Spread
from corerl.preferences import asking, hindsight
from corerl.preferences.asking import Answers, Queries, Trail
from corerl.preferences.hindsight import World, WorldModel
from corerl.preferences.reward_models import Markov, MarkovReward, unfitted
from corerl.training.run import Run
from corerl.training.snapshots import environments


@dataclass
class Config(sac.Config):
    name: str = "pebble"
    label: str = "PEBBLE"

    random_steps: int = positive(1_000)  # number of first steps, random and without updates
    explore_steps: int = at_least(0, 5_000)  # steps of unsupervised exploration after random_steps
    neighbours: int = positive(5)  # k, exploration seeks states far from their k-th neighbour
    reset_updates: int = at_least(  # extra updates after the first session, which resets critics
        0, 100
    )
    queries: Queries = group(Queries)
    reward: Markov = group(Markov, batch_size=128, stop_accuracy=1.0, seed=None)
    world: World = added(  # world model of Hindsight PRIOR (if reward.prior > 0)
        group(World, steps=1_000)
    )

    polyak: float = within(0.0025, "[0, 1]")  # share of new weights in targets, every critic update
    initial_temperature: float = positive(0.1)  # first value of the entropy temperature alpha
    actor_lr: float = positive(1e-4)
    critic_lr: float = positive(1e-4)
    temperature_lr: float = positive(1e-4)
    batch_size: int = positive(1024)
    hidden_width: int = positive(1024)
    log_std_min: float = -5.0

    def __post_init__(self):
        super().__post_init__()
        require(
            self.reward.seed is None and self.reward.stop_accuracy == 1.0,
            "algo.reward.seed, .stop_accuracy and .steps are for offline labels. Leave them out, and set "
            "algo.queries.stop_accuracy and algo.queries.epochs",
        )

    @property
    def first_session(self) -> int:
        """The step before which the first questions are asked."""
        return self.random_steps + self.explore_steps + 1


class PEBBLE(sac.SAC):
    """PEBBLE agents of S seeds. `reward` has S ensembles."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec)
        self.reward = unfitted(cfg.reward, spec)
        self.spread = Spread(spec.seeds, spec.device)
        self._spec = spec

    def update(self, batches: list[Batch], noises: list[PolicyNoise]) -> dict[str, Tensor]:
        """Takes SAC's steps on today's rewards of the batches."""
        return super().update([self.rewarded(batch) for batch in batches], noises)

    @torch.no_grad()
    def rewarded(self, batch: Batch) -> Batch:
        """Returns the batch with the mean reward of the ensemble."""
        inputs = torch.cat([batch.observations, batch.actions], -1)
        return batch._replace(rewards=self.reward.combined(self.reward(inputs[:, None])))

    def explore_update(
        self, batches: list[Batch], noises: list[PolicyNoise], met: Tensor, count: Tensor
    ) -> dict[str, Tensor]:
        """Takes SAC's steps on distances to the states met, the first `count` `()` of `met` `(S, N, O)`."""
        far = []
        for batch in batches:
            distance = self.distance(batch.observations, met, count)
            spread = self.spread.update(distance)
            far.append(batch._replace(rewards=distance / spread[:, None]))
        return super().update(far, noises) | {"distance": distance.mean(-1)}

    def distance(self, states: Tensor, met: Tensor, count: Tensor) -> Tensor:
        """Returns the distance of states `(S, B, O)` to the k-th nearest other that was met, `(S, B)`."""
        every = torch.cdist(states, met)
        unknown = torch.arange(met.shape[1], device=met.device) >= count
        every = every.masked_fill(unknown, math.inf)
        return every.topk(self.cfg.neighbours + 1, largest=False).values[..., -1]

    @torch.no_grad()
    def reset_critics(self) -> None:
        """Gives the critics new first weights, and their optimiser no memory."""
        rngs = seeding.generators(self._spec.identities, "critics after exploring")
        O, A, cfg = self._spec.observation_dim, self._spec.action_dim, self.cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        fresh = Critics([O, A, *hidden], rngs, init=sac.INITS[cfg.init], **cfg.mlp_options)
        optim.polyak(self.critic, fresh.to(self._spec.device), 1.0)
        optim.polyak(self.target, self.critic, 1.0)
        zero = pytree.tree_map(torch.zeros_like, self.critic_optimizer.state_dict())
        self.critic_optimizer.load_state_dict(zero)


build = PEBBLE


def fit(
    cfg: Queries,
    reward: MarkovReward,
    answers: Answers,
    step: Any,
    uniforms: Any,
    world: WorldModel | None = None,
) -> Tensor:
    """Fits the reward for a session and returns the accuracy `(S,)` of each seed's last epoch.

    An epoch of a seed has a batch for every `batch_size` of its answers. A seed learns no more after an
    epoch above `stop_accuracy`, and nothing without answers. A `world` model says which steps matter.
    `uniforms` are of an epoch, `(S, batches, M * B)`, enough for the whole budget.
    """
    batches = torch.ceil(answers.count / reward.cfg.batch_size)
    learning, accuracy = batches > 0, torch.zeros_like(batches)
    if not (longest := int(batches.max())):
        return accuracy
    importance = world and world.importance(*answers.pairs())
    for _ in range(cfg.epochs):
        total = torch.zeros_like(batches)
        for number, drawn in enumerate(uniforms.next().unbind(1)[:longest]):
            going = learning & (number < batches)
            reward.stopping.going.copy_(going)
            found = step(answers.draw(drawn, importance))["reward_accuracy"]
            total += torch.where(going, found, 0.0)
        accuracy = torch.where(learning, total / batches, accuracy)
        learning &= accuracy <= cfg.stop_accuracy
        if not learning.any():
            break
    return accuracy


class Teaching(Stateful):
    """The sessions of a run: when they are, what is asked, and the reward's fit."""

    def __init__(self, cfg: Config, run: Run, agent: PEBBLE):
        self._cfg, self._run = cfg, run
        sizes = (agent._spec.observation_dim, agent._spec.action_dim)
        self.answers = Answers(cfg.queries, sizes, len(run.seeds), run.device)
        self.trail = Trail(len(run.seeds), min(cfg.queries.memory, run.cfg.steps, cfg.capacity))
        self.accuracy = torch.zeros(len(run.seeds), device=run.device)
        self._step = compile.captured(agent.reward.update, run.mode)
        self.world = None
        if cfg.reward.prior:
            options = {"device": run.device, "mode": run.mode}
            length = cfg.queries.length
            self.world = hindsight.model(cfg.world, sizes, run.seeds, length, **options)

    def due(self, step: int) -> bool:
        """Tells whether a session is before this step."""
        after = step - self._cfg.first_session
        asked = int(self.answers.asked)
        return (
            after >= 0 and after % self._cfg.queries.every == 0 and asked < self._cfg.queries.budget
        )

    def ask(self, step: int, agent: PEBBLE, replay: ReplayBuffer) -> None:
        """Asks, and fits the agent's reward to all answers so far."""
        cfg, seeds = self._cfg.queries, self._run.seeds
        session = int(self.answers.sessions)
        count = cfg.count(step, self._run.cfg.steps, int(self.answers.asked))
        parts = (self.trail, replay, agent.reward)
        questions = asking.choose(cfg, *parts, count, seeds, session)
        if cfg.teacher == "person":
            from corerl.preferences.person import ask

            labels = ask(self._run, questions, agent._spec.observation_dim, session)
        else:
            labels = asking.answered(cfg, questions, self.trail, seeds, session)
        self.answers.add(questions.segments, labels)
        require(
            int(self.answers.asked) < cfg.budget or int(self.answers.count.min()) > 0,
            f"All {cfg.budget} questions of a seed were skipped, so no reward can be learned. Raise "
            "algo.queries.budget, lower algo.queries.skip, or answer some questions",
        )
        if self.world:
            parts = (self.trail, replay, self._cfg.world)
            for windows in asking.windows(cfg, *parts, seeds, session):
                self.world.update(windows)
        # Of this session alone, and as many in each epoch: a seed reads as far as the seeds beside it.
        size = self._cfg.reward.batch_size
        epoch = (math.ceil(cfg.budget / size), self._cfg.reward.members * size)
        uniforms = self._run.uniform(f"answers {session}", *epoch, block=1)
        self.accuracy.copy_(fit(cfg, agent.reward, self.answers, self._step, uniforms, self.world))

    def end_episodes(self, seeds: np.ndarray, reached: np.ndarray) -> None:
        """Ends these seeds' running episodes in the trail."""
        self.trail.end_episodes(seeds)

    def metrics(self) -> dict[str, Tensor]:
        """Returns how many answers there are, and the last accuracy, `(S,)` each."""
        return {"answers": self.answers.count.float(), "reward_accuracy": self.accuracy}


def train(cfg: Config, run: Run) -> None:
    check(cfg, run)
    envs = environments(run, cfg.start)
    agent = PEBBLE(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    capacity = min(cfg.capacity, run.cfg.steps)
    replay = ReplayBuffer(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    noise = run.normal("noise", 2, cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    teaching = Teaching(cfg, run, agent)
    met = torch.zeros((), device=run.device)
    update = compile.captured(agent.update, run.mode)
    explore_update = compile.captured(agent.explore_update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "envs": envs, "replay": replay, "teaching": teaching}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}

    def drawn() -> tuple[list[Batch], list[PolicyNoise]]:
        noises = [PolicyNoise(*noise.next().unbind(1)) for _ in range(cfg.utd)]
        return [replay.sample() for _ in noises], noises

    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)
        if teaching.due(step):
            teaching.ask(step, agent, replay)
            if step == cfg.first_session:
                agent.reset_critics()
                for _ in range(-(-cfg.reset_updates // cfg.utd)):  # each makes utd updates
                    update(*drawn())
        if step >= cfg.first_session:
            metrics = update(*drawn()) | teaching.metrics()
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        elif step > cfg.random_steps:
            states = replay.states(cfg.first_session - 1)
            met.fill_(len(replay))
            metrics = explore_update(*drawn(), states, met)
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        played = envs.step(actions)
        replay.add(played._replace(rewards=np.zeros_like(played.rewards)))
        teaching.trail.add(played)
        run.evaluate(step, agent.act)
        run.save(step)


def check(cfg: Config, run: Run) -> None:
    """Raises CorerlError where the lengths do not fit, or a person would answer for several seeds."""
    require(
        cfg.first_session <= run.cfg.steps,
        f"steps={run.cfg.steps} ends before the first question: algo.random_steps={cfg.random_steps} and "
        f"algo.explore_steps={cfg.explore_steps} come first. Raise steps, or lower these two",
    )
    require(
        cfg.random_steps > cfg.neighbours,
        f"algo.random_steps={cfg.random_steps} must be more than algo.neighbours={cfg.neighbours}",
    )
    require(
        cfg.capacity >= cfg.first_session,
        f"algo.capacity={cfg.capacity} must be at least {cfg.first_session}, to hold the steps "
        "before the first question",
    )
    seeds = seed_list(run.cfg.seeds)
    require(
        cfg.queries.teacher == "script" or len(seeds) == 1,
        f"algo.queries.teacher=person answers for one seed, but there are {len(seeds)} seeds. Set "
        "seeds=[0]",
    )


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
