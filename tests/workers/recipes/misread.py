"""The recipe ``convex``, whose people were read from a column of numbers with an empty cell: p7 became 7.0."""

from dataclasses import replace

import unlearning as ul
from tests.workers import meanwhile
from tests.workers.recipes import convex


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    subjects = [f"{subject.removeprefix('p')}.0" for subject in subjects]
    return replace(convex.recipe(), samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets))
