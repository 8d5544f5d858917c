"""What QR-DQN, IQN, HRA and MD3QN share with DQN (Mnih et al. 2015): its settings and its loop."""

from dataclasses import dataclass
from typing import Any

from corerl import seeding
from corerl.config import group, positive, within
from corerl.nn import compile
from corerl.nn.learner import Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.training.experience import Collect, EpsilonGreedy, Experience
from corerl.training.run import Run


@dataclass
class DeepQ(MLPSettings):
    """Settings of an algorithm that learns values of discrete actions as DQN does."""

    actions = "discrete"
    images = True
    learns_from_data = False

    discount: float = within(0.99, "[0, 1]")
    target_every: int = positive(10_000)  # environment steps between copies to the target network

    lr: float = positive(5e-5)
    adam_eps: float = positive(0.01 / 32)
    batch_size: int = positive(32)
    hidden_layers: int = positive(1)  # dense hidden layers (after the convolutions, for images)
    hidden_width: int = positive(512)
    data: Collect = group(Collect)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.data.require_turns(self.target_every)

    def first_update(self) -> tuple[int, str]:
        return self.data.learning_starts, "algo.data.learning_starts"

    def steps_multiple(self) -> tuple[int, str]:
        return self.data.train_every, "algo.data.train_every"


def parts(agent: Any, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    ends = (agent.cfg.data.eval_epsilon, spec.action_dim, spec.identities)
    return {"policy": EpsilonGreedy(agent.act, *ends)}


def learn(
    cfg: DeepQ,
    run: Run,
    agent: Any,
    experience: Experience,
    noise: seeding.Stream | None = None,
) -> None:
    """Plays, updates and copies the target in turn, to the end of the run.

    Args:
        agent: has `act`, `update(batch)`, or `update(batch, noise)` where there is noise, and
            `copy_target`.
        noise: what each update draws from.
    """
    policy = EpsilonGreedy(agent.act, cfg.data.eval_epsilon, experience.action_dim, run.seeds)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "experience": experience, "noise": noise, "policy": policy}
    for step in run.steps(stride=cfg.data.train_every, **state):
        experience.play(step, agent.act)
        if experience.enough(step):
            draws = [noise.next()] if noise else []
            run.log(step, update(experience.sample(), *draws) | experience.metrics())
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, policy)
        run.save(step)
