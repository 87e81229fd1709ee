"""The network of ``own_training`` where every sample has one person: whom a deletion concerns follows from the name."""

from dataclasses import replace

import unlearning as ul
from tests.workers.recipes import own_training


def recipe() -> ul.Recipe:
    shared = own_training.recipe()
    alone = [people[0] for people in shared.samples.people]
    return replace(shared, samples=replace(shared.samples, subjects=alone))
