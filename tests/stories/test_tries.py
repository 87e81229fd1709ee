"""The page tried as a new user would: what was clicked, how often, and how long it took.

``python -m pytest -m drill tests/stories/test_tries.py -s`` prints each way.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from expunge_service.access.roles import SCOPES, KeyRole
from tests.harness.browser import ENTER, Browser, chromium
from tests.harness.stack import Stack

pytestmark = [
    pytest.mark.drill,
    pytest.mark.parametrize("stack", ["sqlite"], indirect=True),
]
CASE = "DSR-2026/113"
_CLICK = """
const found = [...document.querySelectorAll('a, button')].find(e => e.textContent.trim().startsWith(arguments[0]));
if (!found || !found.checkVisibility()) return false;
window.before = true;
found.click();
return true;
"""
"""in one step, because a page that follows events may exchange what was found"""
_NEXT = "return window.before === undefined && document.readyState === 'complete'"


@dataclass
class Try:
    """One person's way over the page."""

    title: str
    browser: Browser
    steps: list[str] = field(default_factory=list)
    clicks: int = 0
    since: float = field(default_factory=time.monotonic)

    def click(self, what: str) -> None:
        """Click the link or button that reads so."""
        self.browser.eventually(lambda: self.browser.script(_CLICK, what), bool)
        self.browser.eventually(lambda: self.browser.script(_NEXT), bool)
        self.clicks += 1
        self.steps.append(f"clicked *{what}*")

    def type(self, selector: str, text: str, said: str) -> None:
        self.browser.click(selector)
        self.browser.type(text)
        self.clicks += 1
        self.steps.append(f"clicked the field and typed {said}")

    def reads(self, text: str) -> None:
        self.browser.shows(text, "main")
        self.steps.append(f"read “{text}”")

    def tell(self) -> float:
        seconds = time.monotonic() - self.since
        print(f"\n**{self.title}**: {self.clicks} clicks, {seconds:.1f} s. {'; '.join(self.steps)}.")
        return seconds


@pytest.fixture
def browser(stack: Stack, tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


def enter(stack: Stack, browser: Browser, role: KeyRole) -> None:
    browser.go(stack.account.url + "/")
    browser.click("#key")
    browser.type(stack.key(*SCOPES[role]) + ENTER)
    browser.shows("Models", "#models")


def test_a_privacy_officer_answers_whether_jane_was_deleted(
    stack: Stack, browser: Browser, suppressed_for_this_test: None
) -> None:
    """Did we delete Jane, when, on what ground? From the page, in under a minute, and printed."""
    name = stack.live("tiny")
    done = stack.forgotten(name, subject_id="tiny-person-7", regulation="gdpr", case_id=CASE)
    stack.eventually(
        lambda: stack.http.get(f"/v1/deletion-requests/{done['id']}/certificate", headers=bearer(stack)).status_code,
        lambda status: status == 200,
    )
    enter(stack, browser, KeyRole.PRIVACY)
    way = Try("(a) Did we delete Jane, when, on what ground?", browser)
    way.type("#find", "tiny-person-7" + ENTER, "the person's id")
    way.click("Search people")
    way.reads("forgot the person")
    way.click(done["id"][:8])
    for text in ("completed", "GDPR", "before the deadline", CASE):
        way.reads(text)
    way.click("Open the certificate")
    for text in (name, "the deadline of the GDPR", CASE):
        way.reads(text)
    printed = browser._devtools("Page.printToPDF", {"printBackground": False})["data"]
    pdf = base64.b64decode(printed)
    way.steps.append(f"printed it ({pdf.count(b'/Type /Page') - pdf.count(b'/Type /Pages')} pages)")
    assert pdf.startswith(b"%PDF") and len(pdf) > 10_000
    assert way.tell() < 60
    print("What the certificate's page says first:", " ".join(browser.text("main").split())[:700])


def bearer(stack: Stack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.account.api_key}"}
