"""Windows of a dataset for sequence models: states at mean 0 and deviation 1, returns to go, padding."""

from collections.abc import Callable
from typing import Any

import numpy as np

from corerl.buffers.sequences import SequenceBuffer
from corerl.data.dataset import Dataset
from corerl.nn.networks import Normalizer
from corerl.training import preprocessing
from corerl.training.run import Run
from corerl.training.weighting import probabilities


def load_windows(
    cfg: Any,
    run: Run,
    labels: Callable[[Dataset], np.ndarray] | None = None,
    normalize: bool = True,
) -> tuple[Dataset, SequenceBuffer, Normalizer]:
    """Returns the run's dataset, its windows, and the states' normaliser.

    Args:
        cfg: the Decision Transformer's.
        labels: from the dataset to a number per row `(N,)`.
        normalize: whether states get mean 0 and deviation 1.

    Raises:
        CorerlError: the dataset has images.
    """
    dataset = preprocessing.vectors(run)
    preprocessing.warn_of_order(dataset, run.cfg.history)
    discrete = dataset.discrete
    actions = preprocessing.one_hot(run, dataset.actions) if discrete else dataset.actions
    mean = dataset.observations.mean(0, dtype=np.float64)
    std = dataset.observations.std(0, dtype=np.float64) + 1e-6
    if not normalize:
        mean, std = np.zeros_like(mean), np.ones_like(std)
    normalizer = Normalizer.of(mean, std)
    filler = (
        normalizer.of_array(np.zeros_like(mean, np.float32)),
        np.full(actions.shape[1], -10.0),
    )
    buffer = SequenceBuffer(
        normalizer.of_array(dataset.observations),
        actions,
        dataset.returns_to_go() / np.float32(cfg.return_scale),
        dataset.episode_ends,
        run.seeds,
        cfg.batch_size,
        cfg.context,
        filler=filler,
        padding=cfg.padding,
        last_timestep=cfg.max_timestep - 1,
        device=run.device,
        probabilities=probabilities(dataset, cfg.data, np.arange(len(dataset))),
        labels=None if labels is None else labels(dataset),
    )
    buffer.discrete = discrete
    return dataset, buffer, normalizer.to(run.device)
