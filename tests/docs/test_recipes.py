"""The recipes of docs/recipes.md, checked as they stand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from expunge.workers.check.checks import check

ROOT = Path(__file__).parents[2]
BLOCKS = dict(
    re.findall(
        r"`recipes/(\w+)\.py`:\n\n```python\n(.*?)^```$",
        (ROOT / "docs" / "recipes.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)


@pytest.mark.parametrize(
    ("name", "method", "guarantee"),
    [("frozen", "newton", "proved"), ("tangent", "newton", "proved"), ("network", "late", "exact")],
)
def test_a_recipe_of_the_page_can_have_what_it_says(tmp_path: Path, name: str, method: str, guarantee: str) -> None:
    shutil.copytree(ROOT / "examples" / "digits", tmp_path / "digits")
    (tmp_path / f"{name}.py").write_text(BLOCKS[name])
    checked = check(tmp_path, name)
    assert all(finding["well"] for finding in checked["findings"]), checked["findings"]
    assert {found["method"]: found["guarantee"] for found in checked["methods"]}[method] == guarantee


def test_every_block_of_the_page_is_one_of_these() -> None:
    assert BLOCKS.keys() == {"frozen", "tangent", "network"}
