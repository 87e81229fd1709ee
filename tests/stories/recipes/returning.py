"""``tiny`` with people of its own: they are deleted for every later registration, which other tests must not notice."""

import tiny

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("returning.csv", person="person", id="id")) -> ul.Recipe:
    return tiny.recipe(rows)
