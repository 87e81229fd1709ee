"""The light client against a live service, in processes that cannot import the service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from expunge_client import AsyncExpunge, Expunge, Follower, NotCompleted, Version, verify_certificate
from expunge_service.access.api_keys import Scope
from tests.harness.stack import Stack

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "integrate.md"
PERSON = "tiny-person-3"
VERSIONS = 6
ON_STACK = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
ALONE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"expunge", "unlearning", "torch", "sqlalchemy", "pydantic"}:
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
"""


def ten_lines() -> str:
    found = re.search(r"^### Delete, wait, verify.*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found
    return found[1]


def expunge(stack: Stack) -> Expunge:
    return Expunge(stack.account.url, stack.account.api_key)


@ON_STACK
def test_an_integrator_deletes_waits_and_verifies_in_ten_lines(
    stack: Stack, tmp_path: Path, suppressed_for_this_test: None
) -> None:
    """The page's own lines, in a process where the service cannot be imported."""
    lines = [line for line in ten_lines().splitlines() if line.strip()]
    assert len(lines) <= 10 and ten_lines() in (ROOT / "client" / "README.md").read_text()
    stack.live("tiny")
    script = tmp_path / "ten.py"
    script.write_text(ALONE + ten_lines().replace("person-7", PERSON))
    told = {
        "EXPUNGE_URL": stack.account.url,
        "EXPUNGE_API_KEY": stack.account.api_key,
        "LOG_VKEY": (stack.home / "log.vkey").read_text(),
        "PYTHONPATH": str(ROOT / "client"),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run([sys.executable, script], env=told, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "deleted from" in done.stdout and "/versions/2" in done.stdout


def test_the_client_loads_neither_the_service_nor_anything_heavy() -> None:
    code = "from expunge_client import *; import json, sys; print(json.dumps(sorted(sys.modules)))"
    environment = {"PYTHONPATH": str(ROOT / "client"), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert {"httpx", "cryptography"} <= loaded
    assert not loaded & {"expunge", "unlearning", "torch", "numpy", "sqlalchemy", "pydantic", "fastapi"}


@pytest.mark.drill
def test_the_distribution_holds_the_package_and_its_types(tmp_path: Path) -> None:
    """What ``pip install ./client`` installs. Built without the network, by the setuptools that is here."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    (tmp_path / "client").mkdir()
    for file in (ROOT / "client").rglob("*"):
        if file.is_file() and file.suffix != ".pyc" and "egg-info" not in str(file) and "build" not in file.parts:
            target = tmp_path / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    subprocess.run([*build, str(tmp_path / "client")], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("expunge_client-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    source = ROOT / "client" / "expunge_client"
    assert held == {f"expunge_client/{path.name}" for path in source.iterdir() if path.suffix in {".py", ".typed"}}
    assert "expunge_client/py.typed" in held
    needs = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.match(r"\w+", each)[0] for each in needs} == {"httpx", "cryptography"}  # type: ignore[index]


@ON_STACK
def test_the_asynchronous_twin_does_the_same(stack: Stack) -> None:
    model = stack.live("tiny")

    async def ask() -> None:
        async with AsyncExpunge(stack.account.url, stack.account.api_key) as client:
            cost = await client.estimate(subject_id=PERSON, models=[model])
            assert cost["samples"] > 0
            request, again = [
                await client.delete(subject_id=PERSON, models=[model], suppress="named_models", idempotency_key=model)
                for _ in range(2)
            ]
            assert request["id"] == again["id"], "one key, one request"
            done = await client.wait(request["id"], timeout_seconds=90)
            later = await client.request(request["id"])
            assert done | {"erasing": False} == later | {"erasing": False}, "keys may be destroyed in between"
            certificate = await client.certificate(request["id"])
        key = (stack.home / "log.vkey").read_text()
        verify_certificate(certificate, key, opening=request["opening"], subject_id=PERSON)

    asyncio.run(ask())


@ON_STACK
def test_a_person_is_found(stack: Stack) -> None:
    model = stack.live("tiny")
    with expunge(stack) as client:
        request = client.delete(subject_id=PERSON, models=[model], suppress="named_models")
        client.wait(request["id"], timeout_seconds=90)
        found = client.find(PERSON)
        assert client.find("nobody-known")["models"] == []
    assert request["id"] in [each["id"] for each in found["requests"]]
    (known,) = [each for each in found["models"] if each["model"] == model]
    assert (known["state"], known["version"]) == ("forgot", 2)


@ON_STACK
def test_who_waits_for_an_unverified_request_is_told_what_to_do(stack: Stack) -> None:
    with expunge(stack) as client:
        request = client.delete(subject_id="nobody-known", verified=False)
        with pytest.raises(NotCompleted, match="verify the request"):
            client.wait(request["id"])
    stack.client.post(f"/v1/deletion-requests/{request['id']}/reject", {"reason": "the test is over"})


@pytest.fixture
def follower(stack: Stack, tmp_path: Path) -> Iterator[Follower[tuple[int, int]]]:
    """Follows a new model and holds what it makes of a file: its size and its version."""
    model = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4, granularity="sample")

    def opened(path: Path, version: Version) -> tuple[int, int]:
        return path.stat().st_size, version["number"]

    with Expunge(stack.account.url, stack.key(Scope.MODELS_READ, Scope.CHECKPOINTS_READ)) as client:
        following = Follower(client, model, "light", opened, tmp_path / "served")
        following.model_name = model  # type: ignore[attr-defined]
        with following:
            yield following


@ON_STACK
def test_a_follower_serves_every_call_while_versions_are_published_and_reports_the_last(
    stack: Stack, follower: Follower[tuple[int, int]], tmp_path: Path
) -> None:
    model: str = follower.model_name  # type: ignore[attr-defined]
    ended = threading.Event()

    def load() -> set[int]:
        seen = set()
        while not ended.is_set():
            with follower.serving() as served:
                size, number = served.model
                assert size == served.version["checkpoint_bytes"] and number == served.version["number"]
                seen.add(number)
            time.sleep(0.002)
        return seen

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(load) for _ in range(4)]
        try:
            for sample in range(VERSIONS):
                stack.forgotten(model, sample_ids=[f"tiny-{sample}"])
            stack.eventually(
                lambda: stack.client.get(f"/v1/models/{model}/consumers")["data"],
                lambda found: found == [{"name": "light", "version": 1 + VERSIONS, "status": "current"}],
            )
        finally:
            ended.set()
        seen = set().union(*(caller.result() for caller in callers))
    assert {1, 1 + VERSIONS} <= seen <= set(range(1, VERSIONS + 2))
    served = stack.head(model)["checkpoint_sha256"]
    assert [path.name for path in (tmp_path / "served").iterdir()] == [f"{served}.safetensors"]
