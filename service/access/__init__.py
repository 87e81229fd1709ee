"""Rights of callers: keys, scopes, sessions, second approval; and which installation a store belongs to."""

from __future__ import annotations

from expunge.service.access.api_keys import (
    Caller,
    Scope,
    authenticate,
    caller_of,
    check_pepper,
    create_key,
    find_actor,
    list_actors,
    list_keys,
    name_actor,
    require_pepper,
    revoke_key,
    rotate_key,
    searched,
    successor_ends,
)
from expunge.service.access.four_eyes import TwoPersonAct, consented, second_approval
from expunge.service.access.proxy import named_by_proxy
from expunge.service.access.roles import SCOPES, KeyRole, remark, role_of
from expunge.service.access.sessions import (
    PAGE_SECONDS,
    SESSION_SECONDS,
    begin_session,
    end_session,
    form_token,
    make_link,
    open_session,
    renew_session,
    seal_for_page,
    unsealed,
    use_link,
)
from expunge.service.access.store_identity import Markable, check_places, claim_places, place_name

__all__ = [
    "PAGE_SECONDS",
    "SCOPES",
    "SESSION_SECONDS",
    "Caller",
    "KeyRole",
    "Markable",
    "Scope",
    "TwoPersonAct",
    "authenticate",
    "begin_session",
    "caller_of",
    "check_pepper",
    "check_places",
    "claim_places",
    "consented",
    "create_key",
    "end_session",
    "find_actor",
    "form_token",
    "list_actors",
    "list_keys",
    "make_link",
    "name_actor",
    "named_by_proxy",
    "open_session",
    "place_name",
    "remark",
    "renew_session",
    "require_pepper",
    "revoke_key",
    "role_of",
    "rotate_key",
    "seal_for_page",
    "searched",
    "second_approval",
    "successor_ends",
    "unsealed",
    "use_link",
]
