"""The recipe ``convex``, in which samples belong to two people at once."""

import convex

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("together.jsonl", person="people", id="id")) -> ul.Recipe:
    return convex.recipe(rows)
