"""After a deletion every byte that the service and its servers wrote is searched for the person."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from sqlalchemy import select

from service.identity import Pepper, subject_digest
from service.records import Model, Recollection
from tests.stack import Stack
from workers.keystore import KeyStore
from workers.sealing import SealedRow, open_row

RECIPES = Path(__file__).parent / "recipes"


def test_nothing_of_a_forgotten_person_is_left_in_any_byte(stack: Stack) -> None:
    canary = load_recipe("canary")
    name = stack.live("canary", require="proved")
    complain(stack, canary.PERSON)
    key, vector = secret_of(stack, name, canary.PERSON)
    assert found(stack, [key]), "the search does not even find a key that exists"
    assert found(stack, [name.encode()]), "the search does not even find the model's name"
    personal = [needle for word in (canary.PERSON, *canary.SAMPLES) for needle in disguises(word)]
    personal += [needle for row in canary.INPUTS for needle in numbers(row)] + windows(vector)
    assert found(stack, personal) == []

    stack.forgotten(name, subject_id=canary.PERSON)
    stack.eventually(lambda: found(stack, [key]), lambda files: not files)
    assert found(stack, personal) == []
    assert secret_of(stack, name, canary.PERSON) == (b"", b"")


def load_recipe(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(RECIPES))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(RECIPES))
    return module


def complain(stack: Stack, person: str) -> None:
    """Calls that fail with the person's id in them: errors and logs are bytes too."""
    headers = {"Authorization": f"Bearer {stack.account.api_key}", "Idempotency-Key": secrets.token_hex(8)}
    json = headers | {"Content-Type": "application/json"}
    assert stack.http.post("/v1/deletion-requests", headers=headers, json={"subject": person}).is_client_error
    assert stack.http.post("/v1/deletion-requests", headers=json, content=f'{{"subject_id": "{person}').is_client_error
    assert stack.http.get(f"/v1/models/{person}", headers=headers).is_client_error
    assert stack.http.get("/v1/deletion-requests", headers=headers, params={"cursor": person}).is_client_error


def secret_of(stack: Stack, name: str, person: str) -> tuple[bytes, bytes]:
    """The person's key and vector as the workers hold them; empty where there is none any more."""
    holder = subject_digest(Pepper.load(stack.settings.pepper_file), person)
    database, keys = stack.database(), KeyStore(stack.settings.key_store_url)
    try:
        with database.read() as session:
            lineage = session.scalars(select(Model.lineage_id).where(Model.name == name)).one()
            row = session.get(Recollection, (lineage, holder))
        if row is None:
            return b"", b""
        key = keys.fetch([row.key_id])[row.key_id]
        return key, open_row(key, f"{row.lineage_id}/{row.holder}", SealedRow(row.nonce, row.sealed))
    finally:
        database.close()
        keys.close()


def found(stack: Stack, needles: Iterable[bytes]) -> list[str]:
    """The files that hold any of the needles, with which."""
    wanted = list(needles)
    hits = []
    for path in stack.files():
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # a message of the broker, or a purged file: gone between listing and reading
            continue
        hits += [f"{path}: {needle[:24]!r}" for needle in wanted if needle in content]
    return hits


def disguises(word: str) -> list[bytes]:
    """The word in clear, in other encodings, and under a digest that anyone could compute."""
    raw = word.encode()
    inner = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    digest = hashlib.sha256(raw)
    return [raw, word.encode("utf-16-le"), raw.hex().encode(), digest.digest(), digest.hexdigest().encode(), *inner]


def numbers(row: torch.Tensor) -> list[bytes]:
    """A row of data as float32 and float64 bytes."""
    return [row.numpy().tobytes(), row.numpy().astype(np.float64).tobytes()]


def windows(vector: bytes, size: int = 16) -> list[bytes]:
    """Every part of a vector, so that a copy is found wherever it is cut."""
    return [vector[start : start + size] for start in range(0, len(vector) - size + 1, 8)]
