"""The same network at a learning rate where recollections run away, although the training itself does not diverge."""

import stable

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("digits.csv", person="person", id="id")) -> ul.Recipe:
    return stable.recipe(rows, learning_rate=2.5)
