"""Two rows of one name."""

import tiny

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("duplicate_ids.csv", person="person", id="id")) -> ul.Recipe:
    return tiny.recipe(rows)
