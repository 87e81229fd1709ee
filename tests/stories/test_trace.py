"""One trace leads from the client's call into the worker's log, over real processes."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.harness.stack import Stack

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_workers_log_lines_name_the_trace_of_the_call(stack: Stack) -> None:
    name = stack.live("tiny")
    headers = {
        "Authorization": f"Bearer {stack.account.api_key}",
        "Idempotency-Key": str(uuid.uuid4()),
        "traceparent": TRACE,
    }
    body = {"subject_id": "tiny-person-6", "models": [name], "suppress": "named_models"}
    request = stack.http.post("/v1/deletion-requests", json=body, headers=headers).json()
    assert stack.ended(request)["status"] == "completed"

    def lines(_: Any = None) -> list[dict[str, Any]]:
        log = stack.processes["worker"].log.read_text().splitlines()
        found = [json.loads(line) for line in log if line.startswith("{")]
        ours = [line for line in found if line.get("request_id") == request["id"]]
        return [line for line in ours if line["logger"].startswith("expunge_workers.")]

    said = stack.eventually(lines, lambda found: len(found) >= 2)
    assert {line["traceparent"] for line in said} == {TRACE}
    assert [line["message"] for line in said[:2]] == ["request claimed", "request attempted"]
    assert all(line["model"] == name and "tiny-person" not in json.dumps(line) for line in said)
