"""The page that checks a certificate, in a real browser from a saved copy without a network; and the letter to it."""

from __future__ import annotations

import json
import re
import textwrap
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import segno
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.audit import canonical
from expunge_service.audit.signed_note import Signer, Verifier
from expunge_service.infra.settings import Settings, SettingsError
from tests.harness.browser import Browser, chromium
from tests.service.certificates.test_certificates import PATH, carry_out, tick
from tests.service.certificates.test_verifiers import proved_in, signed, statement_of
from tests.service.conftest import Login
from tests.service.worlds import live_model

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "service" / "expunge_service" / "console" / "static" / "verify.html"
VECTOR = json.loads((ROOT / "tests" / "service" / "vectors" / "erasure-v1.json").read_text())
VECTOR_FINGERPRINT = "47fbfb0d13b7746e44b6cee5a89ee4a2"
"""of the vector's key, by sha256sum"""
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"verify_url": getattr(request, "param", "")})


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


def fill(browser: Browser, **values: str) -> None:
    for name, value in values.items():
        browser.script("document.getElementById(arguments[0]).value = arguments[1]", name, value)


def checked(browser: Browser, says: str) -> str:
    browser.script("document.getElementById('result').replaceChildren()")
    browser.click("#form button")
    return browser.shows(says, "#result")


def test_no_address_ends_the_page_in_an_error(browser: Browser, tmp_path: Path) -> None:
    """``#%`` was no address that could be decoded, and the page said no more whether the browser can check."""
    page = tmp_path / "saved.html"
    page.write_bytes(PAGE.read_bytes())
    browser.before_each_page("window.faults = []; addEventListener('error', (event) => faults.push(event.message))")
    for typed in ("%", "%e0%a4%a", "%00", "é", "#", "0" * 33, "%30" * 32, "__proto__", "x" * 50_000):
        browser.go("about:blank")
        browser.go(f"{page.as_uri()}#{typed}")
        assert browser.script("return faults") == [], typed
        assert browser.script("return document.getElementById('fingerprint').value") == "", typed
    browser.script("location.hash = arguments[0]", VECTOR_FINGERPRINT)
    filled = "return document.getElementById('fingerprint').value"
    browser.eventually(lambda: str(browser.script(filled)), lambda value: value.startswith("47fb fb0d"))


def test_a_saved_copy_checks_a_certificate_without_a_network(browser: Browser, tmp_path: Path) -> None:
    page, paper = tmp_path / "saved.html", tmp_path / "certificate.json"
    page.write_bytes(PAGE.read_bytes())
    paper.write_text(json.dumps(VECTOR["certificate"]))
    browser.offline()
    browser.frame(390, 844)
    browser.go(f"{page.as_uri()}#{VECTOR_FINGERPRINT}")
    assert browser.script("return document.getElementById('fingerprint').value").replace(" ", "") == VECTOR_FINGERPRINT
    assert "did not scan the letter yourself" in browser.text("#source")

    browser.choose("#file", paper)
    said = checked(browser, "The certificate is genuine. Whether it is about you was not checked.")
    assert "Commitment: not checked" in said
    fill(browser, names=VECTOR["subject"], code=VECTOR["opening"])
    said = checked(browser, "The certificate is genuine, and it names the id that you entered.")
    assert "acceptance, completion and 1 more lie under a signed head of 4 entries" in said
    assert "digits: 2 training samples, method recollection, published as version 2. Guarantee: proved." in said
    assert "Asked on 24 November 2026" in said and "Declared" not in said  # an empty list has no heading
    assert browser.script(WIDE) <= 0

    fill(browser, names="somebody-else")
    assert "method" not in checked(browser, "It does not hold. The certificate is genuine, but it does not fit this id")
    fill(browser, names="", code="", fingerprint="0" * 32)
    assert "method" not in checked(browser, "another fingerprint than the one you entered")
    altered = b64encode(b64decode(VECTOR["certificate"]["payload"]).replace(b"proved", b"exact", 1)).decode()
    paper.write_text(json.dumps(VECTOR["certificate"] | {"payload": altered}))
    checked(browser, "The file cannot be read: it was moved or changed.")
    browser.choose("#file", paper)
    fill(browser, fingerprint=VECTOR["key"])
    checked(browser, "It does not hold. The signature is not valid.")
    assert browser.complaints() == []


def test_the_guarantee_is_shown_of_a_certificate_of_every_form(browser: Browser, tmp_path: Path) -> None:
    browser.go(PAGE.as_uri())
    forms = sorted((ROOT / "tests" / "service" / "vectors" / "certificates").glob("*.json"))
    for form in forms:
        issued = json.loads(form.read_text())
        (paper := tmp_path / form.name).write_text(json.dumps(issued["certificate"]))
        browser.choose("#file", paper)
        fill(browser, fingerprint=issued["key"], names=issued["subject"], code=issued["opening"])
        assert "Guarantee: proved." in checked(browser, "and it names the id that you entered.")
    assert len(forms) >= 7 and browser.complaints() == []


