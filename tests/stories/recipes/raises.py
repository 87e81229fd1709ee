"""A recipe that fails on a person's record, and says so."""

import unlearning as ul


def recipe() -> ul.Recipe:
    raise RuntimeError("cannot read the record of tiny-person-7")
