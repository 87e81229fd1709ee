"""Doing what an action says and nothing else: by its HTTP call, or by its command in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from expunge_client.cli.main import app
from tests.harness.here import connect_here

Follow = Callable[..., None]
"""takes an action, and the caller's own values for its words in capitals"""


def by_call(client: TestClient) -> Follow:
    """Return what sends an action's call, and expects success."""

    def follow(action: dict[str, Any], **values: Any) -> None:
        body = action["body"] and {field: values.get(value, value) for field, value in action["body"].items()}
        path = action["path"]
        for word, value in values.items():
            path = path.replace(word, str(value))
        answer = client.request(action["method"], path, json=body, headers={"Idempotency-Key": "a-way-out"})
        assert answer.status_code < 300, (action, answer.text)

    return follow


def by_command(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Return what types an action's command and answers yes, and expects success."""

    def follow(action: dict[str, Any], **values: Any) -> None:
        words = shlex.split(action["command"])
        typed = []
        for word in words[1:]:  # a value comes alone, or after its field's name
            name, equals, value = word.rpartition("=")
            typed.append(f"{name}{equals}{values.get(value, value)}")
        result = run(client, monkeypatch, *typed)
        assert result.exit_code == 0, (action, result.output, result.exception)

    return follow


def run(client: TestClient, monkeypatch: pytest.MonkeyPatch, *typed: str) -> Result:
    """Run a command against the application in this process; every question is answered with yes."""
    connect_here(monkeypatch, client)
    return CliRunner().invoke(app, typed, input="y\n")
