"""The recipe of docs/rows.md, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unlearning as ul

PAGE = (Path(__file__).parents[2] / "docs" / "rows.md").read_text()


def test_the_recipe_of_the_page_trains_when_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"p{person},{60 + person % 9},{person % 2}\n" for person in range(50))
    (tmp_path / "patients.csv").write_text(f"patient,pulse,ill\n{lines}")
    monkeypatch.chdir(tmp_path)
    code, _ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    scope: dict[str, object] = {}
    exec(code, scope)
    published = scope["recipe"]()  # type: ignore[operator]
    assert isinstance(published, ul.Published) and [*published.files] == ["model.json"]
