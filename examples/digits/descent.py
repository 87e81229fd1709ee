"""The digits' softmax regression again, stopped after 200 full-batch steps: what `rewind` needs.

A model trained to convergence did not end in a gradient step, so that `rewind` refuses `digits`. Here it serves, and
nothing is `proved` by the distance to the minimiser.
"""

from dataclasses import replace
from pathlib import Path

import recipe as converged

import unlearning as ul


def recipe(rows: ul.Rows = converged.ROWS, unseen: Path = converged.UNSEEN) -> ul.Recipe:
    training = ul.Training(epochs=200, learning_rate=3.0, weight_decay=1e-3, seed=converged.SEED)
    return replace(converged.recipe(rows, unseen), training=training)
