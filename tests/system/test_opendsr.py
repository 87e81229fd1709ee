"""OpenDSR with real processes: the API takes a request, a worker forgets, the scheduler calls back."""

from __future__ import annotations

import time
import uuid

import pytest

from expunge.service.access.api_keys import Scope
from tests.harness.stack import Stack
from tests.service.conformity.opendsr_client import Controller

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)


@pytest.mark.usefixtures("suppressed_for_this_test")
@pytest.mark.drill  # tests/service/test_opendsr.py has each step
def test_a_person_leaves_the_model_and_the_caller_is_called_back(stack: Stack) -> None:
    name = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4)
    controller = Controller(f"{stack.account.url}/opendsr", stack.key(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ))
    controller.discover()
    server = controller.listen()
    asked = {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60)),
        "subject_identities": [
            {"identity_type": "controller_customer_id", "identity_value": "tiny-person-7", "identity_format": "raw"}
        ],
        "api_version": "2.0",
        "status_callback_urls": [f"http://127.0.0.1:{server.server_port}/"],
    }
    before = stack.head(name)["number"]
    assert controller.erase(asked).status == 201
    stack.eventually(lambda: controller.callbacks[-1:], lambda last: last and last[0]["request_status"] == "completed")
    server.shutdown()
    assert controller.rejected == []
    assert controller.status(asked["subject_request_id"]).said["request_status"] == "completed"
    assert stack.head(name)["number"] > before
    (request,) = stack.client.get("/v1/deletion-requests", case_id=asked["subject_request_id"])["data"]
    assert request["samples"] > 0
