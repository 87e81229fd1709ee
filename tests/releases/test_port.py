"""The folder of 0.2.0 in this release: served, its recipe rewritten with rows, ported over HTTP, deletions answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from expunge_client import verify_certificate
from tests.harness.process import PATH_OF_TESTS
from tests.harness.stack import Stack, running
from tests.releases.folder import DELETED, NEXT, WITH_ROWS, certified, rewrite, unpack, write_table

FOLDER = Path(__file__).parent / "0.2.0"


@pytest.mark.drill
def test_a_model_of_0_2_0_is_ported_and_its_deletions_are_answered(tmp_path: Path) -> None:
    home, recipes = unpack(FOLDER, tmp_path)
    old, key = (FOLDER / "certificate.json").read_text(), (FOLDER / "log.vkey").read_text()
    with running(home, recipes) as stack:
        (name,) = (model["name"] for model in stack.client.pages("/v1/models"))
        said = command(stack, "migrate")
        assert f"1 of 1 models waits for a rewrite of the recipe: {name}. They are served, and no deletion" in said
        rewrite(recipes)
        served = checkpoint(stack, name)
        request = stack.ended(stack.delete(subject_id=NEXT, regulation="gdpr"))
        assert (request["status"], request["reason"]) == ("blocked", "recipe_form")
        assert request["actions"][0]["command"] == f"expunge models port {name}"
        waits = "waits for a port to the rewritten recipe"
        assert f"1 of 1 models {waits}: {name}. 1 request waits as recipe_form." in command(stack, "migrate")

        away = (recipes / "tiny.csv").rename(tmp_path / "tiny.csv")
        assert "no file 'tiny.csv'" in command(stack, "models", "port", name, "--yes", fails=True)
        assert (stack.head(name)["number"], checkpoint(stack, name)) == (2, served)
        away.rename(recipes / "tiny.csv")
        said = command(stack, "models", "port", name, "--yes")
        assert "name 20 people" in said and "\n0 people of the current version" in said and "2 people of the s" in said
        request = stack.ended(request)
        assert (request["status"], request["samples"], request["models"][0]["version"]) == ("completed", 3, 3)
        assert request["completed_at"] < request["due_at"]
        new, log = certified(stack, request)
        ported = checkpoint(stack, name)

        write_table(recipes / "never.csv", DELETED, NEXT)
        (recipes / "never.py").write_text(WITH_ROWS.replace("FILE", "never.csv"))
        assert checkpoint(stack, stack.live("never", "retrain")) == ported
        assert json.loads(ported)["rows"] == 54
        assert "recipe" not in command(stack, "migrate"), "no model waits any more"
    for certificate in (old, new):
        assert verify_certificate(certificate, key, log=log).claim_in_log
    kinds = [json.loads(json.loads(line)["body"]) for line in log.splitlines() if '"body"' in line]
    assert [body["port"] for body in kinds if body["kind"] == "generation.switched"] == [True]


def checkpoint(stack: Stack, name: str) -> bytes:
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    number = stack.head(name)["number"]
    answer = stack.http.get(f"/v1/models/{name}/versions/{number}/checkpoint", headers=headers)
    answer.raise_for_status()
    return answer.content


def command(stack: Stack, *words: str, fails: bool = False) -> str:
    """Run a command of ``expunge`` beside the service, and return what it says on standard error."""
    account: dict[str, Any] = {"EXPUNGE_URL": stack.account.url, "EXPUNGE_API_KEY": stack.account.api_key}
    done = subprocess.run(
        [sys.executable, "-m", "expunge_client.cli.main", *words],
        env=os.environ | stack.environment | PATH_OF_TESTS | account,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr
