"""Roles: named sets of scopes, so that a key can be made for a kind of work. A key keeps scopes, not its role."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from expunge_service.access.api_keys import Scope


class KeyRole(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    PRIVACY = "privacy"
    ADMIN = "admin"


_VIEWS = frozenset({Scope.DELETIONS_READ, Scope.MODELS_READ, Scope.AUDIT_READ})
SCOPES: dict[KeyRole, frozenset[Scope]] = {
    KeyRole.VIEWER: _VIEWS,
    KeyRole.OPERATOR: _VIEWS | {Scope.MODELS_ADMIN, Scope.CHECKPOINTS_READ},
    KeyRole.PRIVACY: _VIEWS | {Scope.DELETIONS_WRITE, Scope.DELETIONS_DECIDE, Scope.PEOPLE_SEARCH},
    KeyRole.ADMIN: frozenset(Scope),
}
"""viewer: sees what happens. operator: repairs what is late, blocked or broken, and runs the models. privacy: takes in
and decides requests, places and lifts legal holds, and finds people. admin: everything, keys included.
"""


def remark(scopes: Collection[str]) -> str | None:
    """Return what a key learns by scopes that are harmless one by one; None: no more, or it may search for people."""
    if Scope.DELETIONS_WRITE not in scopes or Scope.PEOPLE_SEARCH in scopes:
        return None
    tells = sorted({Scope.AUDIT_READ, Scope.DELETIONS_READ}.intersection(scopes))
    if not tells:
        return None
    return f"With {Scope.DELETIONS_WRITE} and {' and '.join(tells)} the key can find out who is in the data."


def role_of(scopes: Collection[str]) -> KeyRole | None:
    """Return the role that has exactly these scopes; None: no role has."""
    return next((role for role, granted in SCOPES.items() if granted == set(scopes)), None)
