"""What the pages tell a newcomer to save and to type, saved and typed word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sklearn.datasets import load_wine

from tests.docs.commands import ROOT, Block
from tests.harness.source import SOURCE_PATH
from tests.harness.stack import Stack

pytestmark = [
    pytest.mark.parametrize("stack", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("suppressed_for_this_test"),
]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
RECIPES = (ROOT / "docs" / "recipes.md").read_text()
GROWN = RECIPES[RECIPES.index("## When the table grows") : RECIPES.index("## A frozen backbone")]


@pytest.fixture
def clone(stack: Stack, tmp_path: Path) -> Path:
    """A folder like a clone after ``make up``: ``.venv/bin`` holds this Python, ``recipes`` the stack's."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("expunge", "-m expunge_client.cli.main ")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "recipes").symlink_to(stack.settings.recipes)
    return tmp_path


def typed(text: str, folder: Path, stack: Stack) -> str:
    """What the block prints. Every command of it must succeed."""
    environment = stack.environment | {
        "EXPUNGE_URL": stack.account.url,
        "EXPUNGE_API_KEY": stack.account.api_key,
        "PYTHONPATH": SOURCE_PATH,
    }
    command = ["bash", "-e", "-o", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}\n{stack.logs()}"
    return done.stdout


def followed(text: str, folder: Path, stack: Stack) -> Iterator[tuple[str, str]]:
    """Save each Python block where the text before it says so, type each bash block: (block, its output) of these."""
    place = 0
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        language, block = found.groups()
        if language == "python":
            for name in re.findall(r"`(recipes/\w+\.py)`", text[place : found.start()])[-1:]:
                (folder / name).write_text(block)
        elif not all(line.startswith("make ") for line in Block(ROOT, language, block).commands()):
            yield block, typed(block, folder, stack)
        place = found.end()


def trained_on(stack: Stack, people: list[str]) -> str:
    """The first of these whom the tutorial's recipe does not keep apart in this installation."""
    return next(person for person in people if not stack.keeps_apart(person, 0.2))


def part(page: str, first: str, last: str) -> str:
    """The page from one of its headings to another."""
    return page[page.index(first) : page.index(last)]


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_your_own_model_in_ten_minutes_word_for_word(stack: Stack, clone: Path) -> None:
    person = trained_on(stack, [f"person-{number}" for number in range(50)])
    page = TUTORIAL[TUTORIAL.index("## 1. ") :].replace("person-7", person) + GROWN
    said = dict(followed(page, clone, stack))
    assert len(said) == 6
    checked = next(text for block, text in said.items() if "expunge check" in block)
    assert "Two processes made the same bytes." in checked and "FAIL" not in checked
    statement = next(text for block, text in said.items() if "certificate show" in block)
    assert '"guarantee": "proved"' in statement
    assert json.loads((clone / "certificate.json").read_text())["signatures"]
    assert stack.head("people")["number"] == 3, "the deletion, and the retrain on the table that grew"


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_a_table_that_the_page_does_not_mention_ends_in_a_certified_deletion(stack: Stack, clone: Path) -> None:
    """The wines of scikit-learn, 13 columns of very different sizes; nothing of the page is changed but the names.

    ``-s`` prints how long the machine took from the table to the deletion; reading and typing come on top.
    """
    ours = TUTORIAL[TUTORIAL.index("## 2. ") :].replace("people", "wines")
    assert "bottle" not in TUTORIAL + RECIPES
    ours = ours.replace("person-7", trained_on(stack, [f"grower-{number}" for number in range(59)]))
    table = load_wine()
    header = ",".join(["id", "person", "label", *(name.replace("/", "_") for name in table.feature_names)])
    rows = [
        f"bottle-{k},grower-{k // 3},{label},{','.join(map(str, features))}"
        for k, (features, label) in enumerate(zip(table.data, table.target, strict=True))
    ]
    (clone / "recipes" / "wines.csv").write_text("\n".join([header, *rows]) + "\n")
    said, since, deleted = {}, time.monotonic(), 0.0
    for block, text in followed(ours, clone, stack):
        said[block] = text
        if "expunge delete" in block:
            deleted = time.monotonic() - since
    print(f"\na deletion from an own table: {deleted:.0f} s")
    assert 0 < deleted < 600
    request = json.loads(typed(".venv/bin/expunge requests list --status completed --json", clone, stack))[0]
    assert request["models"][0]["model"] == "wines" and request["models"][0]["samples"] == 3
    assert any("certificate show" in block for block in said)
    assert stack.head("wines")["claim"]["guarantee"] == "proved"


def test_the_first_look_word_for_word(stack: Stack, clone: Path) -> None:
    said = "".join(text for _, text in followed(part(TUTORIAL, "## First look", "## 1. "), clone, stack))
    assert "quick" in said and "completed" in said
