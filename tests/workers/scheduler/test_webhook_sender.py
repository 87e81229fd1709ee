"""Deliveries of webhooks, to real servers on this machine; signatures verified from the specification alone."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from expunge_service.infra.db import Database, now
from expunge_service.infra.tables import WebhookDelivery, WebhookEndpoint
from expunge_service.requests.webhooks import (
    MAX_ATTEMPTS,
    WebhookEvent,
    add_endpoint,
    announce,
    replay_webhooks,
    webhook_key,
)
from expunge_workers.scheduler.ssrf_guard import Outbound, Resolver, public
from expunge_workers.scheduler.webhook_sender import ROUND_PER_ENDPOINT, WebhookSender, claim
from tests.harness.seams import DIE_AT, arm_from_environment
from tests.service.conftest import database

__all__ = ["database"]
SESSION_KEY = b"k" * 32
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass
class Receiver:
    """A server that answers the statuses in turn (the last one for ever) and keeps what it was sent."""

    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from serve(None)


def serve(tls: ssl.SSLContext | None) -> Iterator[Receiver]:
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            time.sleep(state.pause)
            self.send_response(state.statuses.pop(0) if len(state.statuses) > 1 else state.statuses[0])
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


def webhook_sender(database: Database, outbound: Outbound | None = None) -> WebhookSender:
    return WebhookSender(database, SESSION_KEY, outbound or Outbound(loopback=True), 0.05)


def subscribe(database: Database, url: str, news: int = 1) -> tuple[WebhookEndpoint, bytes]:
    """An endpoint with so much news for it, and its secret."""
    with database.write() as session:
        endpoint, secret = add_endpoint(session, SESSION_KEY, "default", url, list(WebhookEvent))
    for number in range(news):
        with database.write() as session:
            announce(session, "default", WebhookEvent.VERSION_PUBLISHED, {"model": "digits", "version": number})
    return endpoint, base64.b64decode(secret.removeprefix("whsec_"))


def deliveries(database: Database) -> list[WebhookDelivery]:
    with database.read() as session:
        return list(session.query(WebhookDelivery).order_by(WebhookDelivery.created_at))


def make_due(database: Database) -> None:
    with database.write() as session:
        session.query(WebhookDelivery).update({"next_at": 1})


def answers(*lists: list[str]) -> tuple[Resolver, list[str]]:
    """A resolver that gives each list once, in turn, and the names it was asked for."""
    asked: list[str] = []
    rest = list(lists)

    async def resolver(host: str, _: int) -> list[str]:
        asked.append(host)
        return rest.pop(0)

    return resolver, asked


def test_news_is_delivered_once_and_its_signatures_verify(database: Database, receiver: Receiver) -> None:
    endpoint, secret = subscribe(database, receiver.url)
    before = time.time()
    assert [webhook_sender(database).round() for _ in range(3)] == [1, 0, 0]
    ((path, headers, body),) = receiver.seen
    (delivery,) = deliveries(database)
    assert (path, body.decode(), headers["webhook-id"]) == ("/hook", delivery.payload, delivery.id)
    assert (delivery.attempts, delivery.last_status) == (1, 200) and delivery.delivered_at is not None
    assert headers["content-type"] == "application/json"
    assert abs(int(headers["webhook-timestamp"]) - before) < 5
    # Standard Webhooks 1.0, Signature scheme: "{id}.{timestamp}.{payload}", a list of signatures divided by spaces
    signed = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    found = dict(each.split(",", 1) for each in headers["webhook-signature"].split(" "))
    assert found["v1"] == base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    shown = base64.b64decode(webhook_key(SESSION_KEY, endpoint).removeprefix("whpk_"))
    Ed25519PublicKey.from_public_bytes(shown).verify(base64.b64decode(found["v1a"]), signed)


@ON_SQLITE
def test_the_official_client_verifies_what_is_delivered(database: Database, receiver: Receiver) -> None:
    """Standard Webhooks' own library, over the request as it came in. It knows v1; v1a is verified above."""
    _, secret = subscribe(database, receiver.url)
    webhook_sender(database).round()
    ((_, headers, body),) = receiver.seen
    client = Webhook("whsec_" + base64.b64encode(secret).decode())
    assert client.verify(body, headers)["data"] == {"model": "digits", "version": 0}
    for false in (
        (body.replace(b"digits", b"others"), headers),
        (body, headers | {"webhook-id": "msg_other"}),
        (body, headers | {"webhook-timestamp": "1"}),
    ):
        with pytest.raises(WebhookVerificationError):
            client.verify(*false)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + base64.b64encode(b"x" * 32).decode()).verify(body, headers)


