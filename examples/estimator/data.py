"""Write patients.csv: the 569 tumours of Wisconsin hospitals that come with scikit-learn, one of each patient."""

import csv
from pathlib import Path

from sklearn.datasets import load_breast_cancer

tumours = load_breast_cancer()
places = [place for place, name in enumerate(tumours.feature_names) if name.startswith("worst ")]
with Path(__file__).with_name("patients.csv").open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    names = [tumours.feature_names[place].removeprefix("worst ").replace(" ", "_") for place in places]
    writer.writerow(["patient", *names, "benign"])
    for number, (row, benign) in enumerate(zip(tumours.data, tumours.target, strict=True)):
        writer.writerow([f"patient-{number:03d}", *(float(row[place]) for place in places), benign])
