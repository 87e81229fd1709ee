"""The sample of deploy/nginx before a running service: a real nginx, TLS, HTTP/2 by curl, and HTTP/1.1."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from expunge_service.infra.limits import LIMITS
from tests.harness.certificates import self_signed
from tests.harness.servers import free_port
from tests.harness.stack import Stack

ROOT = Path(__file__).parents[2]
SAMPLE = (ROOT / "deploy" / "nginx" / "expunge.conf").read_text()
NAME = "expunge.example.com"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
SECRET = "alice-canary"
pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
BODY_LIMIT = LIMITS.body_bytes


@dataclass
class Proxy:
    """The running nginx. ``folder`` has its logs."""

    stack: Stack
    folder: Path
    port: int
    plain_port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"

    @property
    def curl(self) -> list[str]:
        here = [f"{NAME}:{port}:127.0.0.1" for port in (self.port, self.plain_port)]
        return ["curl", "-sS", "--http2", "--cacert", str(self.certificate), "--resolve", here[0], "--resolve", here[1]]

    def call(self, path: str, *more: str, body: str | None = None, key: str | None = None) -> httpx.Response:
        """Call over HTTP/2. ``more``: arguments of curl."""
        headers = ["-H", f"Authorization: Bearer {key or self.stack.account.api_key}"]
        if body is not None:
            headers += ["-H", "Content-Type: application/json", "-H", "Expect:", "--data-binary", "@-"]
        command = [*self.curl, "-i", *headers, *more, self.url + path]
        done = subprocess.run(command, input=(body or "").encode(), check=True, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        assert first.startswith("HTTP/2 "), first
        pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        return httpx.Response(int(first.split()[1]), headers=pairs, content=content)

    def client(self, address: str) -> httpx.Client:
        """Return a client that calls from this address of the machine, over HTTP/1.1."""
        trusts = ssl.create_default_context(cafile=str(self.certificate))
        transport = httpx.HTTPTransport(verify=trusts, local_address=address)
        named = {"Host": f"{NAME}:{self.port}"}
        client = httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{self.port}", headers=named)
        client.event_hooks = {"request": [lambda request: request.extensions.update(sni_hostname=NAME)]}
        return client

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def proxy(stack: Stack, tmp_path: Path) -> Iterator[Proxy]:
    if NGINX is None:
        pytest.skip("unverified here: apt-get install nginx")
    curl = (
        subprocess.run(["curl", "--version"], check=False, capture_output=True, text=True)
        if shutil.which("curl")
        else None
    )
    if curl is None or "HTTP2" not in curl.stdout:
        pytest.skip("unverified here: apt-get install curl (with HTTP2)")
    with _running(stack, tmp_path) as started:
        yield started


@contextmanager
def _running(stack: Stack, folder: Path) -> Iterator[Proxy]:
    key, certificate = self_signed(folder, NAME)
    port, plain = free_port(), free_port()
    text = SAMPLE
    for ours, here in {
        "127.0.0.1:8750": stack.account.url.removeprefix("http://"),
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "listen [::]:80;": "",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "listen [::]:443 ssl http2;": "",
        "/etc/ssl/expunge/fullchain.pem": str(certificate),
        "/etc/ssl/expunge/privkey.pem": str(key),
        "/var/log/nginx": str(folder),
    }.items():
        assert ours in text, ours
        text = text.replace(ours, here)
    user = f"user {pwd.getpwuid(os.geteuid()).pw_name} root;" if os.geteuid() == 0 else ""
    # no folder for bodies and answers: an nginx that writes one to a file fails
    temporary = "".join(
        f"{kind}_temp_path {folder}/none/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{user} worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/main.txt info;"
        f"events {{}} http {{ {temporary} {text} }}"
    )
    (folder / "none").mkdir(mode=0o700)
    with subprocess.Popen([str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]) as process:
        started = Proxy(stack, folder, port, plain, certificate)
        try:
            stack.eventually(lambda: (folder / "pid").exists() or process.poll() is not None, bool)
            assert process.poll() is None, (folder / "main.txt").read_text()
            for path in (folder / "none").iterdir():
                path.rmdir()
            (folder / "none").rmdir()
            yield started
        finally:
            process.terminate()
            process.wait(20)


def test_a_call_arrives_whole_and_the_answer_comes_back_over_http_2(proxy: Proxy) -> None:
    name = proxy.stack.live("tiny")
    body = json.dumps({"subject_id": "tiny-person-3", "models": [name], "suppress": "named_models"})
    asked = proxy.call("/v1/deletion-requests", "-H", "Idempotency-Key: proxy-1", body=body)
    assert asked.status_code == 202, asked.text
    again = proxy.call("/v1/deletion-requests", "-H", "Idempotency-Key: proxy-1", body=body)
    assert again.json()["id"] == asked.json()["id"]
    assert proxy.stack.ended(asked.json())["status"] == "completed"
    shown = proxy.call(f"/v1/models/{name}")
    assert shown.headers["etag"] and shown.headers["strict-transport-security"] == "max-age=31536000"


def test_a_checkpoint_comes_whole_in_parts_and_through_no_file(proxy: Proxy) -> None:
    name = proxy.stack.live("tiny")
    head = proxy.stack.head(name)
    path = f"/v1/models/{name}/versions/{head['number']}/checkpoint"
    whole = proxy.call(path)
    assert whole.status_code == 200 and hashlib.sha256(whole.content).hexdigest() == head["checkpoint_sha256"]
    part = proxy.call(path, "-r", "10-19")
    assert part.status_code == 206 and part.content == whole.content[10:20]
    assert proxy.call(path, "-H", f"If-None-Match: {whole.headers['etag']}").status_code == 304


def test_a_body_up_to_the_limit_arrives_and_a_longer_one_is_told_the_limit(proxy: Proxy) -> None:
    """Padding inside an object, so that what arrives is read whole and found wrong for its content."""

    def padded(size: int) -> str:
        return '{"unknown": "' + "x" * (size - 15) + '"}'

    assert len(padded(BODY_LIMIT)) == BODY_LIMIT
    most = proxy.call("/v1/deletion-requests", "-H", "Idempotency-Key: p-2", body=padded(BODY_LIMIT))
    assert most.status_code == 422, most.text
    for size in (BODY_LIMIT + 1, BODY_LIMIT * 3 // 2):
        for _ in range(10):
            longer = proxy.call("/v1/deletion-requests", "-H", "Idempotency-Key: p-3", body=padded(size))
            assert (longer.status_code, longer.json()["code"]) == (413, "body_too_large"), longer.text
            assert f"at most {BODY_LIMIT} bytes" in longer.json()["detail"]
    assert proxy.call("/v1/deletion-requests", body=padded(3 * BODY_LIMIT)).status_code == 413
    assert "client request body is buffered" not in (proxy.folder / "main.txt").read_text()


def test_events_come_as_they_happen(proxy: Proxy) -> None:
    command = [
        *proxy.curl,
        "-N",
        "-H",
        f"Authorization: Bearer {proxy.stack.account.api_key}",
        f"{proxy.url}/v1/events",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            assert following.stdout.readline() == "retry: 1000\n"
            asked = proxy.stack.delete(subject_id="nobody-at-all")
            began = time.monotonic()
            while asked["id"] not in (line := following.stdout.readline()):
                assert line, "the stream ended"
            assert time.monotonic() - began < 10
        finally:
            following.terminate()


def test_what_asks_for_no_key_stays_inside(proxy: Proxy) -> None:
    for path in ("/metrics", "/readyz", "/healthz", "//metrics", "/x/../metrics", "/%6detrics", "/metrics?x=1"):
        answer = proxy.call(path, "--path-as-is")
        assert (answer.status_code, "expunge_" in answer.text) == (404, False), path
    assert proxy.call("/v1/models").status_code == 200


def test_plain_http_is_sent_to_tls(proxy: Proxy) -> None:
    command = [*proxy.curl, "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}"]
    done = subprocess.run(
        [*command, f"http://{NAME}:{proxy.plain_port}/v1/models?limit=1"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"308 https://{NAME}/v1/models?limit=1"


def test_the_page_lets_a_browser_log_in_by_its_own_address_over_tls(proxy: Proxy) -> None:
    form = ["--data-urlencode", f"key={proxy.stack.account.api_key}", "-H", f"Origin: {proxy.url}"]
    page = proxy.call("/console/login", *form)
    assert page.status_code == 303, page.text
    assert re.search(r"; *secure", page.headers["set-cookie"], re.IGNORECASE), "it was told that the browser speaks TLS"
    stranger = [each.replace(NAME, "elsewhere.example.com") for each in form]
    assert proxy.call("/console/login", *stranger).status_code == 403
    link = proxy.call("/console/link", "--data-urlencode", "link=x", "-H", f"Origin: {proxy.url}")
    assert link.status_code == 403, "who comes through the proxy is not on this machine"


def test_wrong_keys_are_counted_for_the_address_that_the_proxy_saw(proxy: Proxy) -> None:
    with proxy.client("127.0.0.2") as attacker, proxy.client("127.0.0.3") as other:
        wrong = {"Authorization": "Bearer expunge_wrong"}
        for number in range(130):  # what a client says of its address counts for nothing
            claimed = {"X-Forwarded-For": f"198.51.100.{number}", "Forwarded": f"for=198.51.100.{number}"}
            status = attacker.get("/v1/models", headers=wrong | claimed).status_code
        assert status == 429
        assert other.get("/v1/models", headers=wrong).status_code == 401
        assert (
            other.get("/v1/models", headers={"Authorization": f"Bearer {proxy.stack.account.api_key}"}).status_code
            == 200
        )


def test_an_api_that_is_away_is_an_answer_to_wait_upon_and_no_log_has_an_address_query(proxy: Proxy) -> None:
    assert proxy.call(f"/v1/models?subject_id={SECRET}").status_code < 500
    proxy.stack.stop("api")
    try:
        away = proxy.call(f"/v1/models?subject_id={SECRET}")
    finally:
        proxy.stack.start("api")
    assert (away.status_code, away.headers["retry-after"], away.json()["code"]) == (503, "2", "away")
    assert away.headers["content-type"] == "application/problem+json"
    assert "strict-transport-security" in away.headers
    proxy.stack.eventually(lambda: proxy.call("/v1/models").status_code, lambda status: status == 200)
    logs = proxy.logs()
    assert '"GET /v1/models" 503' in logs and SECRET not in logs
