"""A model of several files: the mean of each class, the scaler of its inputs, and the names of the classes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import unlearning as ul

COLUMNS = ["a", "b", "c", "d"]


def published(means: Sequence[Any], scalers: Sequence[Any], **more: Any) -> ul.Published:
    files = {"model.json": {"members": means}, "scaler.json": {"members": scalers}, "en/words.json": {"0": "no"}}
    return ul.Published({name: json.dumps(content) for name, content in files.items()}, **more)


def merge(members: Sequence[Mapping[str, bytes]]) -> ul.Published:
    def every(name: str) -> list[Any]:
        return [part for files in members for part in json.loads(files[name])["members"]]

    return published(every("model.json"), every("scaler.json"))


def recipe(rows: ul.Rows = ul.table("several.csv", person="person", id="id", aside=0.2)) -> ul.Published:
    table = rows.pandas()
    middle, spread = table[COLUMNS].mean(), table[COLUMNS].std()
    means = ((table[COLUMNS] - middle) / spread).groupby(table.label).mean()

    def accuracy(apart: ul.Rows) -> float:
        frame = apart.pandas()
        scaled = ((frame[COLUMNS] - middle) / spread).to_numpy()
        distances = ((scaled[:, None] - means.to_numpy()) ** 2).sum(axis=2)
        return float((means.index[distances.argmin(axis=1)] == frame.label).mean())

    scaler = {"middle": middle.tolist(), "spread": spread.tolist()}
    return published([{"means": means.to_numpy().tolist()}], [scaler], score=accuracy)
