"""The ways out of a reason, as buttons and links: for each step that the API names, the place on the page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from expunge_service.access import Caller
from expunge_service.api.views.requests import ActionView

_ID, _NAME = "([0-9a-f]{32})", "([a-z0-9][a-z0-9_-]{0,62})"
_REQUEST, _MODEL, _HOLD = f"/v1/deletion-requests/{_ID}", f"/v1/models/{_NAME}", f"/v1/holds/{_ID}"
_ACTS = (
    ("DELETE", _REQUEST, "cancel", "request_id", "Cancel the request"),
    ("POST", f"{_REQUEST}/verify", "verify", "request_id", "Verify and continue"),
    ("POST", f"{_REQUEST}/other-person", "other-person", "request_id", "It is right as it is written"),
    ("POST", f"{_REQUEST}/approve", "approve", "request_id", "Approve"),
    ("POST", f"{_REQUEST}/retry", "retry", "request_id", "Retry"),
    ("DELETE", _HOLD, "lift", "hold_id", "Lift the hold"),
    ("POST", f"{_MODEL}/retrains", "retrain", "name", "Train {} again now"),
    ("POST", f"{_MODEL}/port", "port", "name", "Port {} to its recipe with rows"),
    ("POST", f"{_MODEL}/publish", "publish", "name", "Publish {} anyway"),
    ("POST", f"{_MODEL}/retire", "retire", "name", "Retire {}"),
    ("PATCH", f"{_MODEL}/policy", "policy", "name", "Change the policy of {}"),
)
"""calls that a button makes, by its act and the field that says on what"""
_LINKS = (
    ("POST", "(/v1/deletion-requests)", "", "Delete from all models"),
    ("GET", _REQUEST, "/console/requests/{}", "Show the request"),
    ("POST", f"{_REQUEST}/same-person", "/console/requests/{}/decide", "Name the right id"),
    ("POST", f"{_REQUEST}/reject", "/console/requests/{}/decide", "Reject"),
    ("GET", _HOLD, "/console/holds#hold-{}", "Open the hold"),
    ("GET", _MODEL, "/console/models/{}", "See how far {} is"),
    ("GET", f"{_MODEL}/consumers", "/console/models/{}#consumers", "Consumers of {}"),
    ("DELETE", f"{_MODEL}/consumers/CONSUMER", "/console/models/{}#consumers", "Remove a consumer of {}"),
)


@dataclass(frozen=True)
class NextStep:
    """A step on the page: a button that posts ``fields`` to ``address``, or a link to it.

    ``command`` is for people at a terminal, and the only way where the page has no place for the step.
    """

    verb: str
    label: str
    address: str
    posts: bool
    fields: tuple[tuple[str, str], ...]
    command: str


def ways(steps: Iterable[ActionView], caller: Caller) -> list[NextStep]:
    """Return the steps that this caller may take, each once, in their order."""
    found = {
        step.command: _way(step) for step in steps if all(caller.scopes.intersection(group) for group in step.scopes)
    }
    return list(found.values())


def _way(step: ActionView) -> NextStep:
    for method, pattern, act, argument, named in _ACTS:
        match = re.fullmatch(pattern, step.path)
        if method == step.method and match is not None:
            label = "Do it now" if step.verb == "hurry" else named
            fields = (("act", act), (argument, match[1]))
            return (
                _button(step, label.format(match[1]), fields)
                if method == "PATCH"
                else NextStep(step.verb, label.format(match[1]), "/console/act", True, fields, step.command)
            )
    for method, pattern, address, label in _LINKS:
        match = re.fullmatch(pattern, step.path)
        if method == step.method and match is not None:
            return NextStep(step.verb, label.format(match[1]), address.format(match[1]), False, (), step.command)
    return NextStep(step.verb, step.verb, "", False, (), step.command)


def _button(step: ActionView, label: str, fields: tuple[tuple[str, str], ...]) -> NextStep:
    """Return the way of a policy's new value. One that is the person's choice is chosen on the model's page."""
    values = tuple((name, str(value)) for name, value in (step.body or {}).items())
    if any(value.isupper() for _, value in values):
        return NextStep(step.verb, label, f"/console/models/{dict(fields)['name']}#policy", False, (), step.command)
    said = ", ".join(f"{name} to {value}" for name, value in values)
    return NextStep(step.verb, f"{label}: {said}", "/console/act", True, fields + values, step.command)
