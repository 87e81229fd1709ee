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

from expunge.service.access.roles import SCOPES, KeyRole
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
    for text in ("completed", "GDPR", "met", CASE):
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


def blocked(stack: Stack, *models: str, **order: object) -> str:
    request = stack.ended(stack.delete(*models, **order))
    assert request["status"] == "blocked", request
    return str(request["id"])


def resolved(stack: Stack, request: str) -> str:
    """Wait for the end of a request, and return its status."""
    path = f"/v1/deletion-requests/{request}"
    return str(
        stack.eventually(lambda: stack.client.get(path), lambda now: now["status"] in ("completed", "cancelled"))[
            "status"
        ]
    )


def follow(stack: Stack, browser: Browser, title: str, request: str, *clicks: str) -> None:
    """Open the list of what is blocked as an operator would, then the request, then press what it offers."""
    way = Try(title, browser)
    browser.go(stack.account.url + "/")
    way.click("Requests")
    browser.go(f"{stack.account.url}/console/requests?status=blocked")
    way.steps.append("chose the status *blocked*")
    way.click(request[:8])
    way.steps.append(f"read “{browser.text('.reason')} {browser.text('#remedy')}”")
    for label in clicks:
        way.click(label)
    assert resolved(stack, request) == "completed"
    way.steps.append("it completed")
    way.tell()


def test_who_is_named_resolves_what_is_blocked_by_what_the_page_says(
    stack: Stack, browser: Browser, suppressed_for_this_test: None
) -> None:
    enter(stack, browser, KeyRole.PRIVACY)
    name = stack.live("tiny")
    unverified = str(stack.delete(name, subject_id="tiny-person-1", verified=False)["id"])
    follow(stack, browser, "(b) unverified", unverified, "Verify and continue", "Verify and continue")

    stack.client.post("/v1/holds", {"subject_id": "tiny-person-2", "reason": "a lawsuit"})
    held = blocked(stack, name, subject_id="tiny-person-2")
    follow(stack, browser, "(b) legal_hold", held, "Lift the hold", "Lift the hold")

    stack.restart("api", EXPUNGE_LARGE_REQUEST="1")
    stack.eventually(lambda: ready(stack), lambda up: up)
    large = blocked(stack, name, subject_id="tiny-person-3")
    follow(stack, browser, "(b) large", large, "Approve", "Approve")
    stack.restart("api")
    stack.eventually(lambda: ready(stack), lambda up: up)

    browser.script("document.querySelector('form[action=\"/console/logout\"] button').click()")
    browser.shows("key", "main")
    enter(stack, browser, KeyRole.OPERATOR)
    recipe = stack.settings.recipes / "mine.py"
    text = (stack.settings.recipes / "tiny.py").read_text()
    recipe.write_text(text)
    mine = stack.live("mine")
    recipe.write_text(text + "\nCHANGED = True\n")
    changed = blocked(stack, mine, subject_id="tiny-person-4")
    recipe.write_text(text)
    follow(stack, browser, "(b) recipe_changed, after the file was put back", changed, "Retry")

    tight = stack.live("tiny", epsilon=2, delta=1e-5, noise_std=3e-5, fallback="hold")
    for number in range(5, 12):
        last = stack.ended(stack.delete(tight, subject_id=f"tiny-person-{number}"))
        if last["status"] == "blocked":
            break
    assert last["reason"] == "budget_exhausted", last
    follow(stack, browser, "(b) budget_exhausted", str(last["id"]), f"Train {tight} again now", "Retrain now")


def ready(stack: Stack) -> bool:
    try:
        return bool(stack.http.get("/readyz").status_code == 200)
    except OSError:
        return False
    except Exception:  # httpx's own: nobody listens yet
        return False
