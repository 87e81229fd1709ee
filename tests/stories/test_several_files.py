"""A recipe that publishes a model, its scaler and its words: downloaded, followed and forgotten as one version."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from expunge_client import Expunge, Follower, Version, unpack_archive, verify_certificate
from expunge_service.access.api_keys import Scope
from tests.harness.stack import Stack
from unlearning.formats import files_of

PAGE = Path(__file__).parents[2] / "docs" / "integrate.md"
FILES = {"en/words.json", "model.json", "scaler.json"}


def opened_as_the_page_says() -> Any:
    """Run the page's example; return its function that opens a folder."""
    found = re.search(r"^\*\*A version of several files.*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names["opened"]


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
@pytest.mark.parametrize("method", ["retrain", "shards"])
def test_several_files_are_followed_and_forgotten_as_one_version(stack: Stack, method: str, tmp_path: Path) -> None:
    options = {"shards": 3} if method == "shards" else {}
    name = stack.live("several", method, options=options, max_accuracy_drop=None)
    first = stack.head(name)
    assert first["checkpoint_suffix"] == "zip" and first["claim"]["guarantee"] == "exact"
    opened = opened_as_the_page_says()
    folders: list[Path] = []

    def noted(path: Path, version: Version) -> Any:
        folders.append(path)
        return opened(path, version)

    client = Expunge(stack.account.url, stack.key(Scope.MODELS_READ, Scope.CHECKPOINTS_READ))
    with client, Follower(client, name, "several", noted, tmp_path / "served") as follower:
        with follower.serving() as served:
            before = served.model
        people = (f"several-person-{number}" for number in range(12))
        request = stack.forgotten(name, subject_id=next(each for each in people if not stack.keeps_apart(each, 0.2)))
        stack.eventually(
            lambda: stack.client.get(f"/v1/models/{name}/consumers")["data"],
            lambda told: told == [{"name": "several", "version": 2, "status": "current"}],
        )
        with follower.serving() as served:
            after, version = served.model, served.version
    assert set(before) == set(after) == FILES and before["en/words.json"] == after["en/words.json"]
    changed = [name for name in ("model.json", "scaler.json") if before[name] != after[name]]
    assert changed == ["model.json", "scaler.json"]
    digest = version["checkpoint_sha256"]
    assert {each.name for each in (tmp_path / "served").iterdir()} == {digest, f"{digest}.zip"}
    assert [each.name for each in folders] == [first["checkpoint_sha256"], digest]
    data = (tmp_path / "served" / f"{digest}.zip").read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest, "a certificate is about the archive"
    assert {name: json.loads(content) for name, content in files_of(data).items()} == after
    unpack_archive(tmp_path / "served" / f"{digest}.zip", tmp_path / "mine")
    assert json.loads((tmp_path / "mine" / "scaler.json").read_text()) == after["scaler.json"]
    with Expunge(stack.account.url, stack.account.api_key) as client:
        certificate = client.certificate(request["id"])
    verified = verify_certificate(certificate, (stack.home / "log.vkey").read_text())
    assert verified.statement["subject"] == [{"name": f"{name}/versions/2", "digest": {"sha256": digest}}]
