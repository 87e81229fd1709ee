"""The recipes of docs/recipes.md, checked as they stand."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unlearning as ul
from expunge_workers.check.checks import check
from unlearning.rows import call_recipe

ROOT = Path(__file__).parents[2]
BLOCKS = dict(
    re.findall(
        r"`recipes/(\w+)\.py`:\n\n```python\n(.*?)^```$",
        (ROOT / "docs" / "recipes.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)


def recipe_of(name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(BLOCKS[name], namespace)
    return cast(Callable[..., Any], namespace["recipe"])


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


def test_the_recipe_of_a_network_trains_where_a_last_batch_is_one_row(tmp_path: Path) -> None:
    """A deletion can leave any number of rows; batch normalisation refuses a batch of one."""
    recipe = recipe_of("network")
    [source, _] = (parameter.default for parameter in signature(recipe).parameters.values())

    def trained_on(rows: ul.Rows = source) -> int:
        return len(rows.split(0.1)[0])

    digits = pq.read_table(ROOT / "examples/digits/digits.parquet")
    (tmp_path / "digits").mkdir()
    for count in range(80, 300):
        people = pa.array([f"p{place}" for place in range(count)])
        rows = digits.slice(0, count).drop_columns("person").append_column("person", people)
        pq.write_table(rows, tmp_path / "digits/digits.parquet")
        if call_recipe(trained_on, lambda _: tmp_path) % 64 == 1:
            break
    assert call_recipe(trained_on, lambda _: tmp_path) % 64 == 1
    assert call_recipe(recipe, lambda _: tmp_path).files.keys() == {"model.safetensors"}


def test_every_block_of_the_page_is_one_of_these() -> None:
    assert BLOCKS.keys() == {"frozen", "tangent", "network"}
