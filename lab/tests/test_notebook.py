"""A notebook shows what the command prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from expunge_lab import advise, check

RECIPES = Path(__file__).parents[2] / "tests" / "workers" / "recipes"


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, expunge_lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="measure"):
        __import__("expunge_lab").measure  # noqa: B018


def test_a_good_recipe_is_shown_with_each_methods_guarantee() -> None:
    found = check(RECIPES / "convex.py")
    shown = found._repr_html_()
    assert found.well and shown.count("<table>") == 2
    assert "<td style='text-align:left'>newton</td><td style='text-align:left'>proved</td>" in shown
    assert "newton | proved" in str(found)


def test_after_a_refusal_no_guarantee_is_named_and_texts_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("person\nada\nbob\n")
    raises = 'def recipe(rows=ul.table("people.csv", person="person")):\n    raise ValueError("<script>")\n'
    (tmp_path / "bad.py").write_text(f"import unlearning as ul\n{raises}")
    found = check(tmp_path / "bad.py")
    shown = found._repr_html_()
    assert not found.well and shown.count("<table>") == 1 and "FAIL" in shown
    assert "ValueError at line 3 of bad.py" in shown and "<script>" not in shown and "proved" not in shown


def test_advice_is_a_table_with_the_advice_below() -> None:
    found = advise(RECIPES / "convex.py", seconds=20, methods="newton,retrain")
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3 and "newton" in shown and "retrain" in shown
    assert shown.endswith("</b></p>") and str(found).splitlines()[-1]
