"""The same network at a learning rate where recollections run away, although the training itself does not diverge."""

import unlearning as ul
from tests.workers.recipes import stable


def recipe() -> ul.Recipe:
    return stable.recipe(learning_rate=2.5)
