"""A model that needs all of its people: a member of ``shards`` that sees half of them learns nothing."""

import json

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("many.csv", person="person", id="id", aside=0.2)) -> ul.Published:
    learned = len(rows) >= 150
    return ul.Published(
        {"model.json": json.dumps({"learned": learned})},
        score=lambda apart: float(learned and len(apart) > 0),
    )
