"""Checkpoints, sealed states, vectors, keys and log entries with a bit flipped, cut or exchanged: is each one seen?

One corruption at a time is done to a whole world, looked for where the service itself would meet it, and mended.
"""

from __future__ import annotations

import random
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.audit import verification
from expunge_service.audit.signed_note import NotAuthentic, Signer
from expunge_service.infra.db import Database
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import StoredVector, Task, TreeHead
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.storage import private_state
from expunge_workers.storage.checkpoint_format import Malformed
from expunge_workers.storage.encryption import NONCE_BYTES
from expunge_workers.storage.key_store import SHARE_BYTES, HolderKey
from tests.faults.judge import exported
from tests.faults.result import Result
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.harness.files import path_in
from tests.workers.worlds import World, end_schedulers_lease, open_world, settings_of

CORRUPTIONS = 500
WHOLE_UPDATES = 20
"""one in so many damaged states and vectors is met by a whole update, which must end without a version"""
Seen = bool


@dataclass
class Scene:
    world: World
    api: TestClient
    model_id: str
    notes: list[str]
    """heads of the log that an auditor kept"""
    chance: random.Random

    @property
    def checkpoint(self) -> Path:
        return path_in(self.world.storage.store, self.world.head(self.model_id).checkpoint)

    @property
    def state(self) -> Path:
        return path_in(self.world.storage.private, self.world.head(self.model_id).state)


