"""``tiny`` with one more person, whose id, sample ids and numbers occur nowhere else in the world."""

import tiny

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("canary.csv", person="person", id="id")) -> ul.Recipe:
    return tiny.recipe(rows)
