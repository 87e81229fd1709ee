"""The pages are built by the tool that operators are told to use, and commands in them are ones that exist."""

from __future__ import annotations

import html
import importlib
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import typer

from expunge_client.cli.main import ADMINISTER, EVERYDAY, app, grouped
from tests.docs.commands import BLOCKS, PAGES, ROOT, Block
from tests.docs.screenshots import SHOWN
from tests.harness.browser import chromium

NAMED_ELSEWHERE = {
    "make demo": "tests/stories/test_up.py",
    "make test": "tests/docs/test_site.py",
    "make up": "tests/stories/test_up.py",
}
"""commands of the fenced blocks that another test runs, because they build an environment or never end"""
PHONE = 390
"""CSS pixels"""
COMMAND: Any = typer.main.get_command(app)
FORWARDED = {
    "evaluate": ("expunge_lab.evaluate",),
    "attack": ("expunge_lab.audit_epsilon",),
    "check": ("expunge_workers.check.__main__", "expunge_lab.costs"),
}
"""commands whose options are those of modules that need torch"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make docs`` does; a broken link or an unknown anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_make_docs_builds_strictly() -> None:
    assert re.search(r"^docs: .*\n\t.*properdocs build --strict$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_api_reference_has_every_call_and_every_schema_that_the_service_describes(site: Path) -> None:
    from expunge_service.app import create_app  # noqa: PLC0415
    from expunge_service.infra.settings import Settings  # noqa: PLC0415

    described = create_app(Settings(home=site / "home")).openapi()
    page = html.unescape((site / "api" / "index.html").read_text())
    calls = [f"{method.upper()} {path}" for path, each in described["paths"].items() for method in each]
    assert len(calls) > 30
    assert [call for call in calls if f"<code>{call}</code>" not in page] == []
    assert [name for name in described["components"]["schemas"] if f'id="{name.lower()}"' not in page] == []


def test_the_page_of_commands_has_every_command_and_its_options(site: Path) -> None:
    page = html.unescape((site / "cli" / "index.html").read_text())
    told = set(re.findall(r"<h3 id=\"[^\"]+\"><code>expunge ([a-z -]+?)(?: [A-Z{\[].*?)?</code>", page))
    assert {name for name in surface() if name not in told} == set()
    assert "<code>--retrain-every</code>" in page and "<code>--wait --no-wait</code>" in page


@pytest.mark.parametrize(
    ("words", "guide"),
    [("rotate key", "backup"), ("legal hold", "privacy-officer"), ("delete a person", "privacy-officer")],
)
def test_the_search_has_the_guides_and_no_decision(site: Path, words: str, guide: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert not [entry for entry in entries if entry["location"].startswith("decisions/")]
    having = [
        entry["location"]
        for entry in entries
        if all(word in f"{entry['title']} {entry['text']}".lower() for word in words.split())
    ]
    assert any(location.startswith(f"{guide}/") for location in having), having
    boosts = {entry["location"].partition("/")[0]: entry.get("boost", 1) for entry in entries}
    assert max(boosts["cli"], boosts["api"], boosts["reasons"]) < boosts["faq"] < boosts[guide]


@contextmanager
def served(site: Path) -> Iterator[str]:
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.drill
def test_a_browsers_search_finds_the_guide_first(site: Path, tmp_path: Path) -> None:
    """``boosts`` above is the small twin: it does not run the site's search."""
    asked = {
        "rotate key": "backup/",
        "legal hold": "privacy-officer/",
        "how do I delete a person": "privacy-officer/",
    }
    link = "return document.querySelector('.md-search-result__link')?.getAttribute('href') ?? ''"
    with served(site) as address, chromium(tmp_path / "profile") as browser:
        browser.frame(1280, 900)
        for words, guide in asked.items():
            browser.go(f"{address}/?q={quote(words)}")
            first = browser.eventually(lambda: str(browser.script(link)), bool)
            assert first == f"{address}/{guide}", words


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css|woff2?)"', page.read_text()) == [], page


@pytest.mark.drill
def test_no_page_is_wider_than_a_phone(site: Path, tmp_path: Path) -> None:
    pages = sorted(page.relative_to(site) for page in site.rglob("index.html"))
    assert len(pages) > 40
    widths = {}
    with served(site) as address, chromium(tmp_path / "profile") as browser:
        browser.frame(PHONE, 844)
        for page in pages:
            browser.go(f"{address}/{page.parent}/")
            widths[str(page)] = browser.script("return document.documentElement.scrollWidth")
    print(f"{len(pages)} pages at {PHONE} px, the widest {max(widths.values())}")
    assert {page: width for page, width in widths.items() if width > PHONE} == {}


