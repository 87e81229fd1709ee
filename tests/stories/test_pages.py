"""Every page in a real browser: axe-core is content, nothing scrolls sideways, forms work without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.browser import Browser, chromium
from tests.harness.furnished import PRESSED, furnish, show
from tests.harness.stack import Stack
from tests.stories.test_status_page import OVERFLOWING, axe, faults, log_in

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
PHONE = (390, 844)
UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture
def browser(stack: Stack, tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(stack: Stack) -> dict[str, str]:
    return furnish(stack)


@pytest.mark.drill
def test_no_page_scrolls_sideways_on_a_phone(browser: Browser, stack: Stack, pages: dict[str, str]) -> None:
    browser.frame(*PHONE)
    log_in(browser, stack)
    found = {}
    for name in (*pages, *PRESSED):
        show(browser, stack, pages, name)
        browser.script(UNFOLD)
        assert browser.text("h1"), f"{name} shows nothing"
        if wide := browser.script(OVERFLOWING):
            found[name] = wide[:3]
    assert not found, json.dumps(found, indent=1)


@pytest.mark.drill
def test_axe_core_finds_nothing_serious_on_any_page(browser: Browser, stack: Stack, pages: dict[str, str]) -> None:
    """The dark scheme changes colours and nothing else, so contrast alone is looked at again."""
    source = axe()
    browser.go(stack.account.url + "/")
    found = [{"page": "log in"} | each for each in faults(browser, source)]
    log_in(browser, stack)
    for name in (*pages, *PRESSED):
        show(browser, stack, pages, name)
        browser.script(UNFOLD)
        for scheme, rules in {"light": (), "dark": ("color-contrast",)}.items():
            browser.prefers(scheme)
            found += [{"page": name, "scheme": scheme} | each for each in faults(browser, source, *rules)]
    assert not found, json.dumps(found, indent=1)


SPILT = """
const wide = [...document.querySelectorAll(".scroll, .triage li")].filter((e) => e.scrollWidth > e.clientWidth);
const high = [...document.querySelectorAll(".list tr, .triage li")].filter((e) => e.offsetHeight > 45);
return [...wide, ...high].map((e) => e.innerText);
"""


LENGTHEN = """
document.querySelectorAll(".cut, .rest-of-row").forEach((cell) => cell.append(" and more".repeat(20)));
const ages = [...document.querySelectorAll(".list .quiet")].filter((cell) => cell.innerText.endsWith(" s ago"));
ages.forEach((age) => age.innerText = "59 min ago");
"""


@pytest.mark.parametrize("width", [390, 1100, 1440])
def test_a_row_of_a_list_is_one_line(browser: Browser, stack: Stack, pages: dict[str, str], width: int) -> None:
    """Also where the case, the models and the reason are long, and the deadline is missed; on a phone it is a card."""
    order = {"subject_id": "late", "regulation": "gdpr", "received_at": "2026-01-01T00:00:00Z"}
    late = stack.delete(verified=False, case_id=f"C-{'7' * 60}", **order)
    browser.frame(width, 900)
    log_in(browser, stack)
    asked = {"one": f"/console/requests/{late['id']}", "asked": f"/console/requests/{late['id']}/decide"}
    for name in ("overview", "requests", "one", "asked"):
        show(browser, stack, pages | asked, name)
        browser.script(LENGTHEN)
        assert browser.script(OVERFLOWING) == [], name
        assert width < 1100 or browser.script(SPILT) == [], name


def test_a_reason_that_was_typed_is_there_again_after_change(browser: Browser, stack: Stack) -> None:
    waiting = stack.delete(subject_id="nobody-at-all", verified=False)
    browser.without_scripts()
    log_in(browser, stack)
    browser.go(f"{stack.account.url}/console/requests/{waiting['id']}/decide")
    browser.click("#why")
    browser.type("The letter was not signed.\ue007")
    browser.shows("Check your answer", "h1")
    browser.click("[formaction]")
    browser.shows("Does this request come from the person?", "h1")
    assert browser.script("return document.querySelector('#why').value") == "The letter was not signed."
    assert "letter" not in browser.url


def test_a_person_is_found_and_a_request_verified_without_scripts(
    browser: Browser, stack: Stack, pages: dict[str, str]
) -> None:
    """Without JavaScript, by the forms alone: find, verify, be asked, and be told."""
    waiting = stack.delete(subject_id="nobody-at-all", verified=False)
    browser.without_scripts()
    log_in(browser, stack)
    browser.go(f"{stack.account.url}/console/people")
    browser.click("#subject_id")
    browser.type("nobody-at-all\ue007")
    browser.shows("No model knows the person.")
    assert waiting["id"][:8] in browser.text("main") and "nobody-at-all" not in browser.url
    browser.go(f"{stack.account.url}/console/requests/{waiting['id']}")
    browser.click(".ways button")
    browser.shows("Check your answer", "h1")
    browser.click("#sure")
    assert "Verified." in browser.shows("completed", "main")


def test_all_rows_are_selected_on_a_phone_without_scripts(
    browser: Browser, stack: Stack, pages: dict[str, str]
) -> None:
    """The bar is there once a row is selected, at the bottom of what is seen."""
    browser.without_scripts()
    browser.frame(*PHONE)
    log_in(browser, stack)
    browser.go(f"{stack.account.url}/console/requests?reason=unverified")
    shown = "const bar = document.querySelector('.selected').getBoundingClientRect();return [bar.height, bar.bottom]"
    assert browser.script(shown)[0] == 0
    browser.click("#every")
    browser.shows("Select none")
    height, bottom = browser.script(shown)
    assert height >= 44 and bottom <= PHONE[1] and browser.script(OVERFLOWING) == []
    browser.click("button[value=verify]")
    browser.shows("Verify and continue: ", "h1")
