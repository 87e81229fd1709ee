"""The examples that are recipes of the old form; the others are in ``tests/workers/rows/test_examples.py``."""

from __future__ import annotations

import re

from benchmarks.example_recipes import FOLDER, METHODS
from expunge.workers.runtime import recipes

INDEXES = {"index_faiss", "index_hnswlib"}
"""recipes with rows, which tests/workers/rows/test_index_examples.py trains"""


def test_the_person_that_the_digits_delete_is_one_that_they_train_on() -> None:
    header = recipes.find(FOLDER, "digits").read_text().split('"""')[1]
    found = re.search(r"^Delete one person: `expunge delete --subject (\S+) --regulation gdpr --wait`", header, re.M)
    assert found and (found[1],) in set(recipes.load(FOLDER, "digits").recipe.samples.people)


def test_every_example_recipe_is_one_of_these() -> None:
    names = {name.partition("/")[0] for name in METHODS} | {*INDEXES, "digits"}
    assert {path.parent.name for path in FOLDER.glob("*/recipe.py")} == names
