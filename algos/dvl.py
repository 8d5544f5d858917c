"""f-DVL: dual V-learning (Sikchi, Zheng, Zhang and Niekum 2024, "Dual RL", arXiv:2302.08560).

IQL with another loss of the value. Offline RL as a linear program over visitations, regularised by an
f-divergence from the data, has a dual in V alone. With x = min Q'(s, a) - V(s) at actions of the data,

    V   minimises  lambda * g(x) - (1 - lambda) * x,  g from the divergence's convex conjugate
    Q   regresses towards r + discount * V(s'), by Huber's loss
    pi  maximises  min(exp(beta * (min Q' - V)), 100) * log pi(a|s)

    divergence   g(x)                             the V that minimises it
    tv           max(x, 0)                        the (2 lambda - 1)/lambda quantile of Q
    chi2         max(x + x^2/4, 0)                as in the authors' code
    chi2_exact   x + x^2/4; -1 where x < -2       lambda E[(1 + x/2) 1(x > -2)] = 1 - lambda
    kl           exp(x/lambda) - x/lambda - 1     lambda log E exp(Q/lambda): Extreme Q-Learning

    python algos/dvl.py task=corerl/pendulum steps=5000 seeds=3
    corerl train algo=dvl task=d4rl/antmaze-umaze-v0 seeds=5
    corerl train algo=recoil task=corerl/pendulum algo.data.expert.episodes=10 seeds=3

`imitation=true` (`algo=recoil`) is ReCOIL of the same paper: imitation of a few demonstrations
(`algo.data.expert`) with any other data and no reward. With M = `expert_value`,

    Q   regresses towards M at demonstrated steps, and at the data's towards
        y = -(1 - discount) * M + discount * V(s'), where V(s') is -M at a terminal state

V and the policy learn from the data alone, as above.

The default is the authors' code (hari-sikchi/DVL at 4b7cf11) with its README's command for Gym. We had the
paper's abstract and this code, so a column for the paper is missing. Differences, and what to know:

    item               authors                                   ours                      switch
 1  chi2's conjugate   grows again below x = -4                  the same, or the exact    divergence
 2  kl                 exponents end at `max_clip`, the loss is  the same                  clip
                       divided by exp(the batch's largest)
 3  actions of V's     the data's, and uniform ones per row      the same; discrete ones   random_actions
    loss               (`sample_random_times`)                   uniform over the numbers
 4  V's LayerNorm      before each ReLU                          the same                  value_layer_norm
 5  V's dropout        0.5 on AntMaze, in a call that never      none                      -
                       turns it on
 6  the command of kl  `--f=reverse-KL`, which has no branch     `kl`                      divergence
 7  options left out   gradient penalty, noise on actions, more  none; every command has   -
                       updates of V in a step                    them off
 8  AntMaze's rate     constant                                  the same                  cosine
 9  return range       over rows that follow each other          true episodes             -
10  ReCOIL's constants -2 and -200, whatever the discount; V     -M (1 - discount), -M,    expert_value
                       would fall below its floor                the same at 0.99
11  ReCOIL's scale of  by the largest x of both halves           of the data's half        -
    the loss of kl
12  ReCOIL's data      hides expert episodes among poor ones     as it comes               data.expert

ReCOIL's column is a copy of its code (chufanchen/ReCOIL at c88ba6d). Its lambda and its settings for
other tasks are the README's and its tables' (configs/recoil.yaml).

With lambda = 1 (Gym's command) the loss is flat where V is above every sampled Q, so V is a maximum. This
includes Q at the uniform actions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, StateValue
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import unsquashed
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    actions = "any"
    name: str = "dvl"
    label: str = "f-DVL"

    divergence: str = one_of("chi2", "chi2_exact", "tv", "kl")  # chi2 | chi2_exact | tv | kl (XQL)
    loss_temperature: float = positive(1.0)  # lambda of V's loss, up to 1 (tv: above 0.5, kl: any)
    clip: float = positive(5.0)  # largest exponent (Q - V) / lambda (divergence=kl)
    random_actions: int = at_least(0, 1)  # uniform actions per data action in V's loss
    beta: float = at_least(0, 3.0)  # inverse temperature of the policy's weights (0: cloning)
    max_weight: float = positive(100.0)  # largest weight of a sample in the policy's loss
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    huber: float = positive(20.0)  # error above which the critics' Huber loss is linear

    lr: float = positive(3e-4)  # learning rate of policy, value and critics
    cosine: bool = True  # learning rate of the policy decays to 0 over the run
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    value_layer_norm: bool = True  # LayerNorm before each activation of the value network
    dropout: float = within(0.0, "[0, 1)")  # dropout rate in the policy
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    imitation: bool = added(False)  # imitates the steps of data.expert, without rewards (ReCOIL)
    expert_value: float = added(positive(200.0))  # M, target Q of expert steps (imitation=true)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    def __post_init__(self):
        super().__post_init__()
        least = 0.5 if self.divergence == "tv" else 0.0
        require(
            self.divergence == "kl" or least < self.loss_temperature <= 1,
            f"With algo.divergence={self.divergence}, algo.loss_temperature={self.loss_temperature} must be "
            f"above {least:g} and at most 1, or the loss has no minimum",
        )


class DVL(PolicyActing):
    """f-DVL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        options = {"init": networks.orthogonal()} | cfg.mlp_options
        normed = {"layer_norm": 1e-6, "norm_first": True} if cfg.value_layer_norm else {}
        self.critic = Critics([O, A, *hidden], rngs, **options).to(device)
        self.value = StateValue([O, *hidden], rngs, **options | normed).to(device)
        self.policy = unsquashed(cfg, spec, **options)
        self.target = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self._discrete = spec.discrete

        v = self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.schedule = optim.Schedule(pi, optim.cosine(spec.steps)) if cfg.cosine else None
        self._value_step = GradientStep(self.value_loss, v, spec.mode)
        self._pi_q_step = GradientStep(self._pi_q_loss, (pi, q), spec.mode, self.schedule)

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def value_loss(self, batch: Batch, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits V to min Q' of the data's actions and uniform ones. `draws` (S, K, B, A) in [0, 1)."""
        rows = batch.observations.shape[1]
        states, actions = batch.observations, batch.actions
        if draws is not None:
            states = torch.cat([states, *[states] * draws.shape[1]], 1)
            actions = torch.cat([actions, self.uniform_actions(draws).flatten(1, 2)], 1)
        with torch.no_grad():
            q = self.target(states, actions).amin(1)
        difference = q - self.value(states)
        loss = dual_loss(difference, self.cfg).mean(-1)
        metrics = {"value_loss": loss, "advantage": difference[:, :rows].mean(-1)}
        return loss, metrics | {"target_q": q[:, :rows]}

    def uniform_actions(self, draws: Tensor) -> Tensor:
        """Returns uniform actions within the bounds, or one-hot ones, from uniform draws `(..., A)`."""
        if self._discrete:
            return F.one_hot(draws.argmax(-1), draws.shape[-1]).to(draws.dtype)
        return 2 * draws - 1

    def imitation_loss(self, batch: Batch, expert: Batch) -> Tensor:
        """Regresses both critics towards M at demonstrated steps, and towards y at the data's."""
        with torch.no_grad():
            goes_on, high = 1 - batch.terminated, self.cfg.expert_value
            next_value = goes_on * self.value(batch.next_observations) - (1 - goes_on) * high
            y = -(1 - self.cfg.discount) * high + self.cfg.discount * next_value
        errors = self.critic(batch.observations, batch.actions) - y[:, None]
        expert_errors = self.critic(expert.observations, expert.actions) - high
        return (errors.square() + expert_errors.square()).mean(-1).sum(1) / 2

    def critic_loss(self, batch: Batch) -> Tensor:
        """Regresses both critics towards r + discount * V(s'), by Huber's loss."""
        with torch.no_grad():
            next_value = self.value(batch.next_observations)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        q = self.critic(batch.observations, batch.actions)
        errors = F.huber_loss(q, y[:, None].expand_as(q), reduction="none", delta=self.cfg.huber)
        return errors.mean(-1).sum(1)

    def policy_loss(self, batch: Batch, target_q: Tensor, uniforms: Tensor | None) -> Tensor:
        """Weighs -log pi(a|s) of the data's actions by min(exp(beta * (min Q' - V)), limit)."""
        with torch.no_grad():
            advantage = target_q - self.value(batch.observations)
            weight = torch.exp(self.cfg.beta * advantage).clamp(max=self.cfg.max_weight)
        keep = networks.layer_masks(uniforms, self.cfg.dropout)
        mean = self.policy(batch.observations, keep)
        log_prob = self.policy.log_prob_given(mean, batch.actions)
        return -(weight * log_prob).mean(-1)

    def _pi_q_loss(
        self, batch: Batch, target_q: Tensor, uniforms: Tensor | None, expert: Batch | None
    ):
        policy = self.policy_loss(batch, target_q, uniforms)
        critic = self.critic_loss(batch) if expert is None else self.imitation_loss(batch, expert)
        return policy + critic, {"policy_loss": policy, "critic_loss": critic}

    def update(
        self,
        batch: Batch,
        draws: Tensor | None = None,
        uniforms: Tensor | None = None,
        expert: Batch | None = None,
    ) -> dict[str, Tensor]:
        """Takes one step of V, then of policy and critics with the new V, then of the targets.

        Args:
            draws: uniform, `(S, K, B, A)`, for K random actions a row; None without.
            uniforms: uniform, `(S, layers, B, width)`, for the policy's dropout; None without.
            expert: demonstrated steps, with imitation.
        """
        metrics = self._value_step(batch, draws)
        metrics |= self._pi_q_step(batch, metrics["target_q"], uniforms, expert)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | {"target_q": metrics["target_q"].mean(-1)}


def dual_loss(x: Tensor, cfg: Config) -> Tensor:
    """Returns the loss of every x = Q - V `(S, B)`. That of kl is divided by each seed's constant."""
    weight = cfg.loss_temperature
    if cfg.divergence == "kl":
        return gumbel_loss(x / weight, cfg.clip)
    if cfg.divergence == "tv":
        conjugate = x.clamp(min=0)
    elif cfg.divergence == "chi2":
        conjugate = (x + x.square() / 4).clamp(min=0)
    else:
        inside = x.clamp(min=-2)
        conjugate = inside + inside.square() / 4
    return weight * conjugate - (1 - weight) * x


def gumbel_loss(z: Tensor, clip: float) -> Tensor:
    """Returns exp(z) - z - 1 of z `(S, B)` up to `clip`, over exp(max(the row's largest z, -1))."""
    z = z.clamp(max=clip)
    largest = z.detach().amax(-1, keepdim=True).clamp(min=-1)
    return torch.exp(z - largest) - (z + 1) * torch.exp(-largest)


build = DVL


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = DVL(cfg, run.spec(buffer, normalizer))
    expert = None
    if cfg.imitation:
        expert = preprocessing.load_demonstrations(run, cfg.data, cfg.batch_size, normalizer)
    draws = None
    if cfg.random_actions:
        draws = run.uniform("actions", cfg.random_actions, cfg.batch_size, buffer.action_dim)
    dropout = run.dropout(cfg, cfg.batch_size)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(
        agent=agent, buffer=buffer, draws=draws, dropout=dropout, demonstrations=expert
    ):
        shown = expert and expert.sample()
        metrics = update(buffer.sample(), draws and draws.next(), dropout and dropout.next(), shown)
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
