"""Write tickets.csv: 600 short support tickets by 150 customers, and the team that answers each. Made up."""

import csv
from pathlib import Path

import numpy as np

WORDS = {
    "billing": "invoice refund charged twice card payment receipt price discount vat overdue".split(),
    "delivery": "parcel late courier address tracking arrived damaged box pickup missing depot".split(),
    "account": "password login email locked profile delete reset code phone device settings".split(),
}
COMMON = "hello please help my the order with since yesterday again why is not working thanks".split()


def main() -> None:
    random = np.random.default_rng(7)
    teams = list(WORDS)
    with open(Path(__file__).parent / "tickets.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ticket", "customer", "text", "team"])
        for ticket in range(600):
            team = teams[random.integers(3)]
            words = [
                *random.choice(COMMON, 5),
                *random.choice(WORDS[team], 3),
                random.choice(WORDS[teams[random.integers(3)]]),
            ]
            table.writerow(
                [f"T{ticket}", f"customer-{random.integers(150)}", " ".join(random.permutation(words)), team]
            )


if __name__ == "__main__":
    main()