def test_a_failed_delivery_is_sent_again_later_under_the_same_id(database: Database, receiver: Receiver) -> None:
    receiver.statuses = [500, 204]
    subscribe(database, receiver.url)
    assert webhook_sender(database).round() == 1
    (failed,) = deliveries(database)
    with database.read() as session:
        assert 10e6 < failed.next_at - now(session) <= 15e6
    assert (failed.attempts, failed.last_status, failed.delivered_at) == (1, 500, None)
    assert webhook_sender(database).round() == 0, "not before its time"
    make_due(database)
    assert webhook_sender(database).round() == 1
    first, second = receiver.seen
    assert (first[1]["webhook-id"], first[2]) == (second[1]["webhook-id"], second[2])
    (delivered,) = deliveries(database)
    assert (delivered.attempts, delivered.last_status) == (2, 204) and delivered.delivered_at is not None
    assert (failed.last_outcome, delivered.last_outcome) == ("rejected", "delivered")


@ON_SQLITE
def test_attempts_end_after_days_and_a_replay_begins_them_anew(database: Database, receiver: Receiver) -> None:
    receiver.statuses = [503]
    endpoint, _ = subscribe(database, receiver.url)
    for _ in range(MAX_ATTEMPTS):
        make_due(database)
        assert webhook_sender(database).round() == 1
    (last,) = deliveries(database)
    with database.read() as session:
        assert last.next_at - now(session) > 23 * 3600 * 1e6
    make_due(database)
    assert webhook_sender(database).round() == 0, "given up"
    receiver.statuses = [200]
    with database.write() as session:
        replay_webhooks(session, endpoint, session.get_one(WebhookDelivery, last.id))
    assert webhook_sender(database).round() == 1
    assert len({headers["webhook-id"] for _, headers, _ in receiver.seen}) == 1
    (again,) = deliveries(database)
    assert again.delivered_at is not None and again.attempts == MAX_ATTEMPTS + 1, "the history goes on"


@ON_SQLITE
def test_a_redirect_is_not_followed(database: Database, receiver: Receiver) -> None:
    receiver.statuses, receiver.headers = [302, 200], {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    subscribe(database, receiver.url)
    webhook_sender(database).round()
    assert [path for path, _, _ in receiver.seen] == ["/hook"]
    (sent,) = deliveries(database)
    assert (sent.last_status, sent.last_outcome, sent.delivered_at) == (302, "rejected", None)


@ON_SQLITE
def test_410_disables_the_endpoint(database: Database, receiver: Receiver) -> None:
    receiver.statuses = [410]
    endpoint, _ = subscribe(database, receiver.url)
    webhook_sender(database).round()
    make_due(database)
    assert webhook_sender(database).round() == 0
    with database.read() as session:
        assert session.get_one(WebhookEndpoint, endpoint.id).disabled_at is not None


@ON_SQLITE
def test_this_machine_is_refused_unless_the_setting_admits_it(database: Database, receiver: Receiver) -> None:
    subscribe(database, receiver.url)
    webhook_sender(database, Outbound()).round()
    assert receiver.seen == []
    (unsent,) = deliveries(database)
    assert (unsent.attempts, unsent.last_status, unsent.last_outcome) == (1, None, "refused")


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "169.254.169.254", "fd00::1"])
@pytest.mark.parametrize("beside", [[], ["93.184.215.14"]])
@ON_SQLITE
def test_a_name_with_any_private_address_is_refused_even_with_loopback(
    database: Database, monkeypatch: pytest.MonkeyPatch, address: str, beside: list[str]
) -> None:
    connected: list[str] = []
    monkeypatch.setattr("socket.socket.connect", lambda *_: connected.append("sync"))
    resolver, asked = answers([*beside, address])
    subscribe(database, "https://hooks.example.com/x")
    webhook_sender(database, Outbound(loopback=True, resolver=resolver)).round()
    assert (asked, connected) == (["hooks.example.com"], [])
    assert deliveries(database)[0].last_status is None


@ON_SQLITE
def test_a_name_is_resolved_once_and_the_connection_goes_there(database: Database, receiver: Receiver) -> None:
    """Rebinding: what the name means a moment later is never asked."""
    resolver, asked = answers(["127.0.0.1"], ["10.0.0.1"])
    subscribe(database, f"http://hooks.invalid:{receiver.port}/hook")
    outbound = Outbound(loopback=True, resolver=resolver)
    webhook_sender(database, outbound).round()
    assert asked == ["hooks.invalid"]
    assert receiver.seen[0][1]["host"] == f"hooks.invalid:{receiver.port}"
    with database.write() as session:
        session.query(WebhookDelivery).update({"next_at": 1, "delivered_at": None})
    webhook_sender(database, outbound).round()
    assert (len(asked), len(receiver.seen)) == (2, 1), "rebound to a private address: refused"


