"""A version given to other systems: judged by CycloneDX's validator, model_signing's command, a real MLflow server."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.harness.stack import Stack
from tests.stories.conftest import stack

__all__ = ["stack"]

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"unverified here: {', '.join(missing)} is not installed")


def expunge(stack: Stack, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "expunge_client.cli.main", *words, "--json"]
    environment = stack.environment | {"EXPUNGE_API_KEY": stack.account.api_key, "EXPUNGE_URL": stack.account.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key, as `openssl ecparam` makes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "signing.pem").write_bytes(private)
    (tmp_path / "signing.pub").write_bytes(public)
    return tmp_path / "signing.pem", tmp_path / "signing.pub"


def is_verified(folder: Path, public_key: Path) -> bool:
    command = [str(Path(sys.executable).with_name("model_signing")), "verify", "key", str(folder)]
    command += ["--signature", str(folder / "model.sig"), "--public_key", str(public_key)]
    command += ["--ignore-paths", str(folder / "model.sig")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@needs("cyclonedx", "model_signing")
def test_a_bundle_is_valid_and_signed_and_names_nobody(stack: Stack, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 (an extra)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    name = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4, granularity="sample")
    request = stack.forgotten(name, sample_ids=["tiny-7"])
    folder = tmp_path / "bundle"
    made = expunge(stack, "registry", "bundle", name, str(folder), "--sign", str(keys[0]))
    assert made["version"] == 2 and made["files"] == ["model.safetensors", "bom.cdx.json", "model.sig"]
    text = (folder / "bom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    described = json.loads(text)["metadata"]["component"]
    head = stack.head(name)
    said = {each["name"]: each["value"] for each in described["properties"]}
    assert described["hashes"] == [{"alg": "SHA-256", "content": head["checkpoint_sha256"]}]
    assert said["expunge.guarantee"] == head["claim"]["guarantee"] and said["expunge.samples_erased"] == "1"
    assert described["pedigree"]["ancestors"][0]["version"] == "1"
    assert request["id"] not in text and "tiny-7" not in said.values()

    assert is_verified(folder, keys[1])
    (folder / "bom.cdx.json").write_text(text.replace("proved", "exact"))
    assert not is_verified(folder, keys[1]), "a claim that was edited does not verify"


@needs("cyclonedx", "model_signing")
def test_a_version_of_several_files_is_one_signed_file_whose_files_are_listed(
    stack: Stack, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 (an extra)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    name = stack.live("several", "retrain")
    folder = tmp_path / "bundle"
    made = expunge(stack, "registry", "bundle", name, str(folder), "--sign", str(keys[0]))
    assert made["files"] == ["model.zip", "bom.cdx.json", "model.sig"]
    assert sorted(each.name for each in folder.iterdir()) == sorted(made["files"])
    text = (folder / "bom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    described = json.loads(text)["metadata"]["component"]
    assert described["hashes"] == [{"alg": "SHA-256", "content": stack.head(name)["checkpoint_sha256"]}]
    with zipfile.ZipFile(folder / "model.zip") as file:
        digests = {each: hashlib.sha256(file.read(each)).hexdigest() for each in file.namelist()}
    listed = {each["name"]: each["hashes"] for each in described["components"]}
    assert listed == {each: [{"alg": "SHA-256", "content": digest}] for each, digest in digests.items()}
    assert set(listed) == {"en/words.json", "model.json", "scaler.json"}
    assert {each["type"] for each in described["components"]} == {"file"}
    assert is_verified(folder, keys[1])
    with zipfile.ZipFile(folder / "model.zip") as file:
        file.extractall(folder / "model")
    assert not is_verified(folder, keys[1]), "what lies in the folder beside it is not signed"


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real MLflow server with its database and artifacts in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path / "mlflow"
    home.mkdir()
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{home / 'mlflow.db'}",
        "--artifacts-destination",
        str(home / "files"),
    ]
    with (home / "log").open("w") as log:
        process = subprocess.Popen([*command, "--workers", "1"], stdout=log, stderr=log, cwd=home)
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(240):
                try:
                    if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.5)
            else:
                pytest.fail((home / "log").read_text()[-2000:])
            yield url, home / "files"
        finally:
            process.terminate()
            process.wait(20)


@needs("cyclonedx", "mlflow", "flask")
@pytest.mark.timeout(400)
def test_mlflow_has_the_current_version_and_nothing_of_the_earlier_ones(
    stack: Stack, mlflow_server: tuple[str, Path]
) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415 (an extra)

    url, files = mlflow_server
    assert shutil.which("mlflow", path=str(Path(sys.executable).parent))
    name = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4, granularity="sample")
    client = MlflowClient(url)
    client.create_registered_model(name)
    elsewhere = client.create_run("0").info
    theirs = client.create_model_version(name, source=elsewhere.artifact_uri, run_id=elsewhere.run_id)
    assert expunge(stack, "registry", "push", name, "--mlflow", url)["deleted"] == []
    first = {path.read_bytes() for path in files.rglob("*.safetensors")}
    assert len(first) == 1
    stack.forgotten(name, sample_ids=["tiny-8"])
    pushed = expunge(stack, "registry", "push", name, "--mlflow", url)
    assert len(pushed["deleted"]) == 1 and pushed["version"] == 2
    again = expunge(stack, "registry", "push", name, "--mlflow", url)
    assert (again["registry_version"], again["deleted"]) == (pushed["registry_version"], [])

    current = client.get_model_version_by_alias(name, "current")
    assert int(current.version) == pushed["registry_version"]
    assert current.tags["expunge.version"] == "2" and current.tags["expunge.guarantee"] == "proved"
    kept = {each.version for each in client.search_model_versions(f"name = '{name}'")}
    assert kept == {theirs.version, current.version}, "what somebody else made stays"
    assert first.isdisjoint(path.read_bytes() for path in files.rglob("*.safetensors")), "version 1 has left"
    assert len(list(files.rglob("*.safetensors"))) == 1


@needs("cyclonedx", "mlflow", "flask")
@pytest.mark.timeout(400)
def test_mlflow_has_the_current_archive_and_not_the_earlier_one(stack: Stack, mlflow_server: tuple[str, Path]) -> None:
    url, files = mlflow_server
    name = stack.live("several", "retrain")
    expunge(stack, "registry", "push", name, "--mlflow", url)
    stack.forgotten(name, subject_id="several-person-4")
    assert len(expunge(stack, "registry", "push", name, "--mlflow", url)["deleted"]) == 1
    (archive,) = files.rglob("*.zip")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == stack.head(name)["checkpoint_sha256"]