def test_a_file_that_is_no_strict_json_is_refused(browser: Browser, tmp_path: Path) -> None:
    """What node cannot tell: how the page reads the file's bytes."""
    browser.go(PAGE.as_uri())
    text = json.dumps(VECTOR["certificate"])
    for name, raw in {
        "utf-16": text.encode("utf-16"),
        "byte-order mark": text.encode("utf-8-sig"),
        "no utf-8": text.encode().replace(b"{", b'{"more":"\xff",', 1),
        "no number": text.encode().replace(b"{", b'{"more":NaN,', 1),
        "too deep": text.encode().replace(b"{", b'{"more":%s,' % (b"[" * 20_000 + b"]" * 20_000), 1),
    }.items():
        (paper := tmp_path / name).write_bytes(raw)
        browser.choose("#file", paper)
        fill(browser, fingerprint=VECTOR_FINGERPRINT)
        checked(browser, "It does not hold.")
    assert browser.complaints() == []


def test_a_request_that_was_limited_to_named_models_is_called_that(browser: Browser, tmp_path: Path) -> None:
    signer, bodies = Signer("expunge.local/log", b"s" * 32), [line["body"] for line in VECTOR["log"][:-1]]
    place = next(n for n, body in enumerate(bodies) if json.loads(body)["kind"] == "request.accepted")
    browser.go(PAGE.as_uri())
    for suppress, says in {
        "everywhere": "Asked on 24 November 2026, for the models that the request named only, completed on",
        None: "Asked on 24 November 2026, completed on",
    }.items():
        bodies[place] = canonical(json.loads(bodies[place]) | {"suppress": suppress})
        paper = tmp_path / str(suppress)
        paper.write_text(json.dumps(signed(signer, proved_in(statement_of(VECTOR["certificate"]), bodies, signer))))
        browser.choose("#file", paper)
        fill(browser, fingerprint=str(signer.verifier))
        checked(browser, says)
    assert browser.complaints() == []


def test_a_browser_without_ed25519_says_that_it_cannot_check(browser: Browser) -> None:
    browser.before_each_page(
        "crypto.subtle.importKey = () => Promise.reject(new DOMException('x', 'NotSupportedError'))"
    )
    browser.go(PAGE.as_uri())
    assert "genuine" not in browser.shows("This browser cannot check: it lacks Ed25519", "#result")
    assert browser.script("return document.querySelector('#form button').disabled")


@ON_SQLITE
def test_the_page_names_no_other_place_and_may_reach_none(client: TestClient) -> None:
    answer = client.get("/verify", headers={"Authorization": ""})
    policy = answer.headers["content-security-policy"]
    assert answer.text == PAGE.read_text() and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy and "connect-src" not in policy and "frame-ancestors 'none'" in policy
    assert policy.removesuffix("; frame-ancestors 'none'") in answer.text  # a saved copy is bound by it as well
    assert not re.search(
        r"""(?:src|href)\s*=|https?://(?!in-toto[.]io/Statement)|import\s*\(|fetch|XMLHttp|innerHTML|sendBeacon""",
        answer.text,
    )


@ON_SQLITE
@pytest.mark.parametrize("settings", ["", "https://example.com/verify"], indirect=True)
def test_the_letter_prints_the_fingerprint_and_leads_to_the_page(
    client: TestClient, service: Service, login: Login, settings: Settings
) -> None:
    model = live_model(service)
    request = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "ada"}).json()["id"]
    carry_out(service, model, request, first=0)
    assert tick(service) == 1
    digits = Verifier.parse(str(Signer.of(settings).verifier)).fingerprint
    page = login().get(f"/console/requests/{request}/letter").text
    assert " ".join(textwrap.wrap(digits, 4)) in page
    code = segno.make(f"{settings.verify_url}#{digits}", micro=False).svg_inline(border=2, light="#fff", omitsize=True)
    assert (code in page, "https://example.com/verify" in page) == (
        (True, True) if settings.verify_url else (False,) * 2
    )
    assert page.count("<svg") == 1 + bool(settings.verify_url)


def test_the_address_of_the_page_is_an_address(tmp_path: Path) -> None:
    for wrong in ("example.com/verify", "https://example.com/verify#x", "javascript:alert(1)"):
        with pytest.raises((SettingsError, ValueError), match="no address of a page"):
            Settings(home=tmp_path, verify_url=wrong)
