"""Trees of other libraries as models of bytes: ``model, train = ul.trees.lightgbm(grid, rounds=400)``.

Each uses one thread and fixed seeds, splits on the recipe's grid alone, and publishes what is needed to answer: by a
list of the fields that may stay. Counts, gains and weights of nodes would show where a deleted person's samples went,
and the least and the greatest value of a column are those of one person each.
"""

from __future__ import annotations

from unlearning.trees.boosted import lightgbm, xgboost
from unlearning.trees.estimators import sklearn

__all__ = ["lightgbm", "sklearn", "xgboost"]
