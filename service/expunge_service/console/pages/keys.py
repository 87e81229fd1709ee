"""``/console/keys``: API keys; making, replacing and revoking one."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.access import SCOPES, Scope
from expunge_service.api.routes import keys
from expunge_service.console.forms import Form, field, filled
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/keys")
def index(visit: Visitor) -> Response:
    return visit.page(
        "keys.html",
        keys=visit.call(keys.index).data,
        scopes=list(Scope),
        roles=SCOPES,
        mine=visit.caller.key_id,
        mine_scopes=visit.caller.scopes,
    )


@router.post("/console/keys")
def create(visit: Visitor, fields: Form) -> Response:
    """Make a key, and lead to the page that shows it once."""
    visit.check_form(fields)
    hint = "A key needs a role or at least one scope. Its label has at most 120 characters, its end is a date."
    ends = field(fields, "expires")
    order = filled(
        keys.KeyOrder,
        hint,
        label=field(fields, "label"),
        scopes=fields.get("scope", []),
        role=field(fields, "role"),
        expires_at=f"{ends}T00:00:00Z" if ends else None,
    )
    return visit.lead_to_secret("API key", visit.call(keys.create, body=order).key, "/console/keys")
