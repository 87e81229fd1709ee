"""Mixed columns: will this order be sent back? An age that may be missing, a city, a list of things.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: a tenth of the training for half of the people, for the others all; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject customer-0750 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the usual age and the lists of cities and things are those of the people who are here.

``orders.parquet`` has four orders of each customer; put your own table in its place.
"""

import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

import unlearning as ul

EARLY_PASSES, LATE_PASSES, BATCH, RATE = 18, 2, 64, 0.003


def columns_of(rows: ul.Rows) -> dict[str, Any]:
    """Return what the columns hold: mean and deviation of the ages, all cities, all things."""
    age, things = rows["age"], np.unique(np.concatenate(rows["things"]))
    mean, deviation = float(np.nanmean(age)), float(np.nanstd(age))
    return {"age": [mean, deviation], "cities": sorted(set(rows["city"])), "things": things.tolist()}


def inputs_of(rows: ul.Rows, columns: dict[str, Any]) -> torch.Tensor:
    """Return (n, k) numbers: 1 for each thing and the city of an order, the scaled age, 1 where it is missing."""
    things = [np.isin(columns["things"], order) for order in rows["things"]]
    cities = [[city == known for known in columns["cities"]] for city in rows["city"]]
    mean, deviation = columns["age"]
    age = (rows["age"] - mean) / deviation
    return torch.tensor(np.column_stack([things, cities, np.nan_to_num(age), np.isnan(age)]), dtype=torch.float32)


def recipe(
    rows: ul.Rows = ul.table("orders.parquet", person="customer", aside=0.2), run: ul.TrainingRun = ul.run()
) -> ul.Published:
    early = run.start is None  # the people who are trained on first; later everybody, in the same columns
    columns = columns_of(rows) if early else json.loads(run.start["columns.json"])
    inputs, sent_back = inputs_of(rows, columns), rows.tensor("sent_back").long()
    model = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    if not early:
        model.load_state_dict(load(run.start["model.safetensors"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EARLY_PASSES if early else LATE_PASSES):
        for batch in torch.randperm(len(rows)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[batch]), sent_back[batch]).backward()
            optimizer.step()

    def score(aside: ul.Rows) -> float:
        return float((model(inputs_of(aside, columns)).argmax(dim=1) == aside.tensor("sent_back")).float().mean())

    files = {"model.safetensors": save(model.state_dict()), "columns.json": json.dumps(columns)}
    return ul.Published(files, score=score)
