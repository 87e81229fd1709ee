"""The client's package and the product's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import expunge

ROOT = Path(__file__).parents[2]


def test_product_and_client_have_one_release() -> None:
    facts = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
    assert facts["project"]["version"] == expunge.__version__
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"expunge-client[cli]=={expunge.__version__}" in needed
