"""The recipe ``convex`` with other ids: customer-1 where that has p1."""

import convex

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("customers.csv", person="person", id="id")) -> ul.Recipe:
    return convex.recipe(rows)
