"""Every block that a day brings, resolved once by what the page offers and once by what the terminal prints.

``python -m pytest -m drill tests/stories/test_operator.py -s`` prints each way and its seconds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from expunge_service.access.roles import SCOPES, KeyRole
from tests.harness.browser import Browser, chromium
from tests.harness.stack import Stack, running
from tests.stories.conftest import recipes_in
from tests.stories.test_tries import Try, enter

pytestmark = pytest.mark.drill
ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent / "recipes"
LEDGER = (RECIPES / "tiny.py").read_text().replace("tiny.csv", "ledger.csv")
TABLE = (RECIPES / "tiny.csv").read_text()
PEOPLE = [f"tiny-person-{number}" for number in range(20)]

Story = Iterator[str]
"""brings a request of this person to its block and yields its id; what follows is done by hand, as the text asks"""


def unverified(stack: Stack, person: str) -> Story:
    yield str(stack.delete("ledger", subject_id=person, verified=False)["id"])


def legal_hold(stack: Stack, person: str) -> Story:
    stack.client.post("/v1/holds", {"subject_id": person, "reason": "a lawsuit"})
    yield blocked(stack, subject_id=person)


def large(stack: Stack, person: str) -> Story:
    """The person is known by two ids."""
    yield blocked(stack, subject_ids=[person, PEOPLE[PEOPLE.index(person) + 1]])


def samples_changed(stack: Stack, person: str) -> Story:
    """The last two people are lost from the file when a worker starts: one that has read it keeps the samples."""
    file = stack.settings.recipes / "ledger.csv"
    lost = tuple(f",{person}," for person in PEOPLE[-2:])
    file.write_text("".join(line for line in TABLE.splitlines(True) if not any(person in line for person in lost)))
    stack.restart("worker")
    yield blocked(stack, subject_id=person)
    file.write_text(TABLE)


def recipe_failed(stack: Stack, person: str) -> Story:
    """The file is away when a worker starts."""
    file = stack.settings.recipes / "ledger.csv"
    away = file.rename(file.with_suffix(".away"))
    stack.restart("worker")
    yield blocked(stack, subject_id=person)
    away.rename(file)


def recipe_changed(stack: Stack, person: str) -> Story:
    file = stack.settings.recipes / "ledger.py"
    file.write_text(LEDGER + "EDITED = True\n")
    yield blocked(stack, subject_id=person)
    file.write_text(LEDGER)


def budget_exhausted(stack: Stack, person: str) -> Story:
    """A model of its own, whose budget lasts for few updates."""
    tight = stack.live("tiny", epsilon=2, delta=1e-5, noise_std=3e-5, fallback="hold")
    for each in PEOPLE:
        request = stack.ended(stack.delete(tight, subject_id=each))
        if request["status"] == "blocked":
            break
    yield str(request["id"])


def blocked(stack: Stack, **order: object) -> str:
    request = stack.ended(stack.delete("ledger", **order))
    assert request["status"] == "blocked", request
    return str(request["id"])


@dataclass(frozen=True)
class Block:
    """How a block comes about, the role that resolves it, the buttons pressed, and the repair that the text asks for.

    ``people`` are a person for the page, and one for the terminal.
    """

    story: Callable[[Stack, str], Story]
    role: KeyRole
    presses: tuple[str, ...]
    people: tuple[str, str]
    repair: str = ""

    @property
    def reason(self) -> str:
        return self.story.__name__


OFFICER, OPERATOR = KeyRole.PRIVACY, KeyRole.OPERATOR
BLOCKS = (
    Block(unverified, OFFICER, ("Decide", "Verify and continue", "Verify and continue"), (PEOPLE[0], PEOPLE[1])),
    Block(legal_hold, OFFICER, ("Open the hold", "Lift the hold", "Lift the hold"), (PEOPLE[2], PEOPLE[3])),
    Block(large, OFFICER, ("Decide", "Approve", "Approve"), (PEOPLE[4], PEOPLE[6])),
    Block(samples_changed, OPERATOR, ("Retry",), (PEOPLE[8], PEOPLE[9]), "Put them back"),
    Block(recipe_failed, OPERATOR, ("Retry",), (PEOPLE[10], PEOPLE[11]), "Correct it"),
    Block(recipe_changed, OPERATOR, ("Retry",), (PEOPLE[12], PEOPLE[13]), "Put it back"),
    Block(budget_exhausted, OPERATOR, ("Train ", "Retrain now"), (PEOPLE[0], PEOPLE[0])),
)
each_block = pytest.mark.parametrize("block", [pytest.param(block, id=block.reason) for block in BLOCKS])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service on which six samples are many, with a live model ``ledger``."""
    home, recipes = tmp_path_factory.mktemp("home"), recipes_in(tmp_path_factory.mktemp("recipes"))
    (recipes / "ledger.py").write_text(LEDGER)
    (recipes / "ledger.csv").write_text(TABLE)
    with running(home, recipes, GRACE="0.5", LARGE_REQUEST="4") as started:
        started.client.post("/v1/models", {"name": "ledger", "recipe": "ledger", "method": "recollection", "batch": 0})
        prepared = started.prepared("ledger")
        assert prepared["status"] == "live", prepared
        yield started


