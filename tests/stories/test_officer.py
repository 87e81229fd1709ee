"""A privacy officer with a telephone and a case number: find, decide, verify, letter.

``python -m pytest -m "" tests/stories/test_officer.py -s`` prints the taps and seconds of each.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from expunge_service.access.roles import SCOPES, KeyRole
from tests.harness.browser import PHONE, Browser, chromium
from tests.harness.stack import Stack, running
from tests.stories.conftest import recipes_in

TAPS, SECONDS = 4, 60
LEAST_PIXELS = 24
"""of a target's width and height (WCAG 2.2, 2.5.8)"""
COUNTING = """
addEventListener('pointerup', (event) => {
  if (event.isTrusted && event.pointerType === 'touch') sessionStorage.taps = Number(sessionStorage.taps ?? 0) + 1;
}, true);
window.print = () => { document.documentElement.dataset.printed = 'yes'; };
"""
"""the page counts the fingers that it felt; a headless browser has no window for printing"""
PLACE = """
const [selector, text] = arguments;
if (document.readyState !== 'complete') return null;  // without its style sheet a link is a line of text
const fits = (each) => each.checkVisibility() && (each.innerText || '').trim().startsWith(text);
const found = [...document.querySelectorAll(selector)].find(fits);
if (!found) return null;
found.scrollIntoView({block: 'center', behavior: 'instant'});
const {left, top, width, height} = found.getClientRects()[0];
const [x, y] = [left + width / 2, top + height / 2];
const seen = visualViewport, above = document.elementFromPoint(x, y);
return {x, y, width, height, within: left >= 0 && top >= 0 && left + width <= seen.width && top + height <= seen.height,
        on_top: found === above || found.contains(above), scale: seen.scale};
"""
"""where a thing on the page can be touched, after a swipe that brings it into view"""


@dataclass
class Walk:
    """One way over the page, from the start page on. Keys are counted apart from taps."""

    title: str
    browser: Browser
    start: str
    steps: list[str] = field(default_factory=list)
    keys: int = 0
    since: float = 0

    def __post_init__(self) -> None:
        self.browser.go(self.start)
        self.browser.shows("Inbox", "h1")
        self.browser.script("sessionStorage.taps = 0")
        self.since = time.monotonic()

    def tap(self, selector: str, text: str = "") -> None:
        place = self.browser.eventually(lambda: self.browser.script(PLACE, selector, text), bool)
        assert place["within"] and place["on_top"], (self.title, selector, text, place)
        width, height = round(place["width"]), round(place["height"])
        assert min(width, height) >= LEAST_PIXELS, (self.title, selector, text, place)
        self.browser.touch(place["x"], place["y"])
        self.steps.append(f"{text or selector} ({width}x{height})")

    def type(self, text: str) -> None:
        self.browser.type(text)
        self.keys += len(text)

    def finds(self, case: str) -> None:
        """Type the case into the box, which is on every page."""
        self.tap("#find")
        self.browser.eventually(lambda: self.browser.focus()["id"], lambda focused: focused == "find")
        self.type(case)
        self.tap(".find button", "Find")

    def ends(self) -> None:
        """Tell, and check, how many taps and seconds it took."""
        seconds = time.monotonic() - self.since
        taps = int(self.browser.script("return Number(sessionStorage.taps)"))
        print(f"\n{self.title}: {taps} taps, {self.keys} keys, {seconds:.1f} s: {'; '.join(self.steps)}")
        assert taps == len(self.steps), "a tap that the page did not feel"
        assert taps <= TAPS and seconds < SECONDS


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service on which six samples are many."""
    home, recipes = tmp_path_factory.mktemp("home"), recipes_in(tmp_path_factory.mktemp("recipes"))
    with running(home, recipes, GRACE="0.5", LARGE_REQUEST="4") as started:
        yield started


@pytest.fixture(scope="module")
def name(stack: Stack) -> str:
    return stack.live("tiny")


@pytest.fixture(scope="module")
def phone(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A telephone on which an officer is logged in."""
    with chromium(tmp_path_factory.mktemp("profile"), PHONE) as browser:
        browser.before_each_page(COUNTING)
        browser.go(stack.account.url + "/")
        assert browser.script("return innerWidth") == 390
        assert browser.script("return matchMedia('(pointer: coarse) and (hover: none)').matches")
        browser.click("#key")
        browser.type(stack.key(*SCOPES[KeyRole.PRIVACY]))
        browser.click("form.login button")
        browser.shows("Inbox", "h1")
        yield browser


