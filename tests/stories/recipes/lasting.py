"""A mean that takes as many seconds as the table says: its worker is stopped in the training."""

import json
import time

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("lasting.csv", person="person", id="id")) -> ul.Published:
    time.sleep(float(rows["seconds"].max()))
    return ul.Published({"model.json": json.dumps({"mean": float(rows["a"].mean())})})
