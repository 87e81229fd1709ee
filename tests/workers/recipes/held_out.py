"""``convex``, which says whose its holdout is: two people whom nobody trains on, and one whom it trains on as well."""

from dataclasses import replace

import convex

import unlearning as ul


def recipe() -> ul.Recipe:
    return replace(convex.recipe(), holdout_subjects=["aside", "aside", ("besides", "p1"), *["aside"] * 7])