def run(seed: int, scale: float) -> Result:
    chance = random.Random(seed)
    kinds = (checkpoints, states, vectors, keys, log_entries, log_heads)
    count, missed, done = max(len(kinds), int(CORRUPTIONS * scale)), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="expunge-drill-") as folder, _scene(Path(folder), chance) as scene:
        for number in range(count):
            kind = kinds[number % len(kinds)]
            done[kind.__name__] += 1
            missed[kind.__name__] += not kind(scene)
        updates = 0
        for number in range(max(2, count // WHOLE_UPDATES)):
            missed["updates"] += not _no_release_stands_on(scene, states_damage if number % 2 else vectors_damage)
            updates += 1
    notes = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in done.items())
    told = [f"{number} damaged {name} were not seen" for name, number in missed.items() if number]
    return Result(
        "corruption",
        cases=count + updates,
        faults=count + updates,
        undetected_corruptions=missed.total(),
        notes=(f"{notes}, {updates} whole updates on damaged states and vectors", *told),
    )


@contextmanager
def _scene(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """Open a live model with two versions, an integrated log, and the API over it."""
    settings = settings_of(folder / "home", sqlite_databases(sqlite_template(folder))(folder / "home"))
    world = open_world(settings)
    model_id = world.live()
    notes = []
    for person in ("p1", "p2"):
        world.delete(person)
        world.work(model_id)
        open_scheduler(settings).tick()
        notes.append(_newest_note(world))
        end_schedulers_lease(world)
    with world.database.write() as session:
        key = create_key(session, world.storage.pepper, label="drill", scopes=list(Scope))
    with TestClient(create_app(settings), raise_server_exceptions=False) as api:
        api.headers["Authorization"] = f"Bearer {key.secret}"
        yield Scene(world, api, model_id, notes, chance)
    world.storage.close()


def checkpoints(scene: Scene) -> Seen:
    """Damage a published file and check that no part of it is served."""
    headers = scene.chance.choice(({}, {"Range": "bytes=0-15"}))
    with _spoiled_file(scene.checkpoint, scene.chance):
        answer = scene.api.get("/v1/models/m/versions/current/checkpoint", headers=headers)
    return (answer.status_code, answer.json().get("code")) == (500, "checkpoint_damaged")


def states(scene: Scene) -> Seen:
    with _spoiled_file(scene.state, scene.chance):
        return _raises(lambda: scene.world.state(scene.world.head(scene.model_id)), Damaged, Malformed)


def vectors(scene: Scene) -> Seen:
    with vectors_damage(scene):
        return _vectors_refused(scene)


def keys(scene: Scene) -> Seen:
    """Damage a key in either of its shares and check that it opens nothing."""
    row = scene.chance.choice(scene.world.rows_of(StoredVector))
    database = scene.world.storage.keys._database
    with database.read() as session:
        kept = session.get_one(HolderKey, row.key_id)
    if scene.chance.random() < 0.5:
        return _key_file_refused(scene, Path(scene.world.settings.key_folder) / kept.file, kept.slot * SHARE_BYTES)
    _set_share(database, row.key_id, spoiled(kept.share, scene.chance))
    seen = _vectors_refused(scene)
    _set_share(database, row.key_id, kept.share)
    return seen


def log_entries(scene: Scene) -> Seen:
    """Edit, remove, exchange or cut off entries and check that the export does not verify against the kept heads."""
    with scene.world.database.read() as session:
        lines = list(exported(session))
    damage = scene.chance.choice((_edited, _edited_with_its_hash, _removed, _exchanged, _cut))
    return _tampering_seen(scene, damage(lines, scene.chance), scene.notes)


def log_heads(scene: Scene) -> Seen:
    """Change a character of a signed head and check that it is not authentic."""
    with scene.world.database.read() as session:
        lines = list(exported(session))
    note, place = scene.notes[-1], scene.chance.randrange(len(scene.notes[-1]))
    other = chr((ord(note[place]) ^ (1 << scene.chance.randrange(5))) or 1)
    return _tampering_seen(scene, lines, [*scene.notes[:-1], note[:place] + other + note[place + 1 :]])


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one bit flipped, cut, lengthened, or partly zero; never the same bytes."""
    place = chance.randrange(len(data))
    flipped = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    zeros = data[:place] + bytes(min(16, len(data) - place)) + data[place + 16 :]
    made = chance.choice((flipped, flipped, data[:place], data + b"\0", zeros))
    return made if made != data else flipped


@contextmanager
def states_damage(scene: Scene) -> Iterator[None]:
    with _spoiled_file(scene.state, scene.chance):
        yield


@contextmanager
def vectors_damage(scene: Scene) -> Iterator[None]:
    """Change a row's vector or nonce, or replace the vector with somebody else's."""
    row, other = scene.chance.sample(scene.world.rows_of(StoredVector), 2)
    changes = (
        {"sealed": spoiled(row.sealed, scene.chance)},
        {"sealed": spoiled(row.sealed[:NONCE_BYTES], scene.chance) + row.sealed[NONCE_BYTES:]},
        {"sealed": other.sealed, "key_id": other.key_id},
    )
    place = (row.generation_id, row.holder)
    scene.world.change(StoredVector, place, **scene.chance.choice(changes))
    try:
        yield
    finally:
        scene.world.change(StoredVector, place, sealed=row.sealed, key_id=row.key_id)


def _no_release_stands_on(scene: Scene, damage: Callable[[Scene], Any]) -> Seen:
    """Delete everybody who is left, over the damage: no version is made, and every task stays open or is blocked."""
    before = scene.world.head(scene.model_id).number
    with scene.world.database.read() as session:
        holders = len(session.scalars(select(StoredVector.holder)).all())
    with damage(scene):
        for person in range(3, 3 + holders):
            scene.world.delete(f"p{person % 12}")
        scene.world.worker().work(scene.model_id)
    unmoved = scene.world.head(scene.model_id).number == before
    with scene.world.database.write() as session:
        told = set(session.scalars(select(Task.status).where(Task.completed_at.is_(None))))
        session.execute(update(Task).where(Task.completed_at.is_(None)).values(status="cancelled", completed_at=1))
    scene.world.expire_lease(scene.model_id)
    return unmoved and told <= {"queued", "blocked"} and bool(told)


def _vectors_refused(scene: Scene) -> Seen:
    world, generation = scene.world, scene.world.generation(scene.model_id).id
    with world.database.read() as session:
        holders = list(session.scalars(select(StoredVector.holder)))
        return _raises(
            lambda: private_state.read_vectors(session, world.storage.keys, generation, holders, torch.device("cpu")),
            Damaged,
        )


def _tampering_seen(scene: Scene, lines: list[dict[str, Any]], notes: list[str]) -> Seen:
    verifier = Signer.of(scene.world.settings).verifier
    return _raises(lambda: verification.verify(lines, notes[-1], verifier, notes[:-1]), NotAuthentic)


def _raises(act: Callable[[], object], *kinds: type[Exception]) -> bool:
    try:
        act()
    except kinds:
        return True
    return False


@contextmanager
def _spoiled_file(path: Path, chance: random.Random) -> Iterator[None]:
    right = path.read_bytes()
    path.write_bytes(spoiled(right, chance))
    try:
        yield
    finally:
        path.write_bytes(right)


def _edited(lines: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    line = chance.choice(lines)
    place = chance.randrange(len(line["body"]))
    line["body"] = line["body"][:place] + chr(ord(line["body"][place]) ^ 1) + line["body"][place + 1 :]
    return lines


def _edited_with_its_hash(lines: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    """Edit an entry and its leaf's hash, or the hash alone."""
    line = chance.choice(lines)
    line |= {"leaf_hash": secrets.token_hex(32), "body": None}
    return lines


def _removed(lines: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    """Remove an entry and number those behind it again."""
    del lines[chance.randrange(len(lines))]
    return [line | {"index": index} for index, line in enumerate(lines)]


def _exchanged(lines: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    place = chance.randrange(len(lines) - 1)
    lines[place], lines[place + 1] = lines[place + 1], lines[place]
    return [line | {"index": index} for index, line in enumerate(lines)]


def _cut(lines: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    return lines[: chance.randrange(len(lines))]


def _newest_note(world: World) -> str:
    with world.database.read() as session:
        return str(session.scalar(select(TreeHead.note).order_by(TreeHead.size.desc()).limit(1)))


def _key_file_refused(scene: Scene, path: Path, start: int) -> Seen:
    """Flip one bit of the share that begins there: the file holds those of others too."""
    right = path.read_bytes()
    wrong, place = bytearray(right), start + scene.chance.randrange(SHARE_BYTES)
    wrong[place] ^= 1 << scene.chance.randrange(8)
    path.write_bytes(wrong)
    try:
        return _vectors_refused(scene)
    finally:
        path.write_bytes(right)


def _set_share(database: Database, key_id: str, share: bytes) -> None:
    with database.write() as session:
        session.execute(update(HolderKey).where(HolderKey.id == key_id).values(share=share))
