"""The mean of a column of twelve people with three rows each, whom the service reads."""

import json

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("with_rows.csv", person="person", id="id")) -> ul.Published:
    return ul.Published({"model.json": json.dumps({"mean": float(rows["x"].mean()), "rows": len(rows)})})
