"""The current actor. Every entry of the audit log names the actor of its transaction.

A process acts for itself; a call to the API acts for the holder of its key. Neither is handed from function to
function: a process gives its name to its database, and the API notes a call's actor once the key was checked. An
actor is an opaque id, never a name: no entry can be removed from the log.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

OPERATOR, WORKER, SCHEDULER = "operator", "worker", "scheduler"
"""the actor where no key was shown: a person with a shell on a host of the installation, or a process by itself"""


class Actor(NamedTuple):
    """``id``: opaque, or the name of a process. ``key``: the id of the API key that was used; None: there was none."""

    id: str
    key: str | None = None


@dataclass
class _Call:
    """One call to the API. It is shared by the threads that answer it."""

    actor: Actor | None = None


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)


def act_for(actor: Actor) -> None:
    """Store the actor of the call that is being answered."""
    call = _CALL.get()
    if call is not None:
        call.actor = actor


def actor_of_call() -> Actor | None:
    """Return the actor of the call that is being answered; None: none, or there is no call."""
    call = _CALL.get()
    return None if call is None else call.actor


class Called:
    """ASGI middleware that begins each call without an actor."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _CALL.set(_Call())
        await self._app(scope, receive, send)
