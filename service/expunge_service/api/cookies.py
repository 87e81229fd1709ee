"""Cookies of the status page."""

from __future__ import annotations

from fastapi import Request, Response

from expunge_service.access import SESSION_SECONDS

COOKIE = "expunge_session"


def read_cookie(request: Request, tls: bool, name: str = COOKIE) -> str | None:
    """Return the cookie's value; None: there is none."""
    return request.cookies.get(_kept_as(name, tls))


def set_cookie(response: Response, tls: bool, value: str, name: str = COOKIE, seconds: int | None = None) -> None:
    """Set a cookie HttpOnly and SameSite=Strict, for the time of a session unless ``seconds`` says otherwise.

    Over TLS it is Secure, and its name begins with ``__Host-``: no other host of the domain can set it.
    """
    lasts = SESSION_SECONDS if seconds is None else seconds
    response.set_cookie(_kept_as(name, tls), value, max_age=lasts, httponly=True, samesite="strict", secure=tls)


def drop_cookie(response: Response, tls: bool, name: str = COOKIE) -> None:
    response.delete_cookie(_kept_as(name, tls), httponly=True, samesite="strict", secure=tls)


def _kept_as(name: str, tls: bool) -> str:
    return f"__Host-{name}" if tls else name
