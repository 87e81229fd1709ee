"""The architectures and trainings of the papers behind ``safe`` and ``cns``, over HTTP, at the size of the digits."""

from __future__ import annotations

import pytest

from expunge.service.audit.signed_note import Verifier
from expunge.service.audit.verification import verify
from tests.harness.stack import Stack
from tests.stories.test_deletions import expunge, log
from tests.stories.test_own_training import claims_of

LEARNED = 0.3
"""of the holdout's accuracy: a guess has a tenth"""
MODELS = {
    "SAFE's CNN by Adam": ("paper_safe_cnn", "safe", "safe-cnn", False),
    "SAFE's ResNet with batch normalisation": ("paper_safe_resnet", "safe", "safe-resnet", True),
    "CNS's MLP by Adam with dropout": ("paper_cns_mlp", "cns", "cns-mlp", False),
}


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
@pytest.mark.parametrize("story", MODELS)
def test_five_people_leave_a_paper_s_own_model(stack: Stack, story: str) -> None:
    """Two one by one, then three together: versions, certificates and the log agree."""
    recipe, method, paper, buffers = MODELS[story]
    name = stack.live(recipe, method, max_accuracy_drop=None, noise_std=1e-4, fallback="hold")
    first = stack.head(name)
    assert first["holdout_accuracy"] > LEARNED
    report = stack.prepared(name)["preparation"]["report"]
    assert report["reach" if method == "safe" else "damping"] > 0
    people = [f"{paper}-person-{number}" for number in range(5)]
    requests = []
    for number, person in enumerate(people[:2]):
        requests.append(stack.forgotten(name, subject_id=person)["id"])
        head = stack.head(name)
        assert (head["number"], head["people"], head["samples"]) == (number + 2, 1, 4)
    orders = [{"subject_id": person, "models": [name]} for person in people[2:]]
    answer = stack.client.post("/v1/deletion-requests/batch", {"requests": orders}, f"{paper}-together")
    requests += [outcome["request"]["id"] for outcome in answer["outcomes"]]
    for request in requests:
        ended = stack.ended({"id": request})
        assert (ended["status"], ended["samples"]) == ("completed", 4), ended
        for claim in claims_of(stack, request):
            assert (claim["method"], claim["guarantee"], claim["epsilon"]) == (method, "none", None)
            assert any("running statistics" in sentence for sentence in claim["secret_state"]) == buffers
    last = stack.head(name)
    assert 3 <= last["number"] <= 6 and last["holdout_accuracy"] > LEARNED
    assert last["checkpoint_sha256"] != first["checkpoint_sha256"]
    head = stack.client.text("/v1/audit-log/checkpoint")
    assert verify(log(stack.client), head, Verifier.load(stack.home / "log.vkey")).size > 0


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
def test_the_command_verifies_what_the_papers_left(stack: Stack) -> None:
    """Versions, tables and log together, after the models above."""
    expunge(stack, "audit", "verify")
