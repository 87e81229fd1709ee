"""A headless Chromium, driven through chromedriver by the W3C WebDriver protocol: a few calls, no further package."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.harness.dashboards import program
from tests.harness.servers import free_port

Value = TypeVar("Value")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TAB, ENTER, SHIFT, ESCAPE = "\ue004", "\ue007", "\ue008", "\ue00c"
PATIENCE_SECONDS = 60.0
PHONE = {
    "deviceMetrics": {"width": 390, "height": 844, "pixelRatio": 3, "touch": True},
    "userAgent": "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 "
    "Mobile Safari/537.36",
}
_PASSING = {"no such element", "stale element reference"}
"""W3C's words for an element that is not there yet, or not there any more"""


class Replaced(Exception):
    """The element is not on the page now."""


class Browser:
    """One window. Elements are named by CSS selectors; every wait ends in an assertion, not in silence."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def go(self, url: str) -> None:
        self._call("POST", "url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._call("GET", "url"))

    def script(self, body: str, *arguments: Any) -> Any:
        return self._call("POST", "execute/sync", {"script": body, "args": list(arguments)})

    def waits_for(self, body: str) -> Any:
        """Run an asynchronous script and return what it passes to its last argument."""
        return self._call("POST", "execute/async", {"script": body, "args": []})

    def text(self, selector: str = "body") -> str:
        """Return the visible text of the first match; empty if there is none."""
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def click(self, selector: str) -> None:
        """Press the first match once there is one. A live part may replace it between the look and the click."""
        self.eventually(lambda: self._clicked(selector), bool)

    def choose(self, selector: str, file: Path) -> None:
        """Give a file to an input."""
        found = self._call("POST", "element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._call("POST", f"element/{found}/value", {"text": str(file)})

    def touch(self, x: float, y: float) -> None:
        """Put a finger on the glass there, in CSS pixels of what is seen, and lift it."""
        kinds: list[dict[str, Any]] = [
            {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0, "origin": "viewport"},
            {"type": "pointerDown", "button": 0},
            {"type": "pause", "duration": 60},
            {"type": "pointerUp", "button": 0},
        ]
        finger = {"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": kinds}
        self._call("POST", "actions", {"actions": [finger]})

    def type(self, text: str) -> None:
        """Press keys at the place that has the focus."""
        keys = [{"type": kind, "value": each} for each in text for kind in ("keyDown", "keyUp")]
        self._call("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def focus(self) -> dict[str, Any]:
        """Return what has the focus, and whether it shows."""
        found: dict[str, Any] = self.script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return {tag: e.tagName, id: e.id, name: e.name, text: e.innerText, href: e.getAttribute('href'),"
            " outlined: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0}"
        )
        return found

    def tab_to(self, wanted: Callable[[dict[str, Any]], bool], presses: int | None = None) -> dict[str, Any]:
        """Press Tab until the focus is ``wanted``, at most as often as the page has places for it."""
        stops = "return document.querySelectorAll('a, button, input, select, textarea, summary, [tabindex]').length"
        presses = presses or int(self.script(stops)) + 5
        for _ in range(presses):
            self.type(TAB)
            focus = self.focus()
            if wanted(focus):
                return focus
        raise AssertionError(f"{presses} times Tab does not lead there; the focus is on {self.focus()}")

    def eventually(self, look: Callable[[], Value], enough: Callable[[Value], bool]) -> Value:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not enough(value := look()):
            assert time.monotonic() < deadline, f"still {value!r} after {PATIENCE_SECONDS:g} s"
            time.sleep(0.1)
        return value

    def shows(self, text: str, selector: str = "body") -> str:
        """Wait until the text is visible there."""
        return self.eventually(lambda: self.text(selector), lambda seen: text in seen)

    def prefers(self, scheme: str) -> None:
        self._media([{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width: int, height: int) -> None:
        self._call("POST", "window/rect", {"width": width, "height": height})

    def frame(self, width: int, height: int) -> None:
        """Give the page exactly this room, in CSS pixels: a window cannot be as narrow as a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)

    def cookies(self) -> list[dict[str, Any]]:
        """Return the page's cookies, also those that scripts cannot read."""
        kept: list[dict[str, Any]] = self._call("GET", "cookie")
        return kept

    def without_scripts(self) -> None:
        self._devtools("Emulation.setScriptExecutionDisabled", {"value": True})

    def offline(self) -> None:
        """Cut the page off from every network."""
        self._devtools("Network.enable", {})
        conditions = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._devtools("Network.emulateNetworkConditions", conditions)

    def before_each_page(self, script: str) -> None:
        self._devtools("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(str(self._call("GET", "screenshot"))))

    def picture(self, path: Path, width: int, height: int, quality: int = 35) -> None:
        """Write the top of the page as a WebP, in a frame of this size."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        wanted = {"format": "webp", "quality": quality, "clip": clip, "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(str(self._devtools("Page.captureScreenshot", wanted)["data"])))

    def complaints(self) -> list[str]:
        """Return the errors on the browser's console."""
        log = self._call("POST", "se/log", {"type": "browser"})
        return [each["message"] for each in log if each["level"] == "SEVERE"]

    def _media(self, features: list[dict[str, str]]) -> None:
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def _clicked(self, selector: str) -> bool:
        """Return whether the click was made; False where the page holds no such element, or no longer the one found."""
        try:
            found = self._call("POST", "element", {"using": "css selector", "value": selector})[_ELEMENT]
            self._call("POST", f"element/{found}/click", {})
        except Replaced:
            return False
        return True

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._http.request(method, path, json=body)
        value = answer.json()["value"]
        if not answer.is_success and value["error"] in _PASSING:
            raise Replaced(f"{path}: {value['error']}")
        assert answer.is_success, f"{path}: {value['error']}: {value['message'].splitlines()[0]}"
        return value


@contextmanager
def chromium(profile: Path, phone: dict[str, Any] | None = None) -> Iterator[Browser]:
    """Start a Chromium with a new profile, as this phone if one is given, and stop it afterwards.

    Skip the test where there is none.
    """
    driver, binary, port = program("chromedriver"), program("chromium"), free_port()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1100"]
    wanted = {
        "browserName": "chrome",
        "acceptInsecureCerts": True,  # a test's own certificate
        "goog:chromeOptions": {"binary": binary, "args": [*options, f"--user-data-dir={profile}"]}
        | ({"mobileEmulation": phone} if phone else {}),
        "goog:loggingPrefs": {"browser": "ALL"},
        "timeouts": {"script": 60_000, "pageLoad": 60_000},
    }
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=90, trust_env=False) as http:
            _await(http)
            answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in answer, answer
            session = httpx.URL(f"http://127.0.0.1:{port}/session/{answer['sessionId']}")
            http.base_url = session
            try:
                yield Browser(http)
            finally:
                http.delete(session)  # a driver that is ended leaves its browser behind
    finally:
        process.terminate()
        process.wait(20)


def _await(http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if http.get("/status").json()["value"]["ready"]:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("chromedriver does not answer")
