"""API keys over HTTP: made, listed and revoked by a key that may. The first one comes from `expunge keys create`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from sqlalchemy.orm import Session

from expunge_service.access import (
    SCOPES,
    Caller,
    KeyRole,
    Scope,
    create_key,
    find_actor,
    list_keys,
    revoke_key,
    rotate_key,
    successor_ends,
)
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.http.pagination import Listed
from expunge_service.api.openapi import answer
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import RequestId, When
from expunge_service.api.views.keys import KeyView, find_key, key_view
from expunge_service.infra.db import now
from expunge_service.infra.time import SECOND, moment, rfc_3339

router = APIRouter(tags=["keys"])
Admin = Annotated[Caller, Depends(require_scope(Scope.KEYS_ADMIN))]
Label = Annotated[str, StringConstraints(max_length=120, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_PATH = "/v1/keys"


class KeyOrder(BaseModel):
    """A key grants no more than the key that makes it holds, and ends no later."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"label": "privacy desk", "role": "privacy"}]}
    )

    label: Label = ""
    scopes: list[Scope] = Field(
        default=[],
        max_length=20,
        fail_fast=True,
        description="what it may do, in addition to what its role grants. With "
        "deletions:write, both deletions:read and audit:read tell who is in the data",
    )
    role: KeyRole | None = Field(default=None, description="a named set of scopes; needed where `scopes` is left out")
    expires_at: When | None = None
    actor: RequestId | None = Field(default=None, description="its holder; left out: a new actor, named by the label")

    def granted(self) -> frozenset[Scope]:
        """Return all scopes that the key is to have."""
        return frozenset(self.scopes) | (SCOPES[self.role] if self.role is not None else frozenset())


@router.post(
    _PATH,
    status_code=201,
    response_model=KeyView,
    responses=problems() | answer(201, "Cache-Control"),
    summary="Make a key",
)
def create(body: KeyOrder, service: Running, caller: Admin) -> KeyView:
    scopes = body.granted()
    if not scopes:
        fault = [{"pointer": "/scopes", "detail": "Name scopes, or a role."}]
        raise ApiProblem(422, "no_scopes", "A key needs at least one scope.", fault)
    if not caller.scopes.issuperset(scopes):
        raise ApiProblem(403, "scope_exceeded", "A key can only grant scopes that it holds itself.")
    ends = None if body.expires_at is None else moment(body.expires_at)
    with service.database.write() as session:
        if ends is not None and ends <= now(session):
            fault = [{"pointer": "/expires_at", "detail": "must lie in the future"}]
            raise ApiProblem(422, "expired_already", "The key would have expired already.", fault)
        _require_within(session, caller, ends)
        if body.actor is not None and find_actor(session, caller.tenant_id, body.actor) is None:
            fault = [{"pointer": "/actor", "detail": "There is no such actor."}]
            raise ApiProblem(422, "unknown_actor", "GET /v1/actors lists the actors that there are.", fault)
        made = create_key(
            session,
            service.pepper,
            label=body.label,
            scopes=scopes,
            tenant_id=caller.tenant_id,
            expires_at=ends,
            actor_id=body.actor,
            origin=caller.origin,
        )
        return key_view(find_key(session, caller.tenant_id, made.id)).model_copy(update={"key": made.secret})


@router.get(_PATH, response_model=Listed[KeyView], responses=problems(), summary="List keys, revoked ones included")
def index(service: Running, caller: Admin) -> Listed[KeyView]:
    with service.database.read() as session:
        return Listed(data=[key_view(key) for key in list_keys(session, caller.tenant_id)])


@router.delete(
    _PATH + "/{key_id}",
    response_model=KeyView,
    responses=problems(404),
    summary="Revoke a key",
)
def revoke(key_id: RequestId, service: Running, caller: Admin) -> KeyView:
    with service.database.write() as session:
        key = find_key(session, caller.tenant_id, key_id, lock=True)
        revoke_key(session, key_id, caller.tenant_id)
        return key_view(key)


@router.post(
    _PATH + "/{key_id}/rotate",
    status_code=201,
    response_model=KeyView,
    responses=problems(404, 409) | answer(201, "Cache-Control"),
    summary="Make a key's successor; the old one ends after an overlap",
)
def rotate(
    *,
    key_id: RequestId,
    service: Running,
    caller: Admin,
    overlap_seconds: Annotated[int, Query(ge=0, le=31_536_000)] = 86_400,
) -> KeyView:
    with service.database.write() as session:
        key = find_key(session, caller.tenant_id, key_id, lock=True)
        if not caller.scopes.issuperset(key.scopes):
            raise ApiProblem(403, "scope_exceeded", "A key can only grant scopes that it holds itself.")
        _require_within(session, caller, successor_ends(key, now(session)))
        made = rotate_key(
            session, service.pepper, key.id, overlap_seconds * SECOND, caller.tenant_id, origin=caller.origin
        )
        if made is None:
            raise ApiProblem(409, "key_ended", "The key is revoked or expired; make a new one instead.")
        return key_view(find_key(session, caller.tenant_id, made.id)).model_copy(update={"key": made.secret})


def _require_within(session: Session, caller: Caller, ends: int | None) -> None:
    """Check that the new key ends no later than the caller's own. Raises ApiProblem (403)."""
    own = find_key(session, caller.tenant_id, caller.key_id).expires_at
    if own is not None and (ends is None or ends > own):
        detail = f"Your key ends at {rfc_3339(own)}. A key that it makes or rotates must end no later."
        raise ApiProblem(403, "outlives_its_maker", detail, [{"pointer": "/expires_at", "detail": "must not be later"}])
