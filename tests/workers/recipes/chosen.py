"""Twelve people by descent, as ``descent``; only p0 to p5 have a vector."""

import dataclasses

import unlearning as ul
from tests.workers.recipes import descent


def recipe() -> ul.Recipe:
    return dataclasses.replace(descent.recipe(), vectors_for=[f"p{number}" for number in range(6)])
