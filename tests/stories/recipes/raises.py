"""A recipe that fails on a person's record, and says so."""

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("tiny.csv", person="person", id="id")) -> ul.Recipe:
    raise RuntimeError("cannot read the record of tiny-person-7")