def test_every_fenced_command_is_run_by_a_test(tmp_path: Path) -> None:
    """Blocks are run word for word by tests/stories/test_docs.py and test_readme.py; the rest is named here."""
    assert len(BLOCKS) > 10
    for block in BLOCKS:
        for line in block.commands():
            if line.startswith("make "):
                named = ROOT / NAMED_ELSEWHERE[line.split("#")[0].strip()]
                assert named.exists()
            else:
                assert block.runner is not None, f"{block.page}: no test runs {line!r}"
                assert (ROOT / block.runner).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_running_text_names_commands_and_options_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for words in re.findall(r"`(?:\.venv/bin/)?expunge ([a-z][^`]*)`", text):
        require(shlex.split(words.replace("...", "")))


def test_every_command_in_an_indented_block_and_on_the_page_exists() -> None:
    """Blocks without a fence are not typed by a test; what they name is checked here."""
    templates = (ROOT / "service" / "expunge_service" / "console" / "templates").glob("*.html")
    lines = [line for page in PAGES for line in re.findall(r"^ {4,}expunge (.+)$", page.read_text(), re.MULTILINE)]
    lines += [line for page in templates for line in re.findall(r"<code>expunge ([^<]+)</code>", page.read_text())]
    assert len(lines) > 12
    for line in lines:
        require(shlex.split(re.sub(r"\{\{.*?\}\}", "NAME", line), comments=True))


def test_the_product_has_no_command_beyond_its_surface() -> None:
    found = set()
    for name in (name for title in (EVERYDAY, ADMINISTER) for name in grouped()[title]):
        parts = getattr(COMMAND.get_command(None, name), "commands", {})
        found |= {f"{name} {part}" for part in parts} or {name}
    assert found <= surface()
    assert len({" ".join(words.split()[:1]) if words.startswith("run ") else words for words in found}) == 49


def surface() -> set[str]:
    return {" ".join(word for word in words.split() if not word.startswith("--")) for words in SURFACE.split("; ")}


def require(words: list[str]) -> None:
    """Fail where a word that should be a command, or an option, is not one."""
    command = COMMAND
    while words and hasattr(command, "get_command"):
        found = command.get_command(None, words[0])
        assert found is not None, f"expunge has no command {words[0]!r}"
        command, words = found, words[1:]
    if command.name in FORWARDED:
        parsers = [importlib.import_module(module)._parser() for module in FORWARDED[command.name]]
        known = {option for parser in parsers for option in parser._option_string_actions}
    else:
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert asked <= known, (command.name, asked - known)


@pytest.mark.parametrize("words", ["doctor --jason", "requests shout"])
def test_a_command_that_does_not_exist_would_be_found(words: str) -> None:
    with pytest.raises(AssertionError):
        require(words.split())


def test_the_documents_show_every_picture_that_is_kept() -> None:
    shown = {name for page in PAGES for name in re.findall(r"screens/([\w-]+\.webp)", page.read_text())}
    kept = {path.name: path.read_bytes()[8:12] for path in SHOWN.iterdir()}
    assert shown == kept.keys()
    assert set(kept.values()) == {b"WEBP"}


SURFACE = (
    "up; status --open; delete --subject --wait --estimate; find --subject; versions; check --measure; requests "
    "list; requests show; requests verify; requests reject; requests same-person --subject --file; "
    "requests other-person --file; requests approve; requests cancel; requests retry; "
    "requests extend; certificate show --out; certificate verify; models add --recipe --method --option --guarantee "
    "--epsilon --fallback --batch --retrain-every --leave-out-forgotten --set --no-wait; models list; models show; "
    "models retrain; models port --dry-run; models policy --set; models retire; holds place; holds list; holds lift; "
    "audit list; audit verify; audit export; audit rotate-key; keys create; keys list; keys rotate; keys revoke; "
    "webhooks add; webhooks list; webhooks remove; models remove-consumer; login; logout; doctor; "
    "drain --wait --undo; init; migrate; backup; restore; run api; run worker --gpus; run updater; run scheduler; "
    "lab evaluate; lab attack; drop import; drop match; drop status; drop export; registry bundle; "
    "registry push; opendsr serve"
)
"""what the design's page on the surface promises"""


@pytest.mark.parametrize("words", SURFACE.split("; "))
def test_the_command_line_has_every_command_of_the_surface(words: str) -> None:
    require(words.split())


@pytest.mark.parametrize(
    "words", ["models list", "models show", "requests list", "versions", "keys list", "holds list", "webhooks list"]
)
def test_every_list_has_json(words: str) -> None:
    require([*words.split(), "--json"])


def test_a_block_is_split_into_its_commands() -> None:
    text = "# a remark\none \\\n  two\npython - <<'EOF'\nprint(1)\nEOF\nthree # four\n"
    block = Block(ROOT / "README.md", "bash", text)
    assert block.commands() == ["one \\\n  two", "python - <<'EOF'\nprint(1)\nEOF", "three # four"]
