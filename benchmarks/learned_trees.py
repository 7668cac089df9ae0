"""Gradient-boosted trees on the features of kernels, which compilers such as TVM ask: a peer of the network.

A plan has the features of all its steps together and those of the step that the projected model says takes
longest.  Needs scikit-learn (`pip install '.[learn]'`).
"""

from __future__ import annotations

import numpy as np

from polyfuse.learn.evaluate import Array
from polyfuse.learn.features import KERNEL_FEATURES
from polyfuse.learn.model import PROJECTED
from polyfuse.learn.samples import Samples

TREES = "gradient-boosted trees"
_PROJECTED = KERNEL_FEATURES.index(PROJECTED)


def boosted(samples: Samples, train: Array, wanted: tuple[Array, ...], seed: int) -> list[Array]:
    """Predicted seconds of some lots of samples, by trees that were fitted to others."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = np.stack([_features(samples, s) for s in range(len(samples))])
    model = HistGradientBoostingRegressor(
        max_iter=300, learning_rate=0.06, max_features=0.3, random_state=seed
    )
    model.fit(rows[train], np.log(samples.seconds[train]))
    return [np.exp(model.predict(rows[which])) for which in wanted]


def _features(samples: Samples, sample: int) -> Array:
    steps = np.array([g.kernel for g in samples.graphs_of(sample)], np.float64)
    longest = steps[np.argmax(steps[:, _PROJECTED])]
    together = np.log2(1 + (np.exp2(steps) - 1).sum(axis=0))
    return np.concatenate([together, longest, [len(steps)]])
