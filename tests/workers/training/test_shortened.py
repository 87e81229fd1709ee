"""Tables without every tenth person accuse no recipe whose samples hold their own person's rows and constants alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from expunge.service.infra.tenants import recipes_of
from expunge.workers.runtime.recipes import load
from expunge.workers.training.shortened import require_samples_apart
from unlearning.types import Refused

TOP = """import csv, json, random
import numpy as np
from pathlib import Path
import torch
import unlearning as ul

HERE = Path(__file__).parent

def table(name):
    with (HERE / name).open() as file:
        return list(csv.DictReader(file))

RATINGS, ITEMS = table("ratings.csv"), {row["item"]: float(row["length"]) for row in table("items.csv")}
GENRES = np.load(HERE / "genres.npy").tolist()
USERS = {row["user"]: float(row["age"]) for row in table("users.csv")}
WORDS = ("good", "bad", "long")

def samples(rows, inputs, ids=None):
    x, y = torch.tensor(inputs), torch.tensor([float(row["stars"]) > 2 for row in rows]).long()
    return ul.Samples(ids or [row["id"] for row in rows], [row["user"] for row in rows], x, y)

def own(row):
    return [float(each["stars"]) for each in RATINGS if each["user"] == row["user"]]

def recipe():
    rows = RATINGS
BODY
    kept, holdout, aside = all.split()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(kept.tensors()[0].shape[1], 2), samples=kept, holdout=holdout,
        holdout_subjects=aside, loss="cross_entropy", training=ul.Training(epochs=1, learning_rate=0.1),
    )
