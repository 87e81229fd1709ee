"""The recipe ``biased``, trained to its minimiser."""

from dataclasses import replace

import biased

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    made = biased.recipe(rows)
    return replace(made, training=replace(made.training, converge=1e-8))
