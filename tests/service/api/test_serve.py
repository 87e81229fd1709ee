"""The wire: half-sent and slow calls, two lengths, a name given twice. Spoken by a raw socket to a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from fastapi.testclient import TestClient

from expunge_service import serve
from expunge_service.api.http import bodies

Speak = Callable[..., bytes]
POST = b"POST /v1/keys HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
ORDER = {"subject_id": "a"}
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def speak(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Speak]:
    """Sends these bytes, one piece every 0.1 s, and returns what came back until the server closed."""
    monkeypatch.setattr(serve, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 1.0)
    config = uvicorn.Config(api.app, port=0, log_level="error", lifespan="off", http=serve.Patient)
    assert serve.config("127.0.0.1", 0).http is serve.Patient
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]

    def say(*pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            heard = b""
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.1)
                while chunk := connection.recv(4096):
                    heard += chunk
            except (ConnectionResetError, BrokenPipeError):
                pass
            return heard

    yield say
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"GET /healthz HTT"],
        [b"GET /healthz HTTP/1.1\r\nHost: here\r\n", *[b"X: y\r\n"] * 20],
        [b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n", b"GET /heal"],
    ],
    ids=["silent", "half a line", "trickling", "half a second request"],
)
def test_a_head_that_does_not_come_ends_the_connection(speak: Speak, pieces: list[bytes]) -> None:
    began = time.monotonic()
    heard = speak(*pieces)
    assert time.monotonic() - began < 15
    if len(pieces) == 1:
        assert heard.startswith(b"HTTP/1.1 408")


def test_a_body_that_does_not_come_is_refused(speak: Speak) -> None:
    heard = speak(POST + b"Content-Length: 20\r\n\r\n{")
    assert heard.startswith(b"HTTP/1.1 408") and b"body_too_slow" in heard


def test_two_lengths_are_refused_with_and_without_a_body(speak: Speak) -> None:
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    for head in (POST, b"GET /healthz HTTP/1.1\r\nHost: here\r\n"):
        heard = speak(head + both)
        assert heard.startswith(b"HTTP/1.1 400") and b"two_lengths" in heard, heard


def test_an_ordinary_call_is_answered_and_the_connection_goes_on(speak: Speak) -> None:
    call = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    last = b"HEAD /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    heard = speak(call, call, call, call, call, last)
    assert heard.count(b"HTTP/1.1 200") == 6
    assert heard.endswith(b"\r\n\r\n"), "HEAD has no body"


@pytest.mark.parametrize(
    "body",
    [
        '{"subject_id": "a", "subject_id": "b"}',
        '{"requests": [{"subject_id": "a"}, {"models": ["m"], "models": null}]}',
        '{"subject_id": "a", "subject\\u005fid": "b"}',
    ],
)
def test_a_name_given_twice_is_refused(client: TestClient, body: str) -> None:
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    answer = client.post("/v1/deletion-requests", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "name_given_twice")


@pytest.mark.parametrize(
    ("path", "body", "pointer", "known"),
    [
        ("/v1/keys", {"scopes": ["models:read"], "lable": "x"}, "", "label, scopes, role, expires_at"),
        (
            "/v1/deletion-requests/batch",
            {"requests": [{"subject_id": "a"}, {"person": 1}]},
            "/requests/1",
            "subject_id",
        ),
    ],
)
def test_the_refusal_of_an_unknown_field_names_the_known_ones(
    client: TestClient, path: str, body: dict[str, object], pointer: str, known: str
) -> None:
    answer = client.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422
    (fault,) = (each for each in answer.json()["errors"] if "allowed here" in each["detail"])
    assert fault["pointer"] == pointer and known in fault["detail"]
    assert "lable" not in answer.text and "person" not in answer.text


def test_head_of_healthz_is_answered(api: TestClient) -> None:
    answer = api.head("/healthz")
    assert (answer.status_code, answer.content) == (200, b"")
