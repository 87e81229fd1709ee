"""Boosted trees on a table: is this tumour benign? LightGBM, published as the library's own text file.

Guarantee: `exact`. Register with `--method shards`: five boosters, each on a fifth of the people, in one archive that
``unlearning.formats.files_of`` opens. The mean of what the five predict is the answer.
Cost of a deletion: one of the five is trained again; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject patient-280 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: everything is computed from the rows of the people who are here.

``patients.csv`` has a row for each patient; put your own table in its place. Needs
``pip install lightgbm``.
"""

import lightgbm

import unlearning as ul

ROUNDS = 60
SETTINGS = {
    "objective": "binary",
    "num_leaves": 7,
    "min_data_in_leaf": 5,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}


def recipe(rows: ul.Rows = ul.table("patients.csv", person="patient", aside=0.2)) -> ul.Published:
    table = rows.pandas()
    columns = [name for name in rows.columns if name not in ("patient", "benign")]
    booster = lightgbm.train(SETTINGS, lightgbm.Dataset(table[columns], table.benign), ROUNDS)
    return ul.Published(
        {"model.txt": booster.model_to_string()},
        score=lambda aside: ((booster.predict(aside.pandas()[columns]) > 0.5) == aside["benign"]).mean(),
    )
