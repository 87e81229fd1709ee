"""The status page in a real browser, before a running service: logged in, live, by keyboard, in the dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from expunge_service.access.api_keys import Scope
from expunge_service.cli.supervisor import children
from tests.harness.browser import ENTER, ESCAPE, Browser, chromium
from tests.harness.dashboards import UNVERIFIED
from tests.harness.servers import WHEELS, free_port
from tests.harness.stack import Stack

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
BUDGET = {"epsilon": 8, "delta": 1e-5, "noise_std": 3e-5}
"""about twenty updates, so that one can be seen on the gauge"""
AXE = "axe-core-4.14.1.tgz"


@pytest.fixture
def browser(stack: Stack, tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def name(stack: Stack) -> str:
    """A live model with a budget that can be seen to move."""
    return stack.live("tiny", **BUDGET)


def enter(browser: Browser, stack: Stack, url: str | None = None) -> None:
    """Log in as a person does, at the stack's own address or another."""
    log_in(browser, stack, url)
    browser.eventually(lambda: browser.text("#pulse"), bool)


def log_in(browser: Browser, stack: Stack, url: str | None = None) -> None:
    """Until the page has answered: a page left before that takes its cookie with it."""
    browser.go((url or stack.account.url) + "/")
    if browser.focus()["id"] != "key":
        browser.click("#key")
    browser.type(stack.key(*Scope) + ENTER)
    browser.shows("Models", "#models")


def spent(text: str) -> float:
    found = re.search(r"([0-9.]+) %\s*spent", text)
    assert found, text
    return float(found[1])


def test_a_deletion_is_watched_from_the_queue_to_its_certificate_without_reloading(
    browser: Browser, stack: Stack, name: str
) -> None:
    enter(browser, stack)
    card = f"#model-{name}"
    before = spent(browser.text(card))
    browser.script("window.same = 'page'")
    stack.stop("worker")
    request = stack.delete(name, subject_id="tiny-person-3", regulation="gdpr")
    row = browser.shows(request["id"][:8], "#queue")
    assert "Waits for a worker" in row and re.search(r"in (2[78]|29|30) d", row)
    stack.start("worker")
    browser.shows(request["id"][:8], "#recent")
    browser.eventually(lambda: browser.text("#queue"), lambda text: request["id"][:8] not in text)
    assert spent(browser.eventually(lambda: browser.text(card), lambda text: "version 2" in text)) > before
    assert browser.script("return window.same") == "page", "the page was loaded again"
    browser.click(f"#recent a[href$='{request['id']}']")
    browser.shows("Certificate issued", "#request")
    browser.click("#certificate")
    browser.shows("Certificate of erasure")
    browser.click(".formal summary")
    shown = browser.shows("Signed by")
    assert "verified" in shown and f"{name}, version 2" in shown and "Not claimed" in shown
    assert not [line for line in browser.complaints() if "401" not in line]


@pytest.mark.drill
def test_everything_is_reached_by_keyboard_alone(browser: Browser, stack: Stack, name: str) -> None:
    request = stack.forgotten(name, subject_id="tiny-person-4")
    browser.go(stack.account.url + "/")
    browser.eventually(lambda: browser.focus()["id"], lambda focused: focused == "key")
    enter(browser, stack)
    skip = browser.tab_to(lambda focus: focus["text"] == "Skip to the content", 1)
    assert skip["outlined"]
    browser.type(ENTER)
    browser.eventually(lambda: browser.focus()["id"], lambda focused: focused == "main")
    model = browser.tab_to(lambda focus: focus["href"] == f"/console/models/{name}")
    assert model["outlined"]
    browser.type(ENTER)
    browser.shows("Updates left", "#head")
    inside = "return document.activeElement.closest('#versions') !== null"
    summary = browser.tab_to(lambda focus: focus["tag"] == "SUMMARY" and browser.script(inside))
    assert summary["outlined"]
    browser.type(ENTER)
    browser.shows("Not claimed", "#versions")
    browser.tab_to(lambda focus: focus["id"] == "find")
    browser.type(request["id"] + ENTER)
    browser.shows("Timeline")
    browser.tab_to(lambda focus: focus["id"] == "certificate")
    browser.type(ENTER)
    browser.shows("Certificate of erasure")
    browser.tab_to(lambda focus: focus["text"] == "Log out")
    browser.type(ENTER)
    browser.shows("API key")


