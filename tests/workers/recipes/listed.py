"""The recipe ``convex`` with a file of its people's identities, named by the environment."""

import os
from dataclasses import replace

import unlearning as ul
from tests.workers.recipes import convex


def recipe() -> ul.Recipe:
    return replace(convex.recipe(), identities=os.environ["LISTED_PEOPLE"])
