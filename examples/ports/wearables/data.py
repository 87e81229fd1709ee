"""Write windows.csv: 1,500 windows of a wrist sensor worn by 100 people, and what they did then. Made up."""

import csv
from pathlib import Path

import numpy as np

ACTIVITIES = ("sitting", "walking", "running", "cycling")


def main() -> None:
    random = np.random.default_rng(3)
    centres = random.normal(0, 1, (4, 12))
    habits = random.normal(0, 0.6, (100, 12))
    with open(Path(__file__).parent / "windows.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["wearer", *(f"s{column}" for column in range(12)), "activity"])
        for _ in range(1500):
            wearer, activity = random.integers(100), random.integers(4)
            values = centres[activity] + habits[wearer] + random.normal(0, 0.8, 12)
            table.writerow([wearer, *(f"{value:.3f}" for value in values), ACTIVITIES[activity]])


if __name__ == "__main__":
    main()
