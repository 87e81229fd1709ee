"""What a typed text leads to: requests by case or id, models by name, versions by digest. It knows no person."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.access import Scope
from expunge_service.api.views.requests import DeletionRequestView, request_views
from expunge_service.infra.tables import DeletionRequest, Model, Version

MOST = 20
_SHORT = re.compile(r"[0-9a-f]{4,64}")
"""the first digits of an id or a digest; four of them are enough"""


@dataclass(frozen=True)
class Hits:
    """``versions``: model and number of each version whose checkpoint has the digest."""

    requests: list[DeletionRequestView]
    models: list[str]
    versions: list[tuple[str, int]]

    @property
    def only(self) -> str | None:
        """Return the address of the one thing that was found; None: there are several, or none."""
        places = [f"/console/requests/{each.id}" for each in self.requests]
        places += [f"/console/models/{name}" for name in self.models]
        places += [f"/console/models/{name}#version-{number}" for name, number in self.versions]
        return places[0] if len(places) == 1 else None


def find(session: Session, tenant_id: str, text: str, scopes: Collection[str]) -> Hits:
    """Return what the text names and the scopes may read, at most ``MOST`` of each."""
    typed = text.strip()
    digits = typed.lower().removeprefix("sha256:").replace("-", "")
    short = digits if _SHORT.fullmatch(digits) else None
    rows: list[DeletionRequest] = []
    if Scope.DELETIONS_READ in scopes:
        mine = select(DeletionRequest).where(DeletionRequest.tenant_id == tenant_id)
        # a phone's keyboard writes c-201 for C-201; the index serves each of the three
        named = [DeletionRequest.case_id == case for case in dict.fromkeys((typed, typed.upper(), typed.lower()))]
        if short is not None:
            named.append(DeletionRequest.id.between(short, f"{short}g"))  # an index serves it; no digit is above f
        latest = mine.order_by(DeletionRequest.received_at.desc()).limit(MOST)
        by_id = {row.id: row for either in named for row in session.scalars(latest.where(either))}
        rows = sorted(by_id.values(), key=lambda row: row.received_at, reverse=True)[:MOST]
    models: list[str] = []
    versions: list[tuple[str, int]] = []
    if Scope.MODELS_READ in scopes:
        theirs = Model.tenant_id == tenant_id
        models = list(session.scalars(select(Model.name).where(theirs, Model.name == typed.lower())))
        if short is not None:
            query = select(Model.name, Version.number).join(Version, Version.model_id == Model.id)
            same = Version.checkpoint.startswith(short, autoescape=True)
            found = session.execute(query.where(theirs, same).order_by(Model.name, Version.number).limit(MOST))
            versions = [(name, number) for name, number in found]
    return Hits(request_views(session, rows, scopes), models, versions)
