"""The recipe ``convex``, which keeps a third of its people apart."""

from dataclasses import replace

import convex
import people

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("few.csv", person="person", id="id", aside=0.33)) -> ul.Recipe:
    return replace(
        convex.recipe(rows),
        holdout=lambda apart: (people.inputs(apart), apart.tensor("label")),
    )
