"""The oldest Python that is tried is 3.11.2, of Debian 12: nothing that a later patch release brought is called.

mypy knows what each minor version has, and of no patch release what it added: security fixes add parameters in all
minor versions at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = (
    "unlearning",
    "service",
    "workers",
    "migrations",
    "client",
    "connect",
    "lab",
    "examples",
    "tests",
    "benchmarks",
)
LATER_ARGUMENTS = {
    ("extract", "filter"): "3.11.4",
    ("extractall", "filter"): "3.11.4",
    ("unpack_archive", "filter"): "3.11.4",
    ("getaddresses", "strict"): "3.11.10, 3.12.6",
    ("parseaddr", "strict"): "3.11.10, 3.12.6",
    ("clone", "verify_generated_headers"): "3.11.10, 3.12.5",
}
"""parameters that patch releases added, by the call"""
LATER_NAMES = {
    "data_filter": "3.11.4",
    "tar_filter": "3.11.4",
    "fully_trusted_filter": "3.11.4",
    "FilterError": "3.11.4",
    "SetReparseDeferralEnabled": "3.11.9, 3.12.3",
    "GetReparseDeferralEnabled": "3.11.9, 3.12.3",
    "verify_generated_headers": "3.11.10, 3.12.5",
    "ALLOW_MISSING": "3.11.13, 3.12.11, 3.13.4",
    "LinkFallbackError": "3.11.13, 3.12.11, 3.13.4",
}
"""names that patch releases added to modules; ``getattr`` with a default may ask for one"""


def too_new(tree: ast.AST) -> Iterator[str]:
    """Yield what the code needs of a patch release later than the first of its minor version."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                arguments = [keyword.arg for keyword in node.keywords]
                later = [(name, argument) for argument in arguments if (name, argument) in LATER_ARGUMENTS]
                yield from (f"line {node.lineno}: {name}({argument}=)" for _, argument in later)
            case ast.Attribute(attr=name) | ast.alias(name=name) if name in LATER_NAMES:
                yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("tree", TREES)
def test_nothing_is_newer_than_the_first_patch_release(tree: str) -> None:
    files = sorted(file for file in (ROOT / tree).rglob("*.py") if ".venv" not in file.parts)
    assert files
    wanted = {str(file.relative_to(ROOT)): [*too_new(ast.parse(file.read_bytes()))] for file in files}
    assert {file: lines for file, lines in wanted.items() if lines} == {}


def test_an_argument_of_3_11_4_is_seen() -> None:
    assert [*too_new(ast.parse("archive.extractall(place, filter='tar')"))] == ["line 1: extractall(filter=)"]
    assert [*too_new(ast.parse("tarfile.data_filter"))] == ["line 1: data_filter"]
    assert [*too_new(ast.parse("getattr(tarfile, 'data_filter', None)"))] == []


def test_the_pages_name_the_oldest_python() -> None:
    assert "3.11.2" in (ROOT / "Makefile").read_text() and "3.11.2" in (ROOT / "docs" / "install.md").read_text()
