"""The script that prints the figures counts what it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import path_of_an_update
from tests.docs import figures, plain_english


def test_an_exception_is_found_through_its_parents() -> None:
    source = "class A(ValueError): ...\nclass B(A): ...\nclass C(a.B): ...\nclass D: ..."
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert figures.exceptions(classes) == {"A", "B", "C"}


def test_reasons_are_the_members_of_the_enum_or_the_keys_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "enum.py").write_text('class Reason:\n    A = ("a", "A sentence.")\n    B = "b"\n')
    (tmp_path / "table.py").write_text('REASONS = {"c": "a sentence"}\n')
    assert figures.reasons(sorted(tmp_path.iterdir())) == {"a", "b", "c"}


def test_functions_are_counted_once_and_their_nesting_at_its_deepest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "one.py"
    path.write_text("def outer():\n    return [inner() for _ in range(2)]\n\ndef inner():\n    return 1\n")
    scope: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    monkeypatch.setattr(path_of_an_update, "ROOMS", (f"{tmp_path}/service/",))
    assert path_of_an_update.reached(scope["outer"]) == (1, 2, 2)  # type: ignore[arg-type]


def test_a_word_in_place_of_a_noun_is_counted_in_texts_and_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""Whom to ask."""\nX = 1\n"""nothing"""\n\ndef f():\n    """Return whole."""\n    return "nobody"\n'
    )
    assert [text for _, text in figures.docstrings_of(path)] == ["Whom to ask.", "nothing", "Return whole."]
    assert figures.unnamed(["Whom to ask.", "nothing", "Return whole."]) == 333.3


def test_every_reason_has_a_page() -> None:
    assert figures.counted(plain_english.ROOT)["reasons without a page"] == 0
