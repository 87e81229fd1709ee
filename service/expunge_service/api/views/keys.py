"""API keys and their actors, for the API and the page."""

from __future__ import annotations

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from expunge_service.access import KeyRole, role_of
from expunge_service.api.problems import not_found
from expunge_service.api.types import Moment
from expunge_service.infra.tables import ActorName, ApiKey


class KeyView(BaseModel):
    id: str
    prefix: str
    label: str
    actor: str = Field(description="its holder: the id that the audit log names")
    scopes: list[str]
    role: KeyRole | None = Field(description="the role that has exactly these scopes; null: none has")
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    key: str | None = Field(default=None, description="the key itself, shown once when it is made")


class ActorView(BaseModel):
    id: str = Field(description="opaque: what the audit log names")
    name: str | None = Field(description="null: it was erased, or never given")
    created_at: Moment


def find_key(session: Session, tenant_id: str, key_id: str, *, lock: bool = False) -> ApiKey:
    key = session.get(ApiKey, key_id, with_for_update=lock)
    if key is None or key.tenant_id != tenant_id:
        raise not_found("key")
    return key


def key_view(key: ApiKey) -> KeyView:
    return KeyView(
        id=key.id,
        prefix=key.prefix,
        label=key.label,
        actor=key.actor_id,
        scopes=key.scopes,
        role=role_of(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )


def actor_view(actor: ActorName) -> ActorView:
    return ActorView(id=actor.id, name=actor.name, created_at=actor.created_at)