def status(stack: Stack, request: str) -> str:
    return str(stack.client.get(f"/v1/deletion-requests/{request}")["status"])


def test_a_case_is_found(stack: Stack, name: str, phone: Browser) -> None:
    stack.forgotten(name, subject_id="tiny-person-1", regulation="gdpr", case_id="C-2026/101")
    walk = Walk("find", phone, stack.account.url + "/")
    walk.finds("c-2026/101")
    phone.shows("C-2026/101", ".situation")
    assert phone.text(".situation .badge") == "completed"
    walk.ends()


def test_a_case_of_two_requests_is_found(stack: Stack, name: str, phone: Browser) -> None:
    for person in ("tiny-person-7", "tiny-person-8"):
        request = stack.forgotten(name, subject_id=person, regulation="gdpr", case_id="C-2026/106")
    walk = Walk("find one of two", phone, stack.account.url + "/")
    walk.finds("C-2026/106")
    phone.shows("Search", "h1")
    walk.tap("main a.id", request["id"][:8])
    phone.shows(request["id"][:8], ".situation")
    walk.ends()


def test_a_large_case_is_decided(stack: Stack, name: str, phone: Browser) -> None:
    people = ["tiny-person-2", "tiny-person-3"]
    request = stack.ended(stack.delete(name, subject_ids=people, regulation="gdpr", case_id="C-2026/102"))
    assert request["reason"] == "large", request
    walk = Walk("decide", phone, stack.account.url + "/")
    walk.finds("C-2026/102")
    phone.shows("removes 6 samples", "h1")
    walk.tap("main button", "Approve")
    phone.shows("Check your answer", "h1")
    walk.tap("#sure")
    phone.shows("Approved.", ".said")
    walk.ends()
    stack.eventually(lambda: status(stack, request["id"]), lambda now: now == "completed")


def test_a_requester_is_verified(stack: Stack, name: str, phone: Browser) -> None:
    request = stack.delete(name, subject_id="tiny-person-4", verified=False, regulation="gdpr", case_id="C-2026/103")
    walk = Walk("verify", phone, stack.account.url + "/")
    walk.finds("C-2026/103")
    phone.shows("Not yet confirmed", "h1")
    walk.tap("main button", "Verify and continue")
    phone.shows("Check your answer", "h1")
    walk.tap("#sure")
    phone.shows("Verified.", ".said")
    walk.ends()
    stack.eventually(lambda: status(stack, request["id"]), lambda now: now == "completed")


@pytest.mark.parametrize("answer", ["verify", "reject"])
def test_a_requester_is_answered_from_the_inbox(stack: Stack, name: str, phone: Browser, answer: str) -> None:
    request = stack.delete(name, subject_id="tiny-person-5", verified=False, regulation="gdpr", case_id="C-2026/104")
    decide = f".triage li:has(a[href$='{request['id']}']) .button"
    walk = Walk(f"{answer}, from the inbox", phone, stack.account.url + "/")
    walk.tap(decide, "Decide")
    phone.shows("C-2026/104", "dl")
    if answer == "reject":
        walk.tap("#why")
        walk.type("The letter was not signed.")
    walk.tap(f"#{answer}")
    phone.shows("Check your answer", "h1")
    walk.tap("#sure")
    phone.shows("Rejected." if answer == "reject" else "Verified.", ".said")
    walk.ends()
    ends = "rejected" if answer == "reject" else "completed"
    stack.eventually(lambda: status(stack, request["id"]), lambda now: now == ends)


def test_the_letter_is_printed_and_copied(stack: Stack, name: str, phone: Browser) -> None:
    stack.forgotten(name, subject_id="tiny-person-6", regulation="gdpr", case_id="C-2026/105")
    walk = Walk("letter", phone, stack.account.url + "/")
    walk.finds("C-2026/105")
    walk.tap("main a", "Letter to the person")
    phone.shows("C-2026/105", "#letter")
    walk.tap(".print", "Print")
    phone.eventually(lambda: phone.script("return document.documentElement.dataset.printed"), bool)
    walk.ends()
    copied = phone.script(
        "getSelection().selectAllChildren(document.querySelector('#letter')); return getSelection().toString()"
    )
    assert "C-2026/105" in copied and len(copied.split()) > 60, copied
    pdf = base64.b64decode(phone._devtools("Page.printToPDF", {"printBackground": False})["data"])
    assert len(re.findall(rb"/Type /Page\b", pdf)) == 1
