"""A service with something on every page, and the pages' addresses: for pictures, and for tests of every page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.harness.browser import ENTER, Browser
from tests.harness.stack import Stack

BUDGET = {"epsilon": 8, "delta": 1e-5, "noise_std": 3e-5}
"""about twenty updates, so that the chart shows them"""
PRESSED = {
    "found": ("overview", ["#find", f"=DSR-2026/113{ENTER}"], "Search"),
    "checked": ("decision", ["#why", f"=The letter was not signed.{ENTER}"], "Check your answer"),
    "confirm": ("model", ["#do-retire"], "Retire the model?"),
    "secret": ("keys", ["main [name=scope]", "main form.fields button"], "New API key"),
    "refused": (
        "holds",
        ["#subject_id", "=ada", "#sample_id", "=image-7", "#reason", "=A lawsuit.", "main form.fields button"],
        "Something is missing",
    ),
    "bulk": ("requests", ["main [name=id]", "button[value=verify]", "#sure"], "of 1 done"),
}
"""pages that answer a form: the page that has it, what is pressed or typed (``=``) there, and the answer's heading"""


def furnish(stack: Stack, recipe: str = "tiny", people: str = "tiny-person-{}") -> dict[str, str]:
    """Make requests of every kind; return each page's name and address. Takes some seconds of a worker's time."""
    name = stack.live(recipe, **BUDGET)
    order = {"regulation": "gdpr", "case_id": "DSR-2026/113"}
    done = [stack.forgotten(name, subject_id=people.format(number), **order) for number in (11, 12, 13)]
    unverified = [
        stack.delete(name, subject_id=people.format(14), verified=False, regulation="gdpr", received_at=received)
        for received in (ago(10), ago(27), ago(60))
    ]
    held = people.format(15)
    hold = stack.client.post("/v1/holds", {"subject_id": held, "reason": "Needed for a lawsuit until spring."})
    blocked = stack.ended(stack.delete(name, subject_id=held, regulation="ccpa"))
    for consumer, version in (("web-shop", 3), ("app-backend", 1)):
        put(stack, f"/v1/models/{name}/consumers/{consumer}", {"version": version})
    hook = stack.client.post("/v1/webhooks", {"url": "https://example.org/hooks/expunge"})
    await_certificate(stack, done[-1]["id"])
    request = f"/console/requests/{done[-1]['id']}"
    return {
        "overview": "/",
        "requests": "/console/requests",
        "request": request,
        "request-unverified": f"/console/requests/{unverified[0]['id']}",
        "decision": f"/console/requests/{unverified[-1]['id']}/decide",
        "request-blocked": f"/console/requests/{blocked['id']}",
        "certificate": f"{request}/certificate",
        "letter": f"{request}/letter",
        "models": "/console/models",
        "model": f"/console/models/{name}",
        "people": "/console/people",
        "holds": f"/console/holds#hold-{hold['id']}",
        "consumers": "/console/consumers",
        "audit": "/console/audit",
        "audit-entry": "/console/audit/1",
        "webhooks": "/console/webhooks",
        "webhook": f"/console/webhooks/{hook['id']}",
        "keys": "/console/keys",
        "dossier": "/console/dossier",
        "error": "/console/requests/none",
        "missing": "/console/nowhere",
    }


def show(browser: Browser, stack: Stack, pages: dict[str, str], name: str) -> None:
    """Open a page: by its address, or by the form that it answers."""
    origin, pressed, heading = PRESSED.get(name, (name, [], ""))
    browser.go("about:blank")
    browser.go(stack.account.url + pages[origin])
    for each in pressed:
        browser.type(each[1:]) if each.startswith("=") else browser.click(each)
    browser.shows(heading, "h1")


def ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


def put(stack: Stack, path: str, body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    answer = stack.http.put(path, json=body, headers=headers)
    assert answer.is_success, answer.text


def await_certificate(stack: Stack, request_id: str) -> None:
    """Wait until the request's certificate is issued."""
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    path = f"/v1/deletion-requests/{request_id}/certificate"
    stack.eventually(lambda: stack.http.get(path, headers=headers).status_code, lambda status: status == 200)
