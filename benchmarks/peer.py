"""What a good team would write for one model: the other side of ``beside_peer``.

A caller posts a person and gets 202 once request and audit row are committed. The table of requests is the queue: a
message of Celery only says "look", and a sweep looks besides, so that a lost message delays a request and loses none.
A worker claims all that waits, trains on the rows that are left, and commits model, requests and audit rows together.
Where it dies before that, the database takes the claim back, and the next look finds the same requests.

``python -m benchmarks.peer`` makes the tables and version 1. Then run ``uvicorn benchmarks.peer:api``, and
``celery --app benchmarks.peer worker --beat --concurrency 1``.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any
from uuid import uuid4

from celery import Celery
from fastapi import Depends, FastAPI, Header, HTTPException
from kombu.exceptions import OperationalError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import DateTime, ForeignKey, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

FOLDER = Path(os.environ["PEER_FOLDER"])
"""holds people.parquet, and the checkpoints"""
CHECKPOINTS = FOLDER / "checkpoints"
AUTHORIZATION = f"Bearer {os.environ['PEER_KEY']}".encode()
FEATURES = [f"x{number}" for number in range(20)]
MODEL = "logistic"
SWEEP_SECONDS = 5.0
LONGEST_ID = 255

database = create_engine(os.environ["PEER_DATABASE_URL"], pool_size=20, max_overflow=0)
if database.dialect.name == "sqlite":

    @event.listens_for(database, "connect")
    def make_durable(connection: Any, _record: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}")


queue = Celery("peer", broker=os.environ["PEER_BROKER_URL"])
queue.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"max_retries": 0},  # a caller waits for the API, and the sweep repairs it
    beat_schedule={"sweep": {"task": "forget", "schedule": SWEEP_SECONDS}},
)
api = FastAPI()


def now() -> datetime:
    return datetime.now(UTC)


class Table(DeclarativeBase):
    type_annotation_map = {datetime: DateTime(timezone=True)}  # noqa: RUF012 (SQLAlchemy's own form)


class Request(Table):
    __tablename__ = "requests"
    id: Mapped[str] = mapped_column(primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(unique=True)
    person: Mapped[str]
    status: Mapped[str] = mapped_column(default="queued", index=True)
    received_at: Mapped[datetime] = mapped_column(default=now)
    completed_at: Mapped[datetime | None] = mapped_column(default=None)
    version: Mapped[int | None] = mapped_column(default=None)


class Model(Table):
    __tablename__ = "models"
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    sha256: Mapped[str]


class AuditRow(Table):
    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(default=now)
    event: Mapped[str]
    request_id: Mapped[str | None] = mapped_column(ForeignKey("requests.id"))
    version: Mapped[int | None]
    sha256: Mapped[str | None]


class Order(BaseModel):
    subject_id: str = Field(min_length=1, max_length=LONGEST_ID)


class Receipt(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    id: str
    status: str
    received_at: datetime
    completed_at: datetime | None
    version: int | None


async def authorise(authorization: Annotated[str, Header()] = "") -> None:
    if not hmac.compare_digest(authorization.encode(), AUTHORIZATION):
        raise HTTPException(401, "The key is missing or wrong.")


@api.post("/deletions", status_code=202, dependencies=[Depends(authorise)])
def accept(order: Order, idempotency_key: Annotated[str, Header(min_length=1, max_length=LONGEST_ID)]) -> Receipt:
    request = Request(id=str(uuid4()), idempotency_key=idempotency_key, person=order.subject_id)
    try:
        with Session(database, expire_on_commit=False) as session, session.begin():
            session.add(request)
            session.flush()  # the audit row refers to it
            session.add(AuditRow(event="received", request_id=request.id))
    except IntegrityError:
        return receipt_of_repeated(order, idempotency_key)
    with suppress(OperationalError):  # the sweep finds it
        forget.apply_async(retry=False)
    return Receipt.model_validate(request)


def receipt_of_repeated(order: Order, idempotency_key: str) -> Receipt:
    with Session(database) as session:
        first = session.scalars(select(Request).where(Request.idempotency_key == idempotency_key)).one()
        if first.person != order.subject_id:
            raise HTTPException(422, "This idempotency key belongs to another order.")
        return Receipt.model_validate(first)


@api.get("/deletions/{request_id}", dependencies=[Depends(authorise)])
def look_up(request_id: str) -> Receipt:
    with Session(database) as session:
        request = session.get(Request, request_id)
        if request is None:
            raise HTTPException(404, "There is no such request.")
        return Receipt.model_validate(request)


@queue.task(name="forget")  # type: ignore[untyped-decorator]
def forget() -> None:
    """Take everybody who waits out of the model: all of it in one transaction, or nothing."""
    with Session(database, expire_on_commit=False) as session, session.begin():
        claim = select(Request).where(Request.status == "queued").with_for_update(skip_locked=True)
        waiting = session.scalars(claim).all()
        if not waiting:
            return
        model = session.get_one(Model, MODEL, with_for_update=True)  # workers publish one after the other
        superseded = model.sha256
        model.version, model.sha256 = model.version + 1, keep(train(session.scalars(select(Request.person)).all()))
        session.add(AuditRow(event="published", version=model.version, sha256=model.sha256))
        for request in waiting:
            request.status, request.completed_at, request.version = "completed", now(), model.version
            session.add(AuditRow(event="completed", request_id=request.id, version=model.version))
    if superseded != model.sha256:
        (CHECKPOINTS / superseded).unlink(missing_ok=True)  # it was fitted to those who are gone now


def train(gone: Collection[str]) -> bytes:
    """Return the weights of a fit without these people, as safetensors."""
    import pandas  # type: ignore[import-untyped]  # noqa: PLC0415 (the API never trains)
    from safetensors.numpy import save  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    table = pandas.read_parquet(FOLDER / "people.parquet")
    left = table[~table.person.isin(gone)]
    fitted = LogisticRegression(max_iter=1000).fit(left[FEATURES].to_numpy(), left.y.to_numpy())
    return save({"coef": fitted.coef_, "intercept": fitted.intercept_})


def keep(weights: bytes) -> str:
    """Write a checkpoint under its SHA-256; it is on the disk before a row names it."""
    digest = sha256(weights).hexdigest()
    with NamedTemporaryFile(dir=CHECKPOINTS, delete=False) as file:
        file.write(weights)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(CHECKPOINTS / digest)
    folder = os.open(CHECKPOINTS, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return digest


def set_up() -> None:
    CHECKPOINTS.mkdir()
    Table.metadata.create_all(database)
    with Session(database) as session, session.begin():
        session.add(Model(name=MODEL, version=1, sha256=keep(train([]))))


if __name__ == "__main__":
    set_up()
