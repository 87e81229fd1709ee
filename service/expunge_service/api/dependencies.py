"""What every route is given: the service it runs in, and the caller with the scope that the route asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from expunge_service.access import (
    Caller,
    Scope,
    TwoPersonAct,
    authenticate,
    caller_of,
    named_by_proxy,
    open_session,
    second_approval,
)
from expunge_service.api.cookies import read_cookie
from expunge_service.api.http.limits import Limiter, client_of, wrong_keys
from expunge_service.api.intake import IntakeCall, Taken
from expunge_service.api.openapi import answer, problem
from expunge_service.api.problems import ApiProblem, Error
from expunge_service.api.traffic import Traffic
from expunge_service.infra.actors import Actor, act_for
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.group_commit import GroupCommit
from expunge_service.infra.limits import Limits
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import Store
from expunge_service.models import Guard, Verdict, Watch, restore_waits

if TYPE_CHECKING:
    from celery import Celery
    from sqlalchemy.orm import Session

_BEARER = HTTPBearer(auto_error=False, description="An API key: exp_..., made by `expunge keys create`.")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKED: dict[Callable[..., Caller], tuple[Collection[Scope], ...]] = {}
"""what the dependencies ask of a caller: at least one scope of each collection"""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="expunge"'}


@dataclass(frozen=True)
class Service:
    """What the routes of one API process work with."""

    settings: Settings
    limits: Limits
    database: Database
    pepper: Pepper
    session_key: bytes = field(repr=False)
    limiter: Limiter
    searches: Limiter
    """of people, by key: a key must not try all ids of a population"""
    wrong_keys: Limiter = field(default_factory=wrong_keys)
    """by client address"""

    intake: GroupCommit[IntakeCall, Taken] = field(default_factory=GroupCommit)
    """writes the deletion requests that arrive at the same time together, those of each tenant"""

    traffic: Traffic = field(default_factory=Traffic)
    """the calls that this process has answered"""

    @cached_property
    def store(self) -> Store:
        """Return the store of published checkpoints."""
        return Store.at(self.settings.store)

    @cached_property
    def watch(self) -> Watch:
        """Return what knows whether database and store agree."""
        return Watch(Guard(self.database, self.store.folder))

    @cached_property
    def notifier(self) -> Celery:
        from expunge_service.infra.broker.notify import publisher  # noqa: PLC0415 (celery is slow to load; only writes notify)

        return publisher(self.settings.broker_url)

    def over_tls(self, request: Request) -> bool:
        """Return whether the browser speaks TLS: to us, or in production to the proxy before us."""
        return self.settings.mode == "production" or request.url.scheme == "https"

    def notify(self, model_ids: Collection[str]) -> None:
        """Notify the workers of these models; never raises. The scheduler's sweep finds what is lost here."""
        if not model_ids:
            return
        from expunge_service.infra.broker.notify import notify  # noqa: PLC0415

        notify(self.database, self.notifier, model_ids)


