"""Sessions of the status page: a signed value that names an API key by its id and carries none of its secret.

The key's row is read again at every use, so that a revoked or expired key ends its sessions at once. Log-out is
stored, so that it ends every copy of the cookie.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from expunge_service.access.api_keys import Caller, caller_of
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import mac, new_id
from expunge_service.infra.tables import EndedSession
from expunge_service.infra.time import HOUR_SECONDS, SECOND

SESSION_SECONDS = HOUR_SECONDS
LINK_SECONDS = 300
PAGE_SECONDS = 60
"""how long what an action did waits for the page that shows it"""


def begin_session(session: Session, session_key: bytes, key_id: str) -> str:
    """Return a cookie's value: the ids of the key and the session, its end in seconds since 1970, and their HMAC."""
    return _seal(session, session_key, f"{key_id}.{new_id()}")


def renew_session(session: Session, session_key: bytes, value: str) -> str:
    """Return a cookie of the same session that ends an hour from now. ``value`` must have been opened before."""
    return _seal(session, session_key, _lasting(value))


def end_session(session: Session, value: str) -> None:
    """Log out: make every cookie of this session invalid, whenever it was renewed. Idempotent.

    ``value`` must have been opened before. Rows of sessions whose last cookie has expired are removed here.
    """
    at = now(session)
    session.execute(delete(EndedSession).where(EndedSession.until <= at))
    # a visit under way may still renew the cookie once, so twice the time
    session.merge(EndedSession(id=_id(value), until=at + 2 * SESSION_SECONDS * SECOND))


def _seal(session: Session, session_key: bytes, lasting: str) -> str:
    text = f"{lasting}.{now(session) // SECOND + SESSION_SECONDS}"
    return f"{text}.{mac(session_key, 'session', text)}"


def open_session(session: Session, session_key: bytes, value: str) -> Caller | None:
    """Return the caller of the session; None where it is forged, over or logged out, or its key is not valid."""
    text, _, signature = value.rpartition(".")
    if not hmac.compare_digest(signature.encode(), mac(session_key, "session", text).encode()):
        return None
    key_id, _, ends = text.split(".")
    if int(ends) * SECOND <= now(session) or session.get(EndedSession, _id(value)) is not None:
        return None
    return caller_of(session, key_id)


def make_link(session: Session, session_key: bytes, key_id: str) -> str:
    """Return what a log-in link carries in its fragment: it opens one session of this key, within five minutes."""
    text = f"{key_id}.{new_id()}.{now(session) // SECOND + LINK_SECONDS}"
    return f"{text}.{mac(session_key, 'link', text)}"


def use_link(session: Session, session_key: bytes, value: str) -> str:
    """Use a log-in link, and return the cookie of its session; empty where it is forged, over, or was used before.

    Its use is stored like the end of a session, so that of two that use it only one is logged in.
    """
    text, _, seal = value.rpartition(".")
    if not hmac.compare_digest(mac(session_key, "link", text).encode(), seal.encode()):
        return ""
    key_id, link_id, ends = text.split(".")
    used = session.get(EndedSession, link_id, with_for_update=True) is not None
    if used or int(ends) * SECOND <= now(session) or caller_of(session, key_id) is None:
        return ""
    session.add(EndedSession(id=link_id, until=int(ends) * SECOND))
    try:
        session.flush()
    except IntegrityError:
        session.rollback()
        return ""
    return begin_session(session, session_key, key_id)


def form_token(session_key: bytes, value: str) -> str:
    """Return what a form of this session must carry, so that no other site can send one. Renewing keeps it."""
    return mac(session_key, "form", _lasting(value))


def _lasting(value: str) -> str:
    """Return what renewing keeps: the ids of the key and of the session."""
    return value.rsplit(".", 2)[0]


def _id(value: str) -> str:
    """Return the session's id."""
    return value.split(".")[1]


def seal_for_page(session_key: bytes, value: str, text: str) -> str:
    """Return the text, encrypted for this session's next page; within ``PAGE_SECONDS`` ``unsealed`` reads it."""
    return _page_key(session_key, value).encrypt(text.encode()).decode()


def unsealed(session_key: bytes, value: str, sealed: str) -> str | None:
    """Return the text; None where it is another session's, forged, or too old."""
    try:
        return _page_key(session_key, value).decrypt(sealed, ttl=PAGE_SECONDS).decode()
    except InvalidToken:
        return None


def _page_key(session_key: bytes, value: str) -> Fernet:
    return Fernet(urlsafe_b64encode(bytes.fromhex(mac(session_key, "page", _lasting(value)))))
