"""Rows that tests of the service stand on: what a worker would have written."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy.orm import Session

from expunge_client.spelling import looks
from expunge_service.api.dependencies import Service
from expunge_service.audit.witness import DRAFT, Witness, version_file
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import look_number, new_id, person_number, sample_digest, subject_digest
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Generation, Membership, Model, Spelling, Version
from expunge_service.models.generations import open_generation
from expunge_service.requests.near_misses import SPELLINGS, Written

PEOPLE = {"ada": ["ada-1", "ada-2"], "bob": ["bob-1"]}


def live_model(
    service: Service,
    name: str = "digits",
    people: dict[str, list[str]] | None = None,
    tenant_id: str = "default",
    *,
    spellings: bool = True,
) -> Model:
    """A live model with version 1, trained on ``people`` (subject -> sample ids).

    ``spellings``: it knows how they are written; False: a generation of release 0.2.
    """
    with service.database.write() as session:
        model = Model(
            id=new_id(),
            tenant_id=tenant_id,
            name=name,
            status="live",
            recipe="digits",
            policy={"method": "recollection"},
            created_at=now(session),
        )
        session.add(model)
        session.flush()
        generation = Generation(
            tenant_id=tenant_id,
            model_id=model.id,
            status="live",
            method="recollection",
            guarantee="proved",
            noise_std=0.01,
            max_distance=1e-5,
            budget_cost=1_000_000,
            budget=10_500_000,
            epsilon=1.0,
            delta=1e-5,
            created_at=now(session),
        )
        model.generation_id = open_generation(session, generation).id
        session.add_all(memberships(service, generation.id, people or PEOPLE, tenant_id))
        if spellings:
            write_spellings(session, service, generation, list(people or PEOPLE), tenant_id)
    publish(service, model, b"version one")
    return model


def memberships(
    service: Service, generation_id: int, people: dict[str, list[str]], tenant_id: str = "default"
) -> list[Membership]:
    pairs = [(subject, sample) for subject, samples in people.items() for sample in samples]
    return [
        Membership(
            generation_id=generation_id,
            position=position,
            subject_digest=subject_digest(service.pepper, tenant_id, subject),
            sample_digest=sample_digest(service.pepper, tenant_id, sample),
            content_digest="0" * 64,
            holder=subject_digest(service.pepper, tenant_id, subject),
        )
        for position, (subject, sample) in enumerate(pairs)
    ]


def write_spellings(
    session: Session, service: Service, generation: Generation, people: list[str], tenant_id: str = "default"
) -> None:
    """What ``workers.storage.spellings`` writes of these people, one after the other, and every kind of form."""
    for subject in people:
        person = person_number(subject_digest(service.pepper, tenant_id, subject))
        for form in Written.of(service.pepper, tenant_id, subject).forms.values():
            session.add(Spelling(form=form, generation_id=generation.id, person=person))
    common = looks(people)
    numbers = None if common is None else [look_number(service.pepper, tenant_id, shape) for shape in common]
    generation.manifest = (generation.manifest or {}) | {SPELLINGS: {"looks": numbers}}


def publish(service: Service, model: Model, content: bytes, **facts: Any) -> Version:
    """The next version of ``model``, its file in the store; the one before is retired."""
    stored = Store.at(service.settings.store).put([content])
    with service.database.write() as session:
        model = session.get_one(Model, model.id)
        parent = session.get(Version, model.current_id) if model.current_id else None
        if parent:
            parent.status, parent.retired_at, parent.state_deleted_at = "retired", *[now(session)] * 2
        row = {
            "number": parent.number + 1 if parent else 1,
            "parent_id": parent.id if parent else None,
            "state": hashlib.sha256(content).hexdigest(),
            "method": "recollection",
            "claim": {"guarantee": "proved"},
            "samples": 0,
            "people": 0,
        }
        version = Version(
            id=new_id(),
            tenant_id=model.tenant_id,
            model_id=model.id,
            generation_id=model.generation_id,
            status="current",
            checkpoint=stored.digest,
            size=stored.size,
            published_at=now(session),
            **(row | facts),
        )
        session.add(version)
        model.current_id = version.id
        witness = Witness(Store.at(service.settings.store).folder)
        witness.updates.add(version_file(model.id, version.number) + DRAFT, [f"{version.id}\n".encode()])
    witness.release(model.id, version.number, version.id)
    return version
