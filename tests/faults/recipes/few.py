"""The first five hundred of the crowd."""

from crowd import people

import unlearning as ul

PEOPLE = 500


def recipe() -> ul.Recipe:
    return people(PEOPLE)
