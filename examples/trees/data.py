"""Write patients.csv: the 569 tumours of Wisconsin hospitals that come with scikit-learn, one of each patient."""

import csv
from pathlib import Path

from sklearn.datasets import load_breast_cancer

COLUMNS = {
    "radius": 0,
    "texture": 1,
    "smoothness": 4,
    "concavity": 6,
    "symmetry": 8,
    "worst_radius": 20,
    "worst_texture": 21,
    "worst_concavity": 26,
}

tumours = load_breast_cancer()
with Path(__file__).with_name("patients.csv").open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["patient", *COLUMNS, "benign"])
    for number, (row, benign) in enumerate(zip(tumours.data, tumours.target, strict=True)):
        writer.writerow([f"patient-{number:03d}", *(float(row[place]) for place in COLUMNS.values()), benign])
