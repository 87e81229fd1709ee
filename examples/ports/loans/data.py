"""Write loans.csv: 1,200 loans of 500 borrowers, with categories and gaps, and which were not paid back. Made up."""

import csv
from pathlib import Path

import numpy as np

PURPOSES = ("car", "house", "education", "holiday", "other")
REGIONS = ("north", "south", "east", "west", "")
WORK = ("employed", "self-employed", "retired", "student")


def main() -> None:
    random = np.random.default_rng(13)
    with open(Path(__file__).parent / "loans.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["loan_id", "borrower", "amount", "income", "purpose", "region", "work", "defaulted"])
        for loan in range(1200):
            purpose, region, work = random.choice(PURPOSES), random.choice(REGIONS), random.choice(WORK)
            amount, income = random.lognormal(9, 0.6), random.lognormal(10, 0.4)
            risk = amount / income + 0.8 * (purpose == "holiday") + 0.7 * (work == "student") - 1.3
            shown = "" if random.random() < 0.1 else int(income)
            borrower = f"B{1000 + random.integers(500)}"
            defaulted = int(random.random() < 1 / (1 + np.exp(-2 * risk)))
            table.writerow([loan, borrower, int(amount), shown, purpose, region, work, defaulted])


if __name__ == "__main__":
    main()
