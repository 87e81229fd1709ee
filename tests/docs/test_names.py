"""One name, one class: no two public classes of the source share a name, and none reaches clients as a path."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from expunge_service.app import create_app
from expunge_service.infra.settings import Settings
from expunge_service.requests.webhooks import WebhookEvent
from tests.docs.commands import PAGES, ROOT
from tests.harness.source import HOUSES


def classes(package: str) -> list[tuple[str, str]]:
    """Return name and file of every public class."""
    return [
        (node.name, str(path.relative_to(ROOT)))
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("service", "workers", "unlearning"):
        for name, path in classes(package):
            places[name].append(path)
    assert len(places) > 150
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


SHORT = {"unlearning": "ul"}
"""what every recipe writes"""


def other_names(source: str, ours: Callable[[str], bool]) -> list[str]:
    """Return the modules of ours that a source imports under a name that is not theirs."""
    named = [
        (f"{node.module}.{each.name}" if isinstance(node, ast.ImportFrom) else each.name, each.asname)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if each.asname is not None
    ]
    return [
        f"{module} as {alias}"
        for module, alias in named
        if ours(module) and alias != module.rpartition(".")[2] and SHORT.get(module) != alias
    ]


def is_module_of_ours(name: str) -> bool:
    path = name.replace(".", "/")
    roots = [ROOT / house for house in HOUSES]
    return any((root / path).is_dir() or (root / f"{path}.py").is_file() for root in roots)


def test_a_module_bears_its_own_name_wherever_it_is_imported() -> None:
    folders = (
        "service",
        "workers",
        "unlearning",
        "migrations",
        "client",
        "connect",
        "lab",
        "engines",
        "tests",
        "benchmarks",
        "examples",
    )
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 500
    found = {str(path.relative_to(ROOT)): other_names(path.read_text(), is_module_of_ours) for path in paths}
    assert {path: names for path, names in found.items() if names} == {}


def test_another_name_for_a_module_is_found() -> None:
    assert other_names("from expunge_service.audit import merkle as tree", is_module_of_ours) == [
        "expunge_service.audit.merkle as tree"
    ]
    allowed = "import unlearning as ul\nimport numpy as np\nfrom expunge_service.audit import record as note"
    assert other_names(allowed, is_module_of_ours) == []


def test_no_module_path_is_in_the_openapi_document(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(home=tmp_path))) as client:
        names = client.get("/openapi.json").json()["components"]["schemas"]
    assert len(names) > 30
    assert [name for name in names if "__" in name or "service" in name] == []


def test_a_kind_of_webhook_that_a_page_names_is_one() -> None:
    texts = {page: page.read_text() for page in PAGES}
    named = {(page.name, kind) for page in PAGES for kind in re.findall(r"webhook of the kind `([^`]+)`", texts[page])}
    assert named and {kind for _, kind in named} <= set(WebhookEvent), named
    (listed,) = re.findall(r"^Kinds: (.+)$", texts[ROOT / "docs" / "integrate.md"], re.MULTILINE)
    told = re.findall(r"`([^`]+)`", listed)
    missing = [kind for kind in WebhookEvent if kind not in told and kind.rpartition(".")[2] not in told]
    assert not missing
