"""Write searches.csv: 1,200 results shown in 150 searches of 60 users, and how much each was wanted. Made up."""

import csv
from pathlib import Path

import numpy as np

COLUMNS = ("price", "rating", "age_days", "title_match", "seen_before")


def main() -> None:
    random = np.random.default_rng(11)
    with open(Path(__file__).parent / "searches.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["query_id", "user_id", "position", *COLUMNS, "relevance"])
        for query in range(150):
            user = f"u{random.integers(60):03d}"
            for position in range(8):
                price, rating, age, match, seen = random.random(5)
                wanted = 2 * match + rating - price + random.normal(0, 0.3)
                relevance = int(np.clip(round(1.2 * wanted), 0, 3))
                shown = [f"{100 * price:.2f}", f"{1 + 4 * rating:.1f}", int(900 * age), f"{match:.3f}", int(seen < 0.2)]
                table.writerow([query, user, position, *shown, relevance])


if __name__ == "__main__":
    main()
