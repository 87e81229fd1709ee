"""A recipe whose own module reads the table when it is imported, which the recipe's text does not show."""

from __future__ import annotations

from columns import CITIES
from sources import PEOPLE
from training import train

from unlearning.rows import Published, Rows


def local_module(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: CITIES)


def local_module_while_it_trains(rows: Rows = PEOPLE) -> Published:
    """Imports it again, from a folder where it may have been changed."""
    import importlib  # noqa: PLC0415

    import columns  # noqa: PLC0415

    return train(rows, lambda: importlib.reload(columns).CITIES)
