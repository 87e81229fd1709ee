"""The laboratory's package beside the product's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import expunge


def test_the_laboratory_has_the_release_of_the_product_that_it_was_tested_with() -> None:
    facts = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    assert facts["project"]["version"] == expunge.__version__
