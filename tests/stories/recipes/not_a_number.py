"""A table with a number missing."""

import tiny

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("not_a_number.csv", person="person", id="id")) -> ul.Recipe:
    return tiny.recipe(rows)
