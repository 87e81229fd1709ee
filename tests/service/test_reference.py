"""The API's reference page: whole, and nothing on it is loaded from anybody else."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

KeyOf = Callable[..., dict[str, str]]
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_every_operation_and_schema_is_on_the_page(api: TestClient) -> None:
    text = api.get("/docs").text
    document = api.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in text
    for name in document["components"]["schemas"]:
        assert f'<details id="{name}">' in text
    targets = set(re.findall(r'href="#([^"]+)"', text)) - {"main"}
    assert targets <= document["components"]["schemas"].keys()


def test_every_call_shows_its_examples_and_a_command(api: TestClient) -> None:
    text = html.unescape(api.get("/docs").text)
    for path, methods in api.get("/openapi.json").json()["paths"].items():
        for method, call in methods.items():
            contents = [call.get("requestBody", {}), *(each for code, each in call["responses"].items() if code < "3")]
            for content in (each for body in contents for each in body.get("content", {}).values()):
                if "example" in content:
                    given = content["example"]
                    assert (given if isinstance(given, str) else json.dumps(given, indent=2)) in text, (method, path)
    assert len(commands(text)) == text.count("Sent as a command:") > 50


def commands(text: str) -> list[str]:
    return re.findall(r"^<pre class=\"wrap\">(curl .*)</pre>$", text, re.MULTILINE)


def test_the_commands_of_the_page_are_calls_of_the_service(api: TestClient, key_of: KeyOf) -> None:
    """Each is sent as it stands. What it names does not exist here: it is found missing, or made; none is misread."""
    text = html.unescape(api.get("/docs").text)
    for command in commands(text):
        if "/v1/events" in command:  # it does not end
            continue
        words = shlex.split(command.replace("$URL", "").replace("$(uuidgen)", command[-60:].encode().hex()))
        headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
        headers |= key_of() if "Authorization" in headers else {}
        address = next(word for word in words if word.startswith("/"))
        method = "HEAD" if "-I" in words else words[words.index("-X") + 1] if "-X" in words else "GET"
        body = words[words.index("-d") + 1] if "-d" in words else None
        answer = api.request(method, address, content=body, headers=headers)
        assert answer.status_code in (200, 201, 202, 204, 207, 404, 409, 503), (command, answer.text)


def test_no_third_party_sees_the_readers_browser(api: TestClient) -> None:
    answer = api.get("/docs")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert loaded and all(each.startswith(("/", "#")) and not each.startswith("//") for each in loaded)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for gone in ("/redoc", "/docs/oauth2-redirect"):
        assert api.get(gone).status_code == 404
