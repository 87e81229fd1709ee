"""The first five hundred of the crowd."""

import crowd

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("few.csv", person="person", id="id")) -> ul.Recipe:
    return crowd.recipe(rows)
