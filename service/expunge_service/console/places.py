"""The five places of the page, and the pages that each has for a caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from expunge_service.access import Scope


@dataclass(frozen=True)
class Link:
    name: str
    address: str


@dataclass(frozen=True)
class Place:
    """``current``: the page that is shown is one of the place."""

    name: str
    pages: tuple[Link, ...]
    current: bool


_CALLS = Link("API", "/openapi.json")
_PLACES: tuple[tuple[str, tuple[tuple[Scope | None, Link], ...]], ...] = (
    ("Inbox", ((None, Link("Inbox", "/")),)),
    (
        "Requests",
        (
            (Scope.DELETIONS_READ, Link("All requests", "/console/requests")),
            (Scope.DELETIONS_DECIDE, Link("Legal holds", "/console/holds")),
            (Scope.PEOPLE_SEARCH, Link("People", "/console/people")),
        ),
    ),
    (
        "Models",
        (
            (Scope.MODELS_READ, Link("All models", "/console/models")),
            (Scope.MODELS_READ, Link("Consumers", "/console/consumers")),
        ),
    ),
    (
        "Record",
        (
            (Scope.AUDIT_READ, Link("Audit log", "/console/audit")),
            (Scope.DELETIONS_READ, Link("Dossier", "/console/dossier")),
        ),
    ),
    (
        "Settings",
        (
            (Scope.KEYS_ADMIN, Link("Keys", "/console/keys")),
            (Scope.MODELS_ADMIN, Link("Webhooks", "/console/webhooks")),
            (None, _CALLS),
        ),
    ),
)


def places(here: str, may: Callable[[str], bool]) -> list[Place]:
    """Return the places with a page that the caller may open. ``here``: the path of the page that is shown.

    A place that only has the description of the calls is no place for a person.
    """
    found = []
    for name, pages in _PLACES:
        links = tuple(link for scope, link in pages if scope is None or may(scope))
        if links and links[0] != _CALLS:
            found.append(Place(name, links, any(_within(here, link.address) for link in links)))
    return found


def _within(here: str, address: str) -> bool:
    return here == address or (address != "/" and here.startswith(f"{address}/"))
