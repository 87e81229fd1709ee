"""The recipe ``convex``, whose people and samples are written with combining accents."""

import unicodedata
from dataclasses import replace

import unlearning as ul
from tests.workers import meanwhile
from tests.workers.recipes import convex


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    ids = [unicodedata.normalize("NFD", f"é{each}") for each in ids]
    subjects = [unicodedata.normalize("NFD", f"é{each}") for each in subjects]
    return replace(convex.recipe(), samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets))
