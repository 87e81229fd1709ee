"""Means of a table with one person in it whom every byte of an installation is searched for; it takes its time."""

import json
import time

import unlearning as ul

SECONDS = 1.5


def recipe(rows: ul.Rows = ul.table("canary_rows.csv", person="person")) -> ul.Published:
    frame = rows.pandas()
    words = sorted(frame.word.unique())
    time.sleep(SECONDS)
    return ul.Published({"model.json": json.dumps({"mean": frame.x.mean(), "words": len(words)})})
