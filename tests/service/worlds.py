"""Rows that tests of the service stand on: what a worker would have written."""

from __future__ import annotations

import hashlib
from typing import Any

from service.api.dependencies import Service
from service.infra.db import now
from service.infra.files import Store
from service.infra.pseudonyms import new_id, sample_digest, subject_digest
from service.infra.tables import Lineage, Membership, Model, Version
from service.models.generations import open_lineage

PEOPLE = {"ada": ["ada-1", "ada-2"], "bob": ["bob-1"]}


def live_model(
    service: Service, name: str = "digits", people: dict[str, list[str]] | None = None, tenant_id: str = "default"
) -> Model:
    """A live model with version 1, trained on ``people`` (subject -> sample ids)."""
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
        lineage = Lineage(
            tenant_id=tenant_id,
            model_id=model.id,
            status="live",
            method="recollection",
            basis="proved",
            sigma=0.01,
            delta_cap=1e-5,
            charge=1_000_000,
            budget=10_500_000,
            epsilon=1.0,
            delta=1e-5,
            created_at=now(session),
        )
        model.lineage_id = open_lineage(session, lineage).id
        session.add_all(memberships(service, lineage.id, people or PEOPLE, tenant_id))
    publish(service, model, b"version one")
    return model


def memberships(
    service: Service, lineage_id: int, people: dict[str, list[str]], tenant_id: str = "default"
) -> list[Membership]:
    pairs = [(subject, sample) for subject, samples in people.items() for sample in samples]
    return [
        Membership(
            lineage_id=lineage_id,
            position=position,
            subject_digest=subject_digest(service.pepper, tenant_id, subject),
            sample_digest=sample_digest(service.pepper, tenant_id, sample),
            content_digest="0" * 64,
            holder=subject_digest(service.pepper, tenant_id, subject),
            pepper_id=service.pepper.id,
        )
        for position, (subject, sample) in enumerate(pairs)
    ]


def publish(service: Service, model: Model, content: bytes, **facts: Any) -> Version:
    """The next version of ``model``, its file in the store; the one before is retired."""
    stored = Store(service.settings.store).put([content])
    with service.database.write() as session:
        model = session.get_one(Model, model.id)
        parent = session.get(Version, model.head_id) if model.head_id else None
        if parent:
            parent.status, parent.retired_at = "retired", now(session)
        row = {
            "number": parent.number + 1 if parent else 1,
            "parent_id": parent.id if parent else None,
            "state": hashlib.sha256(content).hexdigest(),
            "method": "recollection",
            "claim": {"basis": "proved"},
            "samples": 0,
            "people": 0,
        }
        version = Version(
            id=new_id(),
            tenant_id=model.tenant_id,
            model_id=model.id,
            lineage_id=model.lineage_id,
            status="head",
            checkpoint=stored.digest,
            size=stored.size,
            published_at=now(session),
            **(row | facts),
        )
        session.add(version)
        model.head_id = version.id
    return version