@ON_SQLITE
def test_a_proxy_of_the_environment_is_not_used(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    subscribe(database, receiver.url)
    webhook_sender(database).round()
    assert len(receiver.seen) == 1


@ON_SQLITE
def test_the_certificate_must_be_the_names_though_the_connection_is_to_an_address(
    database: Database, tmp_path: Path
) -> None:
    server, trust = tls_pair(tmp_path, "hooks.test")
    serving = serve(server)
    receiver = next(serving)
    resolver, _ = answers(["127.0.0.1"], ["127.0.0.1"])
    outbound = Outbound(loopback=True, resolver=resolver, trust=trust)
    subscribe(database, f"https://hooks.test:{receiver.port}/hook")
    webhook_sender(database, outbound).round()
    assert len(receiver.seen) == 1
    subscribe(database, f"https://other.test:{receiver.port}/hook", news=0)
    with database.write() as session:
        session.query(WebhookEndpoint).filter(WebhookEndpoint.url.like("%hooks.test%")).update({"disabled_at": 1})
    with database.write() as session:
        announce(session, "default", WebhookEvent.VERSION_PUBLISHED, {})
    assert webhook_sender(database, outbound).round() == 1
    assert len(receiver.seen) == 1
    serving.close()


def tls_pair(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "pair.pem").write_bytes(made.public_bytes(pem) + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "pair.pem")
    return server, ssl.create_default_context(cadata=made.public_bytes(pem).decode())


@ON_SQLITE
def test_a_slow_receiver_ends_at_the_deadline_and_leaves_room_for_others(
    database: Database, receiver: Receiver
) -> None:
    """Five answers that do not come: one after the other they would take five deadlines."""
    receiver.pause, deadline = 60, 2.0
    subscribe(database, receiver.url, news=ROUND_PER_ENDPOINT + 3)
    began = time.monotonic()
    assert webhook_sender(database, Outbound(loopback=True, deadline_seconds=deadline)).round() == ROUND_PER_ENDPOINT
    assert time.monotonic() - began < ROUND_PER_ENDPOINT * deadline
    assert sum(delivery.attempts for delivery in deliveries(database)) == ROUND_PER_ENDPOINT


@pytest.mark.both_engines
def test_two_webhook_senders_never_take_up_the_same_attempt(database: Database, receiver: Receiver) -> None:
    subscribe(database, receiver.url, news=4)
    assert (len(claim(database, SESSION_KEY)), claim(database, SESSION_KEY)) == (4, [])


@ON_SQLITE
def test_the_thread_delivers_and_stops(database: Database, receiver: Receiver) -> None:
    subscribe(database, receiver.url)
    running = webhook_sender(database)
    running.start()
    limit = time.monotonic() + 60
    while deliveries(database)[0].delivered_at is None and time.monotonic() < limit:
        time.sleep(0.05)
    running.stop()
    assert len(receiver.seen) == 1


@pytest.mark.both_engines
@pytest.mark.parametrize(("point", "sent"), [("webhook-before-send", 0), ("webhook-after-send", 1)])
def test_a_delivery_survives_the_death_of_its_webhook_sender(
    database: Database, database_url: str, receiver: Receiver, point: str, sent: int
) -> None:
    subscribe(database, receiver.url)
    database.close()
    die_at(point, lambda: webhook_sender(Database(database_url)).round())
    assert len(receiver.seen) == sent
    make_due(database)
    assert webhook_sender(database).round() == 1
    assert len(receiver.seen) == sent + 1
    assert {headers["webhook-id"] for _, headers, _ in receiver.seen} == {deliveries(database)[0].id}
    assert deliveries(database)[0].delivered_at is not None


def die_at(point: str, act: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        os.environ |= {DIE_AT: point}
        try:
            arm_from_environment()
            act()
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{point} was never reached"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("::ffff:93.184.215.14", True),
        *((each, False) for each in ("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1")),
        *((each, False) for each in ("169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1")),
        *((each, False) for each in ("::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1")),
        *((each, False) for each in ("192.0.0.8", "192.0.0.9", "192.0.0.100", "192.0.0.171", "::ffff:192.0.0.192")),
        *((each, False) for each in ("192.31.196.1", "192.52.193.1", "192.175.48.1", "2620:4f:8000::1")),
        *((each, False) for each in ("2001:1::1", "2001:3::1", "2001:4:112::1", "2001:20::1", "100:0:0:1::1")),
        *((each, False) for each in ("198.18.0.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "::8.8.8.8")),
        *((each, False) for each in ("192.88.99.1", "fec0::1", "3fff::1", "5f00::1", "::ffff:192.88.99.1")),
        *((each, False) for each in ("2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:8.8.8.8")),
        *((each, False) for each in ("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "64:ff9b:1::a00:1")),
    ],
)
def test_only_addresses_of_the_open_internet_are_public(address: str, expected: bool) -> None:
    assert public(ip_address(address)) is expected
