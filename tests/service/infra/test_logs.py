"""Logs: always valid JSON, one line for each step of a request after its commit, and never a person."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from expunge_service.api.dependencies import Service
from expunge_service.infra.logging import FIELDS, JsonLines, ReadableLines
from expunge_service.infra.tables import Task
from expunge_service.requests.status import settle
from tests.service.certificates.test_certificates import carry_out
from tests.service.worlds import live_model

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.floats(),
    st.integers(),
    st.none(),
    st.binary(),
    st.sampled_from(['"}\n{"level":"CRITICAL"', "\ud800", "\x00\x1b[2J", "\u2028\u2029", "a\r\nb"]),
)


def record(message: object, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("service.x", logging.INFO, "x.py", 1, message, (), None)
    vars(made).update(facts)
    return made


@given(HOSTILE, st.dictionaries(st.sampled_from(FIELDS), HOSTILE))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_line_is_one_line_of_valid_json_for_any_value(message: object, facts: dict[str, object]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = JsonLines().format(record(message, **facts))
    assert "\n" not in line and line.isascii()
    read = json.loads(line, parse_constant=refuse)
    assert set(facts) <= set(read) and read["level"] == "INFO"
    json.dumps(read, ensure_ascii=False).encode()  # no lone surrogate is left
    assert ReadableLines().format(record(message, **facts)).isprintable()


def test_a_field_that_is_not_listed_is_not_written() -> None:
    for formatter in (JsonLines(), ReadableLines()):
        assert "ada" not in formatter.format(record("said", subject_id="ada", request_id="r"))


def test_what_celery_tells_root_is_a_line_of_json() -> None:
    root = "import os\nfor each in ('getuid', 'geteuid'): setattr(os, each, lambda: 0)\n"
    ours = "from expunge_service.infra.logging import configure\nconfigure('INFO')\n"
    theirs = "from celery.platforms import check_privileges\ncheck_privileges(['json'])"
    done = subprocess.run([sys.executable, "-c", root + ours + theirs], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings") and "superuser" in line["message"]


@ON_SQLITE
def test_each_step_of_a_request_is_one_line_and_names_nobody(
    client: TestClient, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    model = live_model(service)
    caplog.set_level(logging.INFO, "expunge")

    def ask(subject: str, **more: Any) -> str:
        body = {"subject_id": subject} | more
        headers = {"Idempotency-Key": subject}
        return str(client.post("/v1/deletion-requests", json=body, headers=headers).json()["id"])

    first, second = ask("ada"), ask("bob", verified=False)
    carry_out(service, model, first)
    lines = [
        (each.message, vars(each)["request_id"], vars(each)["status"], vars(each)["seconds"] >= 0)
        for each in caplog.records
        if each.message.startswith("request ")
    ]
    assert lines == [
        ("request accepted", first, "queued", True),
        ("request accepted", second, "blocked", True),
        ("request blocked", second, "blocked", True),
        ("request completed", first, "completed", True),
    ]
    written = "".join(JsonLines().format(each) for each in caplog.records)
    assert not re.search(r"\bada\b", written) and "bob" not in written


@ON_SQLITE
def test_what_is_rolled_back_is_not_logged(
    client: TestClient, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    live_model(service)
    made = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "1"}).json()
    caplog.set_level(logging.INFO, "expunge")
    caplog.clear()
    with pytest.raises(KeyError), service.database.write() as session:
        for task in session.query(Task):
            task.status = "blocked"
        assert settle(session, [made["id"]]) == [made["id"]]
        raise KeyError
    assert [each.message for each in caplog.records if each.message.startswith("request ")] == []
