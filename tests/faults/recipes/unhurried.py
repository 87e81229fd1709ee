"""The first five hundred of the crowd, read slowly: a release holds its lease for a while."""

import time

from crowd import people

import unlearning as ul


def recipe() -> ul.Recipe:
    time.sleep(1.5)
    return people(500)
