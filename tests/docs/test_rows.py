"""The recipe of docs/rows.md, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unlearning as ul
from expunge_workers.check.checks import check

PAGE = (Path(__file__).parents[2] / "docs" / "rows.md").read_text()


RECIPES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(f"p{person},{60 + person % 9},{person % 2}\n" for person in range(50))
    (tmp_path / "patients.csv").write_text(f"patient,pulse,ill\n{lines}")
    return tmp_path


def test_the_first_recipe_of_the_page_trains_when_it_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    scope: dict[str, object] = {}
    exec(RECIPES[0], scope)
    published = scope["recipe"]()  # type: ignore[operator]
    assert isinstance(published, ul.Published) and [*published.files] == ["model.json"]


def test_the_second_can_have_a_proof(folder: Path) -> None:
    (folder / "patients.py").write_text(RECIPES[1])
    checked = check(folder, "patients")
    assert all(finding["well"] for finding in checked["findings"])
    methods = {method["method"]: method["guarantee"] for method in checked["methods"]}
    assert (methods["retrain"], methods["newton"]) == ("exact", "proved")