async def running(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Running = Annotated[Service, Depends(running)]


def require_scope(*scopes: Scope) -> Callable[..., Caller]:
    """Make a dependency that returns the caller. The caller must hold one of ``scopes``.

    It answers 401 without a valid key, and 403 without the scope.
    """

    def caller(
        service: Running,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Caller:
        if credentials is None:
            detail = "Send an API key: Authorization: Bearer exp_..."
            raise ApiProblem(401, "key_missing", detail, headers=_CHALLENGE)
        writes = request.method not in _READING
        with service.database.without_transaction() as session:
            holder = known(service, session, request, credentials.credentials)
            read_only = writes and restore_waits(session)
        found = _identified(service, request, holder)
        _within_limits(service, request, found)
        permitted = _permitted(found, scopes)
        _require_read(request)
        if writes:
            require_writable(service, read_only=read_only)
        return permitted

    _ASKED[caller] = (scopes,)
    return caller


def require_scopes(first: Collection[Scope], *others: Collection[Scope]) -> Callable[..., Caller]:
    """Make a dependency as ``require_scope`` does; the caller must hold one scope of each collection."""
    by_key = require_scope(*first)

    def caller(
        service: Running,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Caller:
        found = by_key(service, request, credentials)
        for scopes in others:
            _permitted(found, scopes)
        return found

    _ASKED[caller] = (first, *others)
    return caller


def count_search(service: Service, caller: Caller, ids: int = 1) -> None:
    """Count a search by the ids that it tries. Raises ApiProblem (429) where the key has searched for too many."""
    wait = service.searches.wait_of(caller.key_id, ids)
    if wait:
        limit = service.limits.searches_per_minute
        detail = f"This key searches for too many people: at most {limit} ids a minute. Wait {wait} s."
        raise ApiProblem(429, "too_many_searches", detail, headers={"Retry-After": str(wait)})


def uncount_search(service: Service, caller: Caller, ids: int = 1) -> None:
    """Take back that so many ids were searched for: they were right, for requests that had told that somebody is near.

    Wrong ones stay counted, so that nobody finds the right ones by trying.
    """
    service.searches.give_back(caller.key_id, ids)


def _identified(service: Service, request: Request, holder: Caller | None) -> Caller:
    """Return the caller of a call with this key's holder. Raises ApiProblem (401) where there is none."""
    if holder is None:
        challenge = {"WWW-Authenticate": _CHALLENGE["WWW-Authenticate"] + ', error="invalid_token"'}
        raise ApiProblem(401, "key_invalid", "The API key is unknown, expired or revoked.", headers=challenge)
    return _acting(service, request, holder)


def known(service: Service, session: Session, request: Request, key: str) -> Caller | None:
    """Return the holder of the key. None: it is unknown, expired or revoked, and is counted for the client's
    address.

    Raises ApiProblem (429) where that address has tried too many wrong keys. A key that was right lately still works,
    so that one client cannot block others on its address.
    """
    client = client_of(request.client.host if request.client else None)
    wait = service.wrong_keys.shut_for(client)
    found = authenticate(session, service.pepper, key)
    if found is not None and (not wait or service.limiter.knows(found.key_id)):
        return found
    if wait:
        detail = f"Too many wrong keys came from this address. Wait {wait} s, then send the right one."
        raise ApiProblem(429, "too_many_wrong_keys", detail, headers={"Retry-After": str(wait)})
    service.wrong_keys.wait_of(client)
    return None


def require_stream(*scopes: Scope) -> Callable[..., Caller]:
    """Make a dependency as ``holding`` does, for what the status page reads itself: its session's cookie serves as a
    key.
    """
    by_key = require_scope(*scopes)

    def caller(
        service: Running,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Caller:
        found = session_of(service, request) if credentials is None else None
        request.state.by_session = found is not None
        return by_key(service, request, credentials) if found is None else _permitted(found, scopes)

    return caller


def in_force(service: Service, request: Request, caller: Caller) -> Callable[[Session], bool]:
    """Return a function that says whether the caller's key or session is still valid, to ask while an answer is being
    sent.
    """
    cookie = (read_cookie(request, service.over_tls(request)) or "") if request.state.by_session else None

    def asked(session: Session) -> bool:
        if cookie is None:
            return caller_of(session, caller.key_id) is not None
        return open_session(session, service.session_key, cookie) is not None

    return asked


def session_of(service: Service, request: Request) -> Caller | None:
    """Return the caller of the status page's session that this request carries. None: there is no session."""
    cookie = read_cookie(request, service.over_tls(request))
    if cookie is None:
        return None
    with service.database.read() as session:
        found = open_session(session, service.session_key, cookie)
    return None if found is None else _acting(service, request, found)


def _acting(service: Service, request: Request, found: Caller) -> Caller:
    """Return the caller. This call acts for them from now on: the audit log names them.

    A proxy's header was taken away where it does not count (``expunge_service.access.proxy``).
    """
    header = service.settings.actor_header
    name = request.headers.get(header) if header else None
    caller = named_by_proxy(service.database, service.pepper, found, name)
    act_for(Actor(caller.actor_id, caller.key_id))
    return caller


def agreed(service: Service, session: Session, caller: Caller, act: TwoPersonAct, subject: str) -> bool:
    """Return whether an act may be carried out; False: its second person is missing, and the consent was noted.

    After False the route commits, and raises ``awaits_another``. Raises ApiProblem (403) where people are known by
    the proxy's word, and it named none: one person could come once through the proxy, and once around it.
    """
    if act not in service.settings.acts_of_two:
        return True
    if service.settings.actor_header and not caller.vouched:
        detail = f"To {act} takes two people, which the proxy names. This call did not come through it."
        raise ApiProblem(403, "person_unnamed", detail)
    return second_approval(session, caller, act, subject)


def awaits_another(act: TwoPersonAct) -> ApiProblem:
    """Return the answer to the first of two people. It is an error: what they asked for was not done."""
    detail = (
        f"To {act} takes two people. Your consent is noted for seven days; another person must {act} it too. "
        "A key that was made over HTTP counts as its maker's."
    )
    return ApiProblem(409, "awaits_another_person", detail)


async def look_for_unread(request: Request) -> None:
    """Note what a call says and its route does not read: it would be passed over in silence.

    That is a body where the route takes none (an empty object counts as none), or an option that it lacks: a list
    with a misspelt filter would be the whole list. ``holding`` refuses the call once it knows the caller.
    """
    route = request.scope["route"]
    if not isinstance(route, APIRoute):
        return
    options = options_of(route.dependant)
    known = f"Options of its address, after the question mark: {', '.join(options)}." if options else "It has none."
    if not request.query_params.keys() <= {*options}:
        detail = f"The address has an option that this call does not know. {known}"
        request.state.unread = ApiProblem(422, "unknown_option", detail)
        return
    reads = request.method in _READING or route.body_field is not None
    if not reads and (await request.body()).strip() not in (b"", b"{}"):
        fault: Error = {"pointer": "", "detail": "not read"}
        request.state.unread = ApiProblem(422, "body_not_read", f"This call takes no body. {known}", [fault])


def options_of(dependant: Dependant) -> list[str]:
    """Return the names of what a route reads of its address's query, its dependencies' included."""
    own = [each.alias for each in dependant.query_params]
    return [*own, *(name for each in dependant.dependencies for name in options_of(each))]


def _require_read(request: Request) -> None:
    """Raise ApiProblem (422) where the call has a part that is not read."""
    unread: ApiProblem | None = getattr(request.state, "unread", None)
    if unread is not None:
        raise unread


def require_writable(service: Service, *, read_only: bool) -> None:
    """Check that the service may write. A store that does not answer stops no request.

    Raises ApiProblem (503) while a restored backup waits for the operator (``read_only``), and while the database and
    the store differ.
    """
    if not read_only:
        if require_agreed(service).silent == "database":
            raise Busy("The database did not answer.")
        return
    detail = (
        "The database was restored from a backup and can only be read. An operator checks the report of "
        "`expunge restore` and ends this with `expunge restore --confirm`."
    )
    raise ApiProblem(503, "read_only", detail, headers={"Retry-After": "60"})


def require_agreed(service: Service) -> Verdict:
    """Return the verdict on database and store. Raises ApiProblem (503) where they differ."""
    found = service.watch.verdict()
    if found.difference:
        raise ApiProblem(503, "database_put_back", found.difference, headers={"Retry-After": "60"})
    return found


def _within_limits(service: Service, request: Request, found: Caller) -> None:
    """Count the call. Raises ApiProblem (429) where the key has called too often."""
    wait = service.limiter.wait_of(found.key_id)
    request.state.quota = service.limiter.headers(found.key_id)
    if wait:
        raise ApiProblem(429, "too_many_calls", "This key calls too often.", headers={"Retry-After": str(wait)})


def allows(route: Callable[..., Any], found: Caller) -> bool:
    """Return whether the caller holds the scopes that this route asks for. The route's own signature says which."""
    return all(not found.scopes.isdisjoint(each) for each in _asked(route))


def require_scopes_of(route: Callable[..., Any], found: Caller) -> None:
    """Check the same for the caller of the route. Raises ApiProblem (403)."""
    for each in _asked(route):
        _permitted(found, each)


def _asked(route: Callable[..., Any]) -> tuple[Collection[Scope], ...]:
    dependency = get_type_hints(route, include_extras=True)["caller"].__metadata__[0].dependency
    return _ASKED[dependency]


def _permitted(found: Caller, scopes: Collection[Scope]) -> Caller:
    """Return the caller. The caller must hold one of ``scopes``. Raises ApiProblem (403)."""
    if not found.scopes.isdisjoint(scopes):
        return found
    needed = " ".join(scopes)
    challenge = {"WWW-Authenticate": f'Bearer realm="expunge", error="insufficient_scope", scope="{needed}"'}
    detail = f"This call needs a key with the scope {' or '.join(scopes)}."
    raise ApiProblem(403, "scope_missing", detail, headers=challenge)


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the problem answers of a route, for its OpenAPI description. Every route may answer 401, 403, 422, 429,
    503.
    """
    return {code: problem() for code in sorted({401, 403, 422, 429, 503, *codes})}


def reading(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route that shows one resource under its ETag, for its OpenAPI description."""
    same = {304: {"description": "Not modified"} | answer(304, "ETag")[304]}
    return problems(*codes) | answer(200, "ETag") | same
