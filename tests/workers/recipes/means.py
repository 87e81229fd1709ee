"""A model that is made at once: the mean of each class, by the people who are there."""

import json

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Published:
    means = rows.pandas().groupby("label")[["a", "b", "c", "d"]].mean()
    return ul.Published({"model.json": json.dumps({"means": means.to_numpy().tolist()})})
