"""From a deletion request over HTTP to a new version and its record, with every process separate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from expunge_client.cli.client import Client
from expunge_service.audit.signed_note import Verifier
from expunge_service.audit.verification import verify
from tests.harness.stack import Stack

PROVED = {"guarantee": "proved", "noise_std": 0.01, "max_distance": 1e-5, "epsilon": 1.0, "delta": 1e-5}


def test_a_person_is_forgotten_in_the_convex_digits_with_a_proof(stack: Stack) -> None:
    name = stack.live("digits", **PROVED)
    before = stack.head(name)
    request = stack.forgotten(name, subject_id="person-007", regulation="gdpr")
    after = stack.head(name)

    assert [before["number"], after["number"], after["parent"]] == [1, 2, 1]
    assert request["models"][0]["samples"] == after["samples"] > 0
    assert after["people"] == 1
    assert after["requests"] == [request["id"]]
    assert before["checkpoint_sha256"] != after["checkpoint_sha256"]
    assert after["holdout_accuracy"] > 0.85
    assert abs(after["holdout_accuracy"] - before["holdout_accuracy"]) < 0.05
    claim = after["claim"]
    assert (claim["method"], claim["guarantee"]) == ("recollection", "proved")
    assert (claim["noise_std"], claim["max_distance"], claim["delta"]) == (0.01, 1e-5, 1e-5)
    assert 0 < claim["epsilon"] < 1.0


def test_each_release_costs_the_same_and_the_ledger_adds_up(stack: Stack) -> None:
    name = stack.live("tiny", **PROVED)
    fresh = budget(stack.client, name)
    assert fresh["spent"] == 0
    for person in (3, 4):
        stack.forgotten(name, subject_id=f"tiny-person-{person}")
    spent = budget(stack.client, name)
    assert spent["spent"] == 2 * spent["budget_cost"] > 0
    assert spent["limit"] == fresh["limit"]
    assert spent["updates_left"] == fresh["updates_left"] - 2


@pytest.mark.drill
def test_the_convolutional_digits_forget_without_a_claim(stack: Stack) -> None:
    name = stack.live("digits/convolutional")
    request = stack.forgotten(name, subject_id="person-007")
    after = stack.head(name)
    assert after["number"] == request["models"][0]["version"] == 2
    assert after["samples"] > 0
    assert after["claim"]["guarantee"] == "none"
    assert after["claim"]["epsilon"] is None
    assert after["holdout_accuracy"] > 0.8


def test_the_recipe_of_the_readme_works_as_written(stack: Stack) -> None:
    name = stack.live("tumours", "newton", **PROVED)
    patients = [f"patient-{number:03d}" for number in range(100, 200)]
    stack.forgotten(name, subject_id=next(each for each in patients if not stack.keeps_apart(each, 0.2)))
    after = stack.head(name)
    assert (after["number"], after["samples"], after["claim"]["guarantee"]) == (2, 1, "proved")
    assert after["holdout_accuracy"] > 0.85


def test_the_readme_says_what_happens_to_somebody_kept_apart(stack: Stack) -> None:
    name = stack.live("tumours", "newton", **PROVED)
    patients = [f"patient-{number:03d}" for number in range(200, 300)]
    apart = next(each for each in patients if stack.keeps_apart(each, 0.2))
    assert stack.forgotten(name, subject_id=apart)["reason"] == "in_holdout"
    assert stack.head(name)["number"] == 1


def test_retraining_is_a_method_like_any_other_and_exact(stack: Stack) -> None:
    name = stack.live("tiny", "retrain")
    stack.forgotten(name, subject_id="tiny-person-5")
    after = stack.head(name)
    assert (after["number"], after["samples"], after["claim"]["guarantee"]) == (2, 3, "exact")


def test_an_unknown_person_completes_without_a_match(stack: Stack) -> None:
    name = stack.live("tiny")
    request = stack.forgotten(subject_id="nobody-we-know")
    assert (request["samples"], request["reason"]) == (0, "no_match")
    assert stack.head(name)["number"] == 1


def test_the_same_person_twice_is_forgotten_once(stack: Stack) -> None:
    name = stack.live("tiny")
    first = stack.forgotten(name, subject_id="tiny-person-6")
    second = stack.forgotten(name, subject_id="tiny-person-6")
    assert first["samples"] == 3
    assert second["samples"] == 0
    assert stack.head(name)["number"] == 2


def test_one_request_reaches_every_model_that_knew_the_person(stack: Stack) -> None:
    names = {stack.live("tiny"), stack.live("tiny", "retrain")}
    request = stack.forgotten(*names, subject_id="tiny-person-8")
    assert {part["model"] for part in request["models"]} == names
    assert {stack.head(name)["number"] for name in names} == {2}


@pytest.mark.drill  # tests/workers/update/test_update.py shows it too
def test_waiting_requests_are_released_together(stack: Stack) -> None:
    name = stack.live("tiny")
    stack.stop("worker")
    requests = [stack.delete(name, subject_id=f"tiny-person-{person}") for person in range(10, 15)]
    stack.start("worker")
    assert {stack.ended(request)["status"] for request in requests} == {"completed"}
    after = stack.head(name)
    assert (after["number"], after["people"], after["samples"]) == (2, 5, 15)


def test_the_head_can_be_downloaded_and_its_predecessor_is_gone(stack: Stack) -> None:
    name = stack.live("tiny")
    stack.forgotten(name, subject_id="tiny-person-9")
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    path = f"/v1/models/{name}/versions"
    answer = stack.http.get(f"{path}/current/checkpoint", headers=headers)
    assert load(answer.content)["weight"].shape == (2, 4)
    assert answer.headers["ETag"] == f'"{stack.head(name)["checkpoint_sha256"]}"'
    assert stack.http.get(f"{path}/1/checkpoint", headers=headers).status_code == 410
    purged = stack.eventually(lambda: stack.client.get(f"{path}/1"), lambda version: version["status"] == "purged")
    assert not list(stack.settings.store.rglob(f"*{purged['checkpoint_sha256']}*"))
    purges = stack.eventually(lambda: [each for each in log(stack.client) if each["kind"] == "version.purged"], bool)
    assert {each["actor"] for each in purges} == {"scheduler"}


def test_several_ids_of_a_person_are_forgotten_in_one_version_under_one_certificate(
    stack: Stack, tmp_path: Path
) -> None:
    name = stack.live("tiny")
    ids = ["tiny-person-1", "tiny-person-2"]
    request = stack.delete(name, subject_ids=ids, case_id="DSR-1")
    assert stack.ended(request)["status"] == "completed"
    assert stack.head(name)["people"] == 2 and stack.head(name)["requests"] == [request["id"]]
    path = f"/v1/deletion-requests/{request['id']}/certificate"
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    answer = stack.eventually(lambda: stack.http.get(path, headers=headers), lambda got: got.status_code == 200)
    (tmp_path / "certificate.json").write_text(answer.text)
    check = ["certificate", "verify", str(tmp_path / "certificate.json"), "--key", str(stack.home / "log.vkey")]
    check += ["--opening", request["opening"], "--subject", ids[1], "--subject", ids[0]]
    assert expunge(stack, *check, "--case", "DSR-1")["opening"] == "fits"
    assert "DSR-1" not in answer.text and "DSR-1" not in json.dumps(log(stack.client))


def test_the_audit_log_tells_the_whole_life_and_verifies_with_the_public_key(stack: Stack) -> None:
    name = stack.live("tiny")
    request = stack.forgotten(name, subject_id="tiny-person-1")
    entries = stack.eventually(lambda: log(stack.client), lambda found: of(found, request))
    kinds = [entry["kind"] for entry in of(entries, request)]
    assert kinds[0] == "request.accepted"
    assert kinds[-1] == "request.completed"
    whole = log(stack.client)
    named = {entry["kind"]: entry["actor"] for entry in whole}
    assert named["key.created"] == "operator" and named["version.published"] == named["request.completed"] == "worker"
    (accepted,) = (entry for entry in of(entries, request) if entry["kind"] == "request.accepted")
    assert accepted["actor_name"] == "test" and accepted["actor_key"] is not None, "the key's label named its holder"
    assert all(entry["actor"] for entry in whole)
    head = stack.client.text("/v1/audit-log/checkpoint")
    assert verify(log(stack.client), head, Verifier.load(stack.home / "log.vkey")).size > 0


@pytest.mark.parametrize(
    "arguments",
    [["audit", "verify"], pytest.param(["doctor"], marks=pytest.mark.drill), ["models", "list"]],
    ids=" ".join,
)
def test_the_command_line_agrees(stack: Stack, arguments: list[str]) -> None:
    stack.live("tiny")
    assert expunge(stack, *arguments)


def test_the_command_line_estimates_deletes_and_fetches_the_certificate(stack: Stack) -> None:
    name = stack.live("tiny", **PROVED)
    here = ("delete", "--model", name, "--suppress", "named_models", "--subject", "tiny-person-16")
    costs = expunge(stack, *here, "--estimate")
    assert costs["samples"] == 3
    assert stack.head(name)["number"] == 1
    request = expunge(stack, *here, "--wait")
    assert request["status"] == "completed"
    assert len(request["opening"]) == 64
    assert expunge(stack, "requests", "show", request["id"])["samples"] == 3
    path = f"/v1/deletion-requests/{request['id']}/certificate"
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    stack.eventually(lambda: stack.http.get(path, headers=headers).status_code, lambda code: code == 200)
    done = run(stack, "certificate", "show", request["id"])
    assert json.loads(done.stdout)["payloadType"] == "application/vnd.in-toto+json"


def expunge(stack: Stack, *arguments: str) -> Any:
    """What the command says with --json."""
    done = run(stack, *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = stack.environment | {"EXPUNGE_URL": stack.account.url, "EXPUNGE_API_KEY": stack.account.api_key}
    command = [sys.executable, "-m", "expunge_client.cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def budget(client: Client, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/v1/models/{name}/budget")
    return answer


def log(client: Client) -> list[dict[str, Any]]:
    return list(client.pages("/v1/audit-log", limit=200))


def of(entries: list[dict[str, Any]], request: dict[str, Any]) -> list[dict[str, Any]]:
    """The request's own entries, once the last of them has its place in the log; until then none."""
    own = [entry for entry in entries if entry["request_id"] == request["id"]]
    return own if own and own[-1]["kind"] == "request.completed" else []