@pytest.fixture
def browser(stack: Stack, tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture
def shell(stack: Stack, tmp_path: Path) -> Callable[[KeyRole], Callable[[str], str]]:
    """Return what makes a shell for a role; it runs a line as it was typed, and returns what the line prints."""
    program = tmp_path / "expunge"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m expunge_client.cli.main "$@"\n')
    program.chmod(0o755)

    def of(role: KeyRole) -> Callable[[str], str]:
        environment = stack.environment | {
            "EXPUNGE_URL": stack.account.url,
            "EXPUNGE_API_KEY": stack.key(*SCOPES[role]),
            "PATH": f"{tmp_path}:/usr/bin:/bin",
        }

        def typed(line: str) -> str:
            done = subprocess.run(
                ["bash", "-c", line], env=environment, input="y\n", capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout + done.stderr

        return typed

    return of


def reason_of(stack: Stack, request: str) -> str:
    told = stack.client.get(f"/v1/deletion-requests/{request}")
    return str(next((part["reason"] for part in told["models"] if part["reason"]), told["reason"]))


@each_block
def test_a_block_is_resolved_by_what_the_page_offers(stack: Stack, browser: Browser, block: Block) -> None:
    enter(stack, browser, block.role)
    story = block.story(stack, block.people[0])
    request = next(story)
    assert reason_of(stack, request) == block.reason
    way = Try(f"{block.reason}, on the page", browser)
    browser.shows(request[:8], "#queue")
    browser.go(f"{stack.account.url}/console/requests/{request}")
    said = browser.text("#remedy")
    assert block.repair in said
    next(story, None)
    browser.go(stack.account.url + "/")
    for label in block.presses:
        way.click(label)
    ends_completed(stack, request)
    way.tell()


@each_block
def test_a_block_is_resolved_by_the_commands_that_the_terminal_prints(
    stack: Stack, shell: Callable[[KeyRole], Callable[[str], str]], block: Block
) -> None:
    """The commands are run in their order until the request is blocked no more."""
    story = block.story(stack, block.people[1])
    request = next(story)
    assert reason_of(stack, request) == block.reason
    typed, since = shell(block.role), time.monotonic()
    listed = typed("expunge requests list --status blocked")
    (row,) = [line for line in listed.splitlines() if block.reason in line]
    (next_command,) = re.findall("`(expunge .*) ID`", listed)
    show = f"{next_command} {row.split()[0]}"
    lines = [line.strip() for line in typed(show).splitlines()]
    assert any(block.repair in line for line in lines)
    next(story, None)
    ran = []
    for line in lines:
        if line.startswith("expunge ") and "blocked" in typed(show):
            typed(line)
            ran.append(line)
    ends_completed(stack, request)
    assert "completed on" in typed(show)
    print(f"\n{block.reason}, in the terminal: {time.monotonic() - since:.1f} s: {'; '.join(ran)}")


def ends_completed(stack: Stack, request: str) -> None:
    path = f"/v1/deletion-requests/{request}"
    ended = stack.eventually(
        lambda: stack.client.get(path)["status"], lambda now: now in ("completed", "cancelled", "rejected")
    )
    assert ended == "completed"
