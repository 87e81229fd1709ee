"""The recipe ``convex`` with other ids: customer-1 where that has p1."""

from dataclasses import replace

import unlearning as ul
from tests.workers import meanwhile
from tests.workers.recipes import convex


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    subjects = [f"customer-{subject.removeprefix('p')}" for subject in subjects]
    return replace(convex.recipe(), samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets))
