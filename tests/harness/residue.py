"""Every byte that an installation and its servers wrote or hold, searched for a person."""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import redis
import torch
from sqlalchemy import select

from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Model, StoredVector, Version
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.storage.encryption import Sealer
from expunge_workers.storage.key_store import HolderKey, KeyStore
from tests.harness.stack import Stack

TABLE = Path(__file__).parents[1] / "stories" / "recipes" / "canary.csv"
CANARY = "canary-1f7c0e5b9a"
"""the person of that table whose id, sample ids and numbers occur nowhere else in the world"""


@dataclass
class Ear:
    """Receives webhooks and keeps every byte of them."""

    url: str = ""
    heard: list[bytes] = field(default_factory=list)


@contextmanager
def ear() -> Iterator[Ear]:
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(str(self.headers).encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Ear(f"http://127.0.0.1:{server.server_port}/hook", heard)
    server.shutdown()
    server.server_close()


def listen(stack: Stack, url: str) -> None:
    """Send every kind of webhook to ``url``."""
    kinds = ["deletion_request.completed", "deletion_request.blocked", "model_version.published", "budget.exhausted"]
    stack.client.post("/v1/webhooks", {"url": url, "kinds": kinds})


def complain(stack: Stack, person: str) -> None:
    """Make calls that fail with the person's id in them: errors and logs are bytes too."""
    headers = {"Authorization": f"Bearer {stack.account.api_key}", "Idempotency-Key": secrets.token_hex(8)}
    json = headers | {"Content-Type": "application/json"}
    assert stack.http.post("/v1/deletion-requests", headers=headers, json={"subject": person}).is_client_error
    assert stack.http.post("/v1/deletion-requests", headers=json, content=f'{{"subject_id": "{person}').is_client_error
    assert stack.http.get(f"/v1/models/{person}", headers=headers).is_client_error
    assert stack.http.get("/v1/deletion-requests", headers=headers, params={"cursor": person}).is_client_error


def seek(stack: Stack, person: str) -> list[str]:
    """Search for the person over HTTP, as a privacy officer does; return the states in which models know them."""
    found = stack.client.post("/v1/deletion-requests/search", {"subject_id": person})
    return [model["state"] for model in found["models"]]


@dataclass(frozen=True)
class Secret:
    """What the workers hold of a person. ``share`` is the half of the key that lies in a key file."""

    key: bytes
    share: bytes
    vector: bytes


def secret_of(stack: Stack, name: str, person: str) -> Secret | None:
    """Return what opens the person's vector, and the vector; None where there is none any more."""
    holder = subject_digest(Pepper.load(stack.settings.pepper_file), DEFAULT_TENANT, person)
    database, keys = stack.database(), KeyStore.of(stack.settings)
    try:
        with database.read() as session:
            generation = session.scalars(select(Model.generation_id).where(Model.name == name)).one()
            row = session.get(StoredVector, (generation, holder))
        if row is None:
            return None
        key = keys.fetch([row.key_id])[row.key_id]
        vector = Sealer(key).open(f"{row.generation_id}/{row.holder}", row.sealed)
        return Secret(key, share_in_file(keys, row.key_id), vector)
    finally:
        database.close()
        keys.close()


def share_in_file(keys: KeyStore, key_id: str) -> bytes:
    """Return the share that the key file holds; without it the other one, a row of the database, is worthless."""
    with keys._database.read() as session:
        row = session.get_one(HolderKey, key_id)
    return keys._files.read(row.file, [row.slot])[row.slot]


def head_weights(stack: Stack, name: str) -> bytes:
    """Return the bytes of the current version's tensors: a model trained on the person is a trace of them."""
    database = stack.database()
    with database.read() as session:
        head = select(Version.checkpoint).join(Model, Model.current_id == Version.id).where(Model.name == name)
        digest = session.scalars(head).one()
    database.close()
    data = Store.at(stack.settings.store).read(digest)
    return data[8 + int.from_bytes(data[:8], "little") :]


def personal(vector: bytes) -> list[bytes]:
    """Return everything by which the canary could be recognised."""
    rows = [row.split(",") for row in TABLE.read_text().splitlines() if CANARY in row]
    words = [needle for word in (CANARY, *(sample for sample, *_ in rows)) for needle in disguises(word)]
    texts = [",".join(inputs).encode() for _, _, *inputs, _ in rows]
    tensors = [torch.tensor([float(number) for number in inputs]) for _, _, *inputs, _ in rows]
    return words + texts + [needle for row in tensors for needle in numbers(row)] + windows(vector)


def found(stack: Stack, needles: Iterable[bytes], heard: Iterable[bytes] = ()) -> list[str]:
    """Find the needles in files, the servers' memory, processes, metrics and webhooks; return each place and needle."""
    wanted = list(needles)
    return [
        f"{where}: {needle[:24]!r}"
        for where, content in everything(stack, heard)
        for needle in wanted
        if needle in content
    ]


def everything(stack: Stack, heard: Iterable[bytes] = ()) -> Iterator[tuple[str, bytes]]:
    for path in stack.files():
        try:
            yield str(path), path.read_bytes()
        except FileNotFoundError:  # a message of the broker, or a purged file: gone between listing and reading
            continue
    yield from _processes(stack)
    yield from _broker(stack)
    yield "/metrics", stack.http.get("/metrics").content
    for place, body in enumerate(heard):
        yield f"webhook {place}", body


def _processes(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Return what anybody on the machine may read of a process: its command line and its environment."""
    for name, child in stack.processes.items():
        for what in ("cmdline", "environ"):
            if child.alive and child.process is not None:
                yield f"{what} of {name}", Path(f"/proc/{child.process.pid}/{what}").read_bytes()


def _broker(stack: Stack) -> Iterator[tuple[str, bytes]]:
    if not stack.settings.broker_url.startswith("redis://"):
        return  # its messages are files
    with redis.Redis.from_url(stack.settings.broker_url) as client:
        for key in client.scan_iter():
            yield f"redis key {key!r}", key + (client.dump(key) or b"")


def disguises(word: str) -> list[bytes]:
    """Return the word in clear, in other encodings, and under a digest that anyone could compute."""
    raw = word.encode()
    inner = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    digest = hashlib.sha256(raw)
    return [raw, word.encode("utf-16-le"), raw.hex().encode(), digest.digest(), digest.hexdigest().encode(), *inner]


def numbers(row: torch.Tensor) -> list[bytes]:
    """Return a row of data as float32 and float64 bytes."""
    return [row.numpy().tobytes(), row.numpy().astype(np.float64).tobytes()]


def windows(vector: bytes, size: int = 16) -> list[bytes]:
    """Return every part of a vector, so that a copy is found even if it is cut."""
    return [vector[start : start + size] for start in range(0, len(vector) - size + 1, 8)]