def test_keys_lead_through_the_lists_on_a_phone_too(browser: Browser, stack: Stack, name: str) -> None:
    """``/``, j, k, Enter, ``?``, Esc; and an id that is cut can be copied whole."""
    waiting = stack.delete(name, subject_id="tiny-person-11", verified=False, regulation="gdpr", case_id="C-11")
    browser.frame(390, 844)
    enter(browser, stack)
    browser.shows("C-11", "#queue")
    browser.type("/")
    assert browser.focus()["id"] == "find"
    browser.type(waiting["id"][:8] + ENTER)
    browser.shows("Not yet confirmed", "h1")
    assert browser.url.endswith(waiting["id"]) and waiting["id"][:8] not in browser.url.rpartition("/")[0]
    copied = "return document.querySelector('[data-copy]').dataset.copy"
    assert browser.script(copied) == waiting["id"] and browser.text(".copy") == "Copy"
    browser.go(f"{stack.account.url}/console/requests")
    browser.shows("C-11", "main")
    assert "Case: C-11" in browser.text("tbody").replace("\n", "") or "C-11" in browser.text('[data-label="Case"]')
    assert browser.script(OVERFLOWING) == []
    browser.type("j")
    first = browser.focus()["href"]
    browser.type("k")
    assert browser.focus()["href"] == first, "the first row has none before it"
    browser.type("?")
    assert browser.script("return document.getElementById('keys').open")
    browser.type(ESCAPE)
    browser.type("j" + ENTER)
    browser.shows("Timeline")


@pytest.mark.drill
def test_the_focus_survives_what_the_page_refreshes(browser: Browser, stack: Stack, name: str) -> None:
    enter(browser, stack)
    browser.tab_to(lambda focus: focus["href"] == f"/console/models/{name}")
    stack.forgotten(name, subject_id="tiny-person-5")
    head = stack.head(name)["number"]
    browser.shows(f"version {head}", f"#model-{name}")
    browser.eventually(browser.focus, lambda focus: focus["href"] == f"/console/models/{name}")


@pytest.mark.drill
def test_an_unverified_request_is_decided_by_a_question_on_a_page(browser: Browser, stack: Stack, name: str) -> None:
    waiting, verified = (stack.delete(name, subject_id="tiny-person-8", verified=False) for _ in range(2))
    enter(browser, stack)
    browser.go(f"{stack.account.url}/console/requests/{waiting['id']}")
    browser.tab_to(lambda focus: focus["text"] == "Reject")
    browser.type(ENTER)
    browser.tab_to(lambda focus: focus["id"] == "why")
    browser.type("The letter was not signed." + ENTER)
    browser.shows("cannot be opened again")
    browser.click("#sure")
    browser.shows("The letter was not signed.", "#request")
    assert browser.text(".ways") == ""
    browser.go(f"{stack.account.url}/console/requests/{verified['id']}/decide")
    browser.click("#verify")
    browser.click("#sure")
    browser.shows("Certificate issued", "#request")


def test_the_page_is_read_without_scripts(browser: Browser, stack: Stack, name: str) -> None:
    browser.without_scripts()
    log_in(browser, stack)
    seen = browser.text()
    assert name in seen and "spent" in seen and "Log verified" in seen


def contrast(browser: Browser, selector: str) -> float:
    """WCAG's contrast ratio of an element's text to the ground behind it."""
    return float(browser.script(CONTRAST, selector))


CONTRAST = """
const light = (colour) => {
  const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).slice(0, 3)
    .map((c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const text = document.querySelector(arguments[0]);
let ground = text;
while (/rgba\\(.*, 0\\)/.test(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
const pair = [light(getComputedStyle(text).color), light(getComputedStyle(ground).backgroundColor)];
return (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
"""


OVERFLOWING = """
const room = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= room) return [];
return [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > room)
  .map((e) => `${e.tagName} ${e.className} ${e.innerText?.slice(0, 40)}`);
"""


@pytest.mark.drill
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes_and_nothing_overflows(
    browser: Browser, stack: Stack, name: str, scheme: str
) -> None:
    stack.forgotten(name, subject_id="tiny-person-7")
    browser.prefers(scheme)
    enter(browser, stack)
    grounds = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert grounds == {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 20, 27)"}[scheme]
    for selector in (
        ".summary a",
        ".triage .quiet",
        "h1",
        "#models a",
        ".badge.completed",
        "#pulse",
        "thead th",
        ".find button",
    ):
        assert contrast(browser, selector) >= 4.5, selector
    for width in (360, 800, 1400):
        browser.resize(width, 900)
        assert browser.script(OVERFLOWING) == [], width


