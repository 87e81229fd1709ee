"""Roles: named sets of scopes, so that a key can be made for what somebody is. A key keeps scopes, not its role."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from service.access.api_keys import Scope


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


def role_of(scopes: Collection[str]) -> KeyRole | None:
    """Return the role that has exactly these scopes; None: no role has."""
    return next((role for role, granted in SCOPES.items() if granted == set(scopes)), None)
