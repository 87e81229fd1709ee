"""One visit of the page: the visitor, their rights, and how their actions are carried out.

Actions and reads call the routes of the API as functions, with the scopes that those ask for: there is no second rule.
"""

from __future__ import annotations

import hmac
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from expunge_service.access import PAGE_SECONDS, Caller, Scope, form_token, renew_session, seal_for_page, unsealed
from expunge_service.api.cookies import drop_cookie, read_cookie, set_cookie
from expunge_service.api.dependencies import Running, Service, allows, require_scopes_of, require_writable, session_of
from expunge_service.api.http.etag import ResourceState
from expunge_service.api.problems import ApiProblem
from expunge_service.console.forms import Fields, field, typed
from expunge_service.console.places import places
from expunge_service.console.render import HEADERS
from expunge_service.console.render import page as rendered
from expunge_service.infra.db import now
from expunge_service.models import restore_waits

SAID, MADE = "expunge_said", "expunge_made"
"""the cookies that carry what an action did, and a secret that it made, to the page that is shown next"""


@dataclass(frozen=True)
class PageContext:
    """One look at the page, at what service. ``cookie`` is its session's, ``token`` what its forms must carry."""

    request: Request
    service: Service
    caller: Caller
    cookie: str
    token: str

    def may(self, scope: str) -> bool:
        return scope in self.caller.scopes

    def need(self, scope: Scope) -> None:
        """Check that the key has the scope. Raises ApiProblem (403)."""
        if not self.may(scope):
            raise ApiProblem(403, "scope_missing", f"Your key lacks the scope {scope}, which this needs.")

    def allows(self, route: Callable[..., Any]) -> bool:
        return allows(route, self.caller)

    def call(self, route: Callable[..., Any], if_match: str | None = None, **arguments: Any) -> Any:
        """Call a route of the API as this visitor. Raises what it raises, and ApiProblem (403).

        ``if_match``: the ETag of the state that the visitor decided on.
        """
        require_scopes_of(route, self.caller)
        response = Response()
        ours = {
            "service": self.service,
            "caller": self.caller,
            "request": self.request,
            "response": response,
            "state": ResourceState(response, if_match),
        }
        wanted = inspect.signature(route).parameters
        return route(**{name: value for name, value in ours.items() if name in wanted} | arguments)

    def check_form(self, fields: Fields) -> None:
        """Check that a form may change something. Raises ApiProblem (403; 503 while writing is stopped)."""
        self.check_token(fields)
        with self.service.database.read() as session:
            read_only = restore_waits(session)
        require_writable(self.service, read_only=read_only)

    def check_token(self, fields: Fields) -> None:
        """Check that the form was sent from a page of this session. Raises ApiProblem (403)."""
        if not hmac.compare_digest(field(fields, "token").encode(), self.token.encode()):
            what = "This form is from an older session. Go back, reload the page, try again."
            raise ApiProblem(403, "form_refused", what)

    def ask(
        self, label: str, warning: str, fields: Fields, back: str, *, names: Sequence[str] = (), question: str = ""
    ) -> Response:
        """Show what was answered, to be checked. The page's form sends the same fields to the same address again."""
        shown = {"label": label, "warning": warning, "back": back, "names": names, "question": question}
        return self.page("confirm.html", kept=typed(fields), **shown)

    def lead(self, back: str, said: str) -> Response:
        """Redirect to a page of ours, which says what happened."""
        answer = RedirectResponse(back, 303, HEADERS)
        set_cookie(answer, self.service.over_tls(self.request), quote(said), SAID, PAGE_SECONDS)
        return answer

    def lead_to_secret(self, what: str, secret: str | None, back: str) -> Response:
        """Redirect to the page that shows a new secret once, so that loading that page again makes no second one."""
        made = json.dumps({"what": what, "secret": secret, "back": back})
        answer = RedirectResponse("/console/made", 303, HEADERS)
        sealed = seal_for_page(self.service.session_key, self.cookie, made)
        set_cookie(answer, self.service.over_tls(self.request), sealed, MADE, PAGE_SECONDS)
        return answer

    def show_secret(self) -> Response:
        """Return that page; without a secret to show it leads back to the overview."""
        tls = self.service.over_tls(self.request)
        sealed = read_cookie(self.request, tls, MADE)
        made = None if sealed is None else unsealed(self.service.session_key, self.cookie, sealed)
        if made is None:
            return self.lead("/", "It was shown once, and is not stored. If you did not copy it, make another.")
        answer = self.page("secret.html", **json.loads(made))
        drop_cookie(answer, tls, MADE)
        return answer

    def page(self, template: str, **facts: Any) -> Response:
        """Return a page. A person who opens one stays logged in; the script that refreshes one does not count."""
        follows = self.may(Scope.DELETIONS_READ) or self.may(Scope.MODELS_READ)
        opened = "x-refresh" not in self.request.headers
        with self.service.database.read() as session:
            at = now(session)
            value = renew_session(session, self.service.session_key, self.cookie) if opened else ""
        tls = self.service.over_tls(self.request)
        said = unquote(read_cookie(self.request, tls, SAID) or "") if opened else ""
        stopped = self.service.watch.verdict().difference
        common: dict[str, Any] = {
            "at": at,
            "stopped": stopped,
            "may": self.may,
            "token": self.token,
            "follows": follows,
            "said": said,
        }
        here = self.request.url.path
        answer = rendered(template, **common, here=here, navigation=places(here, self.may), **facts)
        if opened:
            set_cookie(answer, tls, value)
        if said:
            drop_cookie(answer, tls, SAID)
        return answer


def visiting(request: Request, service: Running) -> PageContext:
    """Return the visit. Raises ApiProblem (401) where there is no session, or it is over."""
    caller = session_of(service, request)
    if caller is None:
        raise ApiProblem(401, "login_needed", "Log in first.")
    cookie = read_cookie(request, service.over_tls(request)) or ""
    visit = request.state.visit = PageContext(request, service, caller, cookie, form_token(service.session_key, cookie))
    return visit


Visitor = Annotated[PageContext, Depends(visiting)]
