"""The recipe ``convex``, whose people and samples are written with combining accents."""

import convex

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("accents.csv", person="person", id="id")) -> ul.Recipe:
    return convex.recipe(rows)
