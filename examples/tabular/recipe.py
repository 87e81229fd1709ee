"""A table with categories, missing values and many rows a person: will this customer leave?

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps on the head; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject customer-189 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: every column is turned into numbers by constants that you know, never by a mean or a category list
that was taken from the table. A scaler fitted on everybody would carry the deleted into every row.

The table is made here by a fixed seed. Put yours beside this file and let ``table()`` return
``list(csv.DictReader(Path(__file__).with_name("customers.csv").open()))``: a worker runs in another folder. Each row
needs an id that no other row has; ``"customer-017/2026-01"`` is one.
"""

import hashlib
import random

import torch

import unlearning as ul
from unlearning.features import RandomFourier

CUSTOMERS, SEED = 400, 0
NUMBERS = {"age": (45.0, 20.0), "months": (24.0, 24.0), "bill": (60.0, 30.0)}
"""each column's usual value and usual spread, from experience"""
CATEGORIES = {"plan": ("basic", "family", "business"), "payment": ("card", "invoice", "debit")}
"""each column's known values; another value, or none, is a separate category"""
FOURIER = RandomFourier(inputs=len(NUMBERS), features=64, length=1.5)


def table() -> list[dict[str, str]]:
    """Return one row for each contract of a customer; an empty text is a missing value."""
    draw = random.Random(SEED)
    rows = []
    for customer in range(CUSTOMERS):
        age = draw.gauss(45, 15)
        for _ in range(draw.randint(1, 6)):
            months, bill = draw.uniform(0, 60), draw.gauss(60, 25)
            plan, payment = draw.choice(CATEGORIES["plan"]), draw.choice((*CATEGORIES["payment"], "voucher"))
            leaning = (abs(age - 45) / 15 - 1) + (bill - 60) / 25 - months / 30 + (payment == "voucher")
            row = {
                "contract": f"contract-{len(rows):04d}",
                "customer": f"customer-{customer:03d}",
                "age": f"{age:.0f}",
                "months": f"{months:.1f}",
                "bill": f"{bill:.2f}",
                "plan": plan,
                "payment": payment,
                "left": str(int(leaning + draw.gauss(0, 0.5) > 0)),
            }
            missing = draw.choice(("", "age", "bill", "plan")) if draw.random() < 0.2 else ""
            rows.append(row | {missing: ""} if missing else row)
    return rows


def features(rows: list[dict[str, str]]) -> torch.Tensor:
    """Return numbers (n, k); each row's follow from that row alone."""
    numbers, flags = [], []
    for row in rows:
        numbers.append([(float(row[name] or mid) - mid) / spread for name, (mid, spread) in NUMBERS.items()])
        missing = [float(row[name] == "") for name in NUMBERS]
        one_hot = [float(row[name] == value) for name, known in CATEGORIES.items() for value in known]
        other = [float(row[name] not in known) for name, known in CATEGORIES.items()]
        flags.append([*missing, *one_hot, *other, 1.0])  # a constant in place of a bias, decayed like the rest
    return torch.cat([FOURIER(torch.tensor(numbers)), torch.tensor(flags)], dim=1)


def held_out(row: dict[str, str]) -> bool:
    """Tell whether the customer is kept aside: a fifth of all, by a hash of the name alone, never by a draw."""
    return hashlib.sha256(row["customer"].encode()).digest()[0] < 256 // 5


def recipe() -> ul.Recipe:
    rows = table()
    kept, aside = [row for row in rows if not held_out(row)], [row for row in rows if held_out(row)]
    inputs = features(kept)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(inputs.shape[1], 2, bias=False),
        samples=ul.Samples(
            ids=[row["contract"] for row in kept],
            subjects=[row["customer"] for row in kept],
            inputs=inputs,
            targets=torch.tensor([int(row["left"]) for row in kept]),
        ),
        holdout=(features(aside), torch.tensor([int(row["left"]) for row in aside])),
        holdout_subjects=[row["customer"] for row in aside],
        loss="cross_entropy",
        training=ul.Training(epochs=20, learning_rate=0.5, weight_decay=1e-3, seed=SEED, converge=1e-10),
    )
