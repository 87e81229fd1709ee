"""The API's reference page: whole, and nothing on it is loaded from anybody else."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

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


def test_no_third_party_sees_the_readers_browser(api: TestClient) -> None:
    answer = api.get("/docs")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert loaded and all(each.startswith(("/", "#")) and not each.startswith("//") for each in loaded)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for gone in ("/redoc", "/docs/oauth2-redirect"):
        assert api.get(gone).status_code == 404
