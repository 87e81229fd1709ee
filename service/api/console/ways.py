"""The ways out of a reason, as buttons and links: for each step that the API names, the place on the page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from expunge.service.access.api_keys import Caller
from expunge.service.api.views.requests import ActionView

_ID, _NAME = "([0-9a-f]{32})", "([a-z0-9][a-z0-9_-]{0,62})"
_REQUEST, _MODEL, _HOLD = f"/v1/deletion-requests/{_ID}", f"/v1/models/{_NAME}", f"/v1/holds/{_ID}"
_PLACES = (
    ("POST", "(/v1/deletion-requests)", "", "Delete from all models", False),
    ("GET", _REQUEST, "/console/requests/{}", "Show the request", False),
    ("POST", f"{_REQUEST}/verify", "/console/requests/{}/verify", "Verify and go on", True),
    ("POST", f"{_REQUEST}/reject", "/console/requests/{}#decision", "Reject it", False),
    ("DELETE", _REQUEST, "/console/requests/{}/cancel", "Cancel the request", True),
    ("POST", f"{_REQUEST}/approve", "/console/requests/{}/approve", "Approve", True),
    ("POST", f"{_REQUEST}/retry", "/console/requests/{}/retry", "Retry", True),
    ("GET", _HOLD, "/console/holds#hold-{}", "Open the hold", False),
    ("DELETE", _HOLD, "/console/holds/{}/lift", "Lift the hold", True),
    ("POST", f"{_MODEL}/retrains", "/console/models/{}/retrain", "Train {} again now", True),
    ("POST", f"{_MODEL}/retire", "/console/models/{}/retire", "Retire {}", True),
    ("POST", f"{_MODEL}/cancel", "/console/models/{}/cancel", "Cancel the preparation of {}", True),
    ("PATCH", f"{_MODEL}/policy", "/console/models/{}/policy", "Change the policy of {}", True),
    ("GET", f"{_MODEL}/preparation", "/console/models/{}", "See how far {} is", False),
    ("GET", f"{_MODEL}/consumers", "/console/models/{}#consumers", "Consumers of {}", False),
    ("DELETE", f"{_MODEL}/consumers/CONSUMER", "/console/models/{}#consumers", "Remove a consumer of {}", False),
)


@dataclass(frozen=True)
class Way:
    """A step on the page: a button that posts ``fields`` to ``address``, or a link to it.

    ``command`` is for those who rather type it, and the only way where the page has no place for the step.
    """

    verb: str
    label: str
    address: str
    posts: bool
    fields: tuple[tuple[str, str], ...]
    command: str


def ways(steps: Iterable[ActionView], caller: Caller) -> list[Way]:
    """Return the steps that this caller may take, each once, in their order."""
    found = {
        step.command: _way(step) for step in steps if all(caller.scopes.intersection(group) for group in step.scopes)
    }
    return list(found.values())


def _way(step: ActionView) -> Way:
    for method, pattern, address, label, posts in _PLACES:
        match = re.fullmatch(pattern, step.path)
        if method == step.method and match is not None:
            return _placed(step, address.format(match[1]), label.format(match[1]), posts)
    return Way(step.verb, step.verb, "", False, (), step.command)


def _placed(step: ActionView, address: str, label: str, posts: bool) -> Way:
    """Return the way at this place. A policy's new value that is the person's choice is chosen on the model's page."""
    if step.method != "PATCH":
        return Way(step.verb, label, address, posts, (), step.command)
    values = tuple((name, str(value)) for name, value in (step.body or {}).items())
    if any(value.isupper() for _, value in values):
        return Way(step.verb, label, f"{address.removesuffix('/policy')}#policy", False, (), step.command)
    said = ", ".join(f"{name} to {value}" for name, value in values)
    return Way(step.verb, f"{label}: {said}", address, True, values, step.command)
