"""The TLS proxy of deploy/nginx before the API: deletions over TLS and HTTP/2."""

from __future__ import annotations

import json
import tempfile
import uuid
from pathlib import Path
from subprocess import CompletedProcess

from tests.deploy.images import provide, registry_answers
from tests.deploy.programs import ran, tried
from tests.deploy.project import eventually
from tests.deploy.step import Check, Step, Unverified
from tests.harness.certificates import self_signed

IMAGE = "nginx:1-bookworm"
HOST = "expunge.example.com"
"""the name in deploy/nginx/expunge.conf"""
CONTAINER = "expunge-check-nginx"
DELETIONS = 5


def nginx(check: Check) -> str:
    """Run nginx with deploy/nginx/expunge.conf in the API's network place, and send deletions through it."""
    if provide(IMAGE, registry_answers()) is None:
        raise Unverified(f"{IMAGE} cannot be had here")
    api = next(iter(check.project.running("api")))
    with tempfile.TemporaryDirectory(prefix="expunge-tls-", dir="/var/tmp") as name:
        key, certificate = files_of(Path(name))
        tried("docker", "rm", "-f", CONTAINER)
        ran(
            *("docker", "run", "--detach", "--name", CONTAINER, "--network", f"container:{api}"),
            *("-v", f"{check.project.folder}/deploy/nginx/expunge.conf:/etc/nginx/conf.d/expunge.conf:ro"),
            *("-v", f"{certificate}:/etc/ssl/expunge/fullchain.pem:ro", "-v", f"{key}:/etc/ssl/expunge/privkey.pem:ro"),
            IMAGE,
        )
        try:
            eventually(lambda: asked("/", "--output", "/dev/null").returncode, lambda code: code == 0, 30)
            for who in check.promises.people(DELETIONS):
                acknowledge(check, who)
            return f"{DELETIONS} deletions over TLS and HTTP/2; {closed()}"
        finally:
            tried("docker", "rm", "-f", CONTAINER)


def files_of(folder: Path) -> tuple[Path, Path]:
    """Write a key and its certificate, and return both, the key first."""
    first, second = self_signed(folder, HOST)
    return (first, second) if "PRIVATE KEY" in first.read_text() else (second, first)


def asked(path: str, *options: str, scheme: str = "https") -> CompletedProcess[str]:
    """Ask the proxy by curl, in its container, which trusts its certificate alone."""
    port = 443 if scheme == "https" else 80
    trust = ("--cacert", "/etc/ssl/expunge/fullchain.pem", "--resolve", f"{HOST}:{port}:127.0.0.1")
    return tried(
        "docker", "exec", CONTAINER, "curl", "--silent", "--http2", *trust, *options, f"{scheme}://{HOST}{path}"
    )


def acknowledge(check: Check, who: str) -> None:
    """Send a deletion through the proxy, and keep the promise that came back."""
    body = json.dumps({"subject_id": who, "case_id": who, "regulation": "gdpr"})
    done = asked(
        "/v1/deletion-requests",
        *("--header", f"Authorization: Bearer {check.promises.key}", "--header", f"Idempotency-Key: {uuid.uuid4()}"),
        *(
            "--header",
            "Content-Type: application/json",
            "--data",
            body,
            "--write-out",
            "\n%{http_version} %{http_code}",
        ),
    )
    text, _, version = done.stdout.rpartition("\n")
    assert version == "2 202", f"{version or done.stderr}: {text}"
    made = json.loads(text)
    check.promises.ids[who], check.promises.openings[who] = made["id"], made["opening"]


def closed() -> str:
    """Return a sentence about what the proxy keeps to itself."""
    shown = ("--output", "/dev/null", "--write-out", "%{http_code}")
    for path in ("/metrics", "/readyz", "/healthz"):
        code = asked(path, *shown).stdout
        assert code == "404", f"{path} is answered {code}"
    code = asked("/", *shown, scheme="http").stdout
    assert code == "308", f"http is answered {code}"
    return "probes and metrics are 404, http is sent to https"


STEPS = (Step("nginx", "Deletions go through the TLS proxy by HTTP/2.", 20, nginx, ("own-recipe",)),)
