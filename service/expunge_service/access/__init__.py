"""Rights of callers: keys, scopes, sessions, second approval; and which installation a store belongs to."""

from __future__ import annotations

from expunge_service.access.api_keys import (
    Caller,
    NewKey,
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
from expunge_service.access.four_eyes import TwoPersonAct, consented, second_approval
from expunge_service.access.proxy import named_by_proxy
from expunge_service.access.roles import SCOPES, KeyRole, remark, role_of
from expunge_service.access.sessions import (
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
from expunge_service.access.store_identity import Markable, check_places, claim_places, place_name