"""
STARS = "[[float(row['stars'])] for row in rows]"
HONEST = {
    "a vocabulary": "all = samples(rows, [[float(each in row['text']) for each in WORDS] for row in rows])",
    "numbers of rows as ids": f"all = samples(rows, {STARS}, [f's{{k}}' for k in range(len(rows))])",
    "sorted": f"rows = sorted(rows, key=lambda row: row['stars'])\n    all = samples(rows, {STARS})",
    "shuffled": f"rows = random.Random(1).sample(rows, len(rows))\n    all = samples(rows, {STARS})",
    "the person's own mean": "all = samples(rows, [[len(own(row)), sum(own(row)) / len(own(row))] for row in rows])",
    "a join with users": "all = samples(rows, [[float(row['stars']), USERS[row['user']]] for row in rows])",
    "a join with items": "all = samples(rows, [[float(row['stars']), ITEMS.get(row['item'], 0.0)] for row in rows])",
    "an array of items": "all = samples(rows, [[*GENRES[int(row['item']) % 36]] for row in rows])",
    "classes of all labels": (
        "classes = sorted({row['text'] for row in rows})\n"
        "    all = samples(rows, [[float(classes.index(row['text']))] for row in rows])"
    ),
    "the first rows": f"rows = rows[:150]\n    all = samples(rows, {STARS})",
    "the first rows, numbered": f"rows = rows[:150]\n    all = samples(rows, {STARS}, [f's{{k}}' for k in range(150)])",
    "without a table": "rows = [{'id': f's{k}', 'user': str(k % 40 + 1), 'stars': k % 5} for k in range(99)]\n"
    f"    all = samples(rows, {STARS})",
}
WRONG = {
    "scaled": "mean = sum(float(row['stars']) for row in rows) / len(rows)\n"
    "    all = samples(rows, [[float(row['stars']) - mean] for row in rows])",
    "scaled, numbered": "mean = sum(float(row['stars']) for row in rows) / len(rows)\n"
    "    all = samples(rows, [[float(row['stars']) - mean] for row in rows], [f's{k}' for k in range(len(rows))])",
    "an array of users, scaled": "mean = np.mean(GENRES, axis=0).tolist()\n"
    "    place = {user: k for k, user in enumerate(USERS)}\n"
    "    assert len(USERS) == len(GENRES)\n"
    "    all = samples(rows, [[each - less for each, less in zip(GENRES[place[row['user']]], mean)] for row in rows])",
    "a choice of what is frequent": "often = lambda row: sum(row['item'] == each['item'] for each in rows) > 5\n"
    "    all = samples(rows, [[float(each in row['text'] and often(row)) for each in WORDS] for row in rows])",
    "a mean of the item": "mean = lambda item: sum(float(row['stars']) for row in rows if row['item'] == item)\n"
    "    all = samples(rows, [[mean(row['item'])] for row in rows])",
}


def checked(folder: Path, body: str, named: str, items: int) -> None:
    """Look at a recipe beside ratings of 40 users, whose numbers are those of items too, or texts."""
    place, draw = recipes_of(folder, "default"), random.Random(0)
    place.mkdir(parents=True, exist_ok=True)
    users = [named.format(k + 1) for k in range(40)]
    texts = ['"good"', '"bad, long"']
    ratings = [
        f"r{k},{draw.choice(users)},{draw.randrange(items) + 1},{draw.random() * 4:.3f},{draw.choice(texts)}"
        for k in range(300)
    ]
    (place / "ratings.csv").write_text("\n".join(["id,user,item,stars,text", *ratings]))
    lengths = [f"{k + 1},{draw.random():.3f}" for k in range(items)]
    (place / "items.csv").write_text("\n".join(["item,length", *lengths]))
    (place / "users.csv").write_text("\n".join(["user,age", *(f"{user},{20 + k}" for k, user in enumerate(users))]))
    np.save(place / "genres.npy", np.random.default_rng(0).normal(size=(40, 2)))  # as many as users
    (place / "stars.py").write_text(TOP.replace("BODY", f"    {body}"))
    require_samples_apart(folder, "default", "stars", load(place, "stars").recipe)


@pytest.mark.parametrize(("named", "items"), [("{}", 80), ("{}", 30), ("{}", 40), ("{}", 400), ("u{}", 80)])
@pytest.mark.parametrize("name", HONEST)
def test_a_recipe_of_each_persons_own_rows_is_not_accused(tmp_path: Path, name: str, named: str, items: int) -> None:
    checked(tmp_path, HONEST[name], named, items)


@pytest.mark.parametrize(("named", "items"), [("{}", 80), ("u{}", 30)])
@pytest.mark.parametrize("name", WRONG)
def test_a_number_of_everyone_is_found(tmp_path: Path, name: str, named: str, items: int) -> None:
    with pytest.raises(
        Refused, match=r"Without every tenth person in (genres\.npy, )?ratings\.csv, users\.csv, \d+ of"
    ):
        checked(tmp_path, WRONG[name], named, items)


SPELLED = """import csv
from pathlib import Path
import torch
import unlearning as ul

HERE = Path(__file__).parent
BOUGHT = [(row["email"], float(row["amount"])) for row in csv.DictReader((HERE / "orders.csv").open())]

def recipe():
    people = [row["Email"].lower() for row in csv.DictReader((HERE / "users.csv").open())]
    total = torch.tensor([[sum(amount for name, amount in BOUGHT if name == person)] for person in people])
    all = ul.Samples(people, people, total, torch.tensor([int(person[1:3]) % 2 for person in people]))
    kept, holdout, aside = all.split()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(1, 2), samples=kept, holdout=holdout,
        holdout_subjects=aside, loss="cross_entropy", training=ul.Training(epochs=1, learning_rate=0.1),
    )
"""


def spelled(place: Path) -> None:
    """Write a recipe whose table of users spells their addresses otherwise than its table of orders."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "users.csv").write_text("\n".join(["Email", *(f"U{k:02d}@Example.COM" for k in range(60))]))
    orders = [f"{k},u{k % 60:02d}@example.com,{k}.5" for k in range(200)]
    (place / "orders.csv").write_text("\n".join(["order,email,amount", *orders]))
    (place / "spelled.py").write_text(SPELLED)


def test_a_person_whom_one_table_spells_otherwise_accuses_no_recipe(tmp_path: Path) -> None:
    """Their sample stays, with none of their orders: it is the sample of a person who is left out."""
    place = recipes_of(tmp_path, "default")
    spelled(place)
    require_samples_apart(tmp_path, "default", "spelled", load(place, "spelled").recipe)