DEADLINES = """
const box = (each) => each.getBoundingClientRect();
document.querySelectorAll("#queue li > a:first-of-type").forEach((why) => why.textContent += `, ${why.textContent}`);
return [...document.querySelectorAll("#queue li .left:has(time, .warn)")].map((cell) => ({
  text: cell.innerText, left: box(cell).left, right: box(cell).right,
  room: Math.min(document.documentElement.clientWidth, box(cell.closest(".triage")).right),
}));
"""


@pytest.mark.parametrize(
    ("width", "height"),
    [pytest.param(1440, 900, id="laptop", marks=pytest.mark.drill), pytest.param(390, 844, id="phone")],
)
def test_the_queues_deadlines_are_seen_without_scrolling_sideways(
    browser: Browser, stack: Stack, name: str, width: int, height: int
) -> None:
    """Beside a reason twice as long as any, late and in time."""
    waiting = stack.delete(name, subject_id="tiny-person-10", verified=False, regulation="gdpr")
    stack.delete(name, subject_id="nobody-late", verified=False, regulation="gdpr", received_at="2026-01-01T00:00:00Z")
    browser.frame(width, height)
    enter(browser, stack)
    browser.shows(waiting["id"][:8], "#queue")
    deadlines = browser.script(DEADLINES)
    assert len(deadlines) >= 2
    for each in deadlines:
        assert each["text"].startswith(("in ", "overdue by ", "no deadline")), each
        assert 0 <= each["left"] < each["right"] <= each["room"], each
    assert browser.script(OVERFLOWING) == []


def axe() -> str:
    """axe-core's source, fetched once through npm."""
    npm, file = shutil.which("npm"), WHEELS / AXE
    if not file.exists() and npm is not None:
        WHEELS.mkdir(exist_ok=True)
        command = [npm, "pack", "axe-core@4.14.1", "--pack-destination", str(WHEELS)]
        subprocess.run(command, capture_output=True, timeout=120, check=False)
    if not file.exists():
        pytest.skip(f"{UNVERIFIED}: axe-core cannot be had through npm")
    with tarfile.open(file) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.drill
def test_axe_core_finds_nothing_serious(browser: Browser, stack: Stack, name: str) -> None:
    source = axe()
    request = stack.forgotten(name, subject_id="tiny-person-6")
    unverified = stack.delete(name, subject_id="tiny-person-9", verified=False)
    browser.go(stack.account.url + "/")
    found = faults(browser, source)
    enter(browser, stack)
    shown = [f"/console/requests/{each['id']}" for each in (request, unverified)]
    for path in ("/", f"/console/models/{name}", *shown):
        browser.go(stack.account.url + path)
        for scheme in ("light", "dark"):
            browser.prefers(scheme)
            found += [{"page": path, "scheme": scheme} | each for each in faults(browser, source)]
    assert not found, json.dumps(found, indent=1)


@pytest.fixture
def production(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """Another API of the same installation, in production mode and behind TLS; gives its address."""
    port, key, certificate = free_port(), tmp_path / "key.pem", tmp_path / "certificate.pem"
    write_certificate(key, certificate)
    environment = stack.environment | {"EXPUNGE_MODE": "production"}
    (api, *_) = children(tmp_path, "127.0.0.1", port, environment)
    api.command = [*api.command, "--ssl-keyfile", str(key), "--ssl-certfile", str(certificate)]
    api.start()
    url = f"https://127.0.0.1:{port}"
    with httpx.Client(verify=False, trust_env=False) as http:
        stack.eventually(lambda: answers(http, url), bool)
    yield url
    api.stop()


def write_certificate(key: Path, certificate: Path) -> None:
    """A self-signed certificate for one day."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    at = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(at - timedelta(hours=1))
        .not_valid_after(at + timedelta(days=1))
        .sign(secret, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.drill
def test_in_production_the_session_stays_on_tls_and_the_page_is_live(
    browser: Browser, stack: Stack, production: str, name: str
) -> None:
    enter(browser, stack, production)
    (cookie,) = browser.cookies()
    assert cookie["secure"] and cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    request = stack.forgotten(name, subject_id="tiny-person-8")
    browser.shows(request["id"][:8], "#recent")


def faults(browser: Browser, source: str, *rules: str) -> list[dict[str, Any]]:
    """What axe-core calls serious or critical on the page that is open, by these rules alone if any are given."""
    options = json.dumps({"runOnly": rules} if rules else {})
    browser.script(source)
    asked = f"axe.run(document, {options}).then(r => done(r.violations))"
    found = browser.waits_for(f"const done = arguments[arguments.length - 1]; {asked}")
    return [
        {"rule": each["id"], "where": [node["target"] for node in each["nodes"]][:3]}
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
