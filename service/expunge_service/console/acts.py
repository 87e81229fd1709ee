"""``/console/act``: what the page's buttons do. Each is a call of the API, by the session of the person."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, TypeAdapter, ValidationError

from expunge_service.api.dependencies import require_scopes_of
from expunge_service.api.problems import ApiProblem, not_found
from expunge_service.api.routes import keys, webhooks
from expunge_service.api.routes.models import consumers, lifecycle, retrains
from expunge_service.api.routes.requests import deletion_requests, holds
from expunge_service.api.types import ModelName, RequestId
from expunge_service.api.views.models import find_model, model_row
from expunge_service.api.views.requests import Justification
from expunge_service.console.forms import Fields, Form, field, filled
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.console.words import span
from expunge_service.models import CHANGEABLE, measured_seconds

router = APIRouter(route_class=PageRoute, include_in_schema=False)
CHOICES = {"fallback": ("retrain", "hold"), "complete_when": ("published", "served"), "twins": ("ask", "ignore")}
"""the fields of a policy that are chosen from a list"""
_ARGUMENTS: dict[str, TypeAdapter[str]] = {
    "request_id": TypeAdapter(RequestId),
    "hold_id": TypeAdapter(RequestId),
    "key_id": TypeAdapter(RequestId),
    "endpoint_id": TypeAdapter(RequestId),
    "delivery_id": TypeAdapter(webhooks.DeliveryId),
    "name": TypeAdapter(ModelName),
    "consumer_id": TypeAdapter(ModelName),
}
"""the fields of a form that say what is acted on, named as the routes name them"""


def _why(fields: Fields) -> Justification:
    hint = "Say why, in 1 to 1,000 characters without control characters."
    why: Justification = filled(Justification, hint, reason=field(fields, "reason"))
    return why


def _right_id(fields: Fields) -> deletion_requests.RightId:
    hint = "Type the person's id as your own books have it."
    named: deletion_requests.RightId = filled(deletion_requests.RightId, hint, subject_id=field(fields, "subject_id"))
    return named


def _policy(fields: Fields) -> lifecycle.PolicyChange:
    """Return the fields of the policy that were sent. An empty one is none, where the policy allows that."""
    sent = {each: field(fields, each) for each in CHANGEABLE if each in fields}
    try:
        return lifecycle.PolicyChange(**{each: _value(each, text) for each, text in sent.items()})
    except ValidationError:
        raise ApiProblem(422, "form_incomplete", "A value cannot be used. Nothing was changed.") from None


def _value(name: str, text: str) -> str | int | float | None:
    if not text or name in CHOICES:
        return text or None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ApiProblem(422, "form_incomplete", f"{name} is a number. Nothing was changed.") from None


def _cost(visit: PageContext, name: str) -> str:
    """Write what a retrain takes and what it serves."""
    with visit.service.database.read() as session:
        row = model_row(session, find_model(session, visit.caller.tenant_id, name))
    seconds = measured_seconds(row.generation) if row.generation else None
    took = "no training of this model was timed yet" if seconds is None else f"the last training took {span(seconds)}"
    serves = {0: "No request waits for it.", 1: "It serves the request that waits, too."}
    return (
        f"The model is trained again on what its recipe gives now, without anyone who asked to be forgotten: {took}. "
        f"{serves.get(row.waiting, f'It serves the {row.waiting:,} requests that wait, too.')} The current version is "
        "served until the new one is ready. The new generation begins a new budget."
    )


@dataclass(frozen=True)
class Act:
    """Something that a button does.

    Args:
        label: what is on the button.
        route: the route of the API that carries it out, and whose scopes it takes.
        back: the address that it leads back to, with the arguments in place.
        done: what the page says afterwards; empty: it shows the key that was made.
        warning: what cannot be undone, asked before; empty: it is done at once.
        question: what the act answers, on the page of a decision; empty: it answers none.
        body: makes the route's body from the form.
    """

    label: str
    route: Callable[..., Any]
    back: str
    done: str
    warning: str | Callable[[PageContext, str], str] = ""
    question: str = ""
    body: Callable[[Fields], BaseModel] | None = None


_REQUEST, _MODEL = "/console/requests/{request_id}", "/console/models/{name}"
_FROM_PERSON = "Does this request come from the person?"
_SPELLED = "Is the id of this request written otherwise in your books?"
ACTS = {
    "verify": Act(
        "Verify and continue",
        deletion_requests.verify,
        _REQUEST,
        "Verified. The request continues as shown below.",
        "You confirm that the request comes from the person it names. Each model that holds data of this person then "
        "deletes them. A deletion that a worker has begun cannot be undone.",
        _FROM_PERSON,
    ),
    "reject": Act(
        "Reject the request",
        deletion_requests.reject,
        _REQUEST,
        "Rejected. The request has changed no model.",
        "The request ends, no model changes, and the request cannot be opened again. The reason is stored and "
        "is in the letter to the person. It must not name a person.",
        _FROM_PERSON,
        _why,
    ),
    "same-person": Act(
        "Name the right id",
        deletion_requests.say_same,
        _REQUEST,
        "Named. The request continues as shown below.",
        "You confirm that the request's id is another spelling of this one. Each model that holds data of this person "
        "then deletes them. A deletion that a worker has begun cannot be undone.",
        _SPELLED,
        _right_id,
    ),
    "other-person": Act(
        "It is right as it is written",
        deletion_requests.say_other,
        _REQUEST,
        "Noted. The request continues with its id as it is written.",
        "You confirm that those with nearly the same id are other people. Where no model holds data under the id as it "
        "is written, the request ends.",
        _SPELLED,
    ),
    "approve": Act(
        "Approve",
        deletion_requests.approve_large,
        _REQUEST,
        "Approved. The request is in the queue.",
        "The models delete all these samples. A deletion that a worker has begun cannot be undone.",
        "Should the models delete so many samples at once?",
    ),
    "retry": Act("Retry", deletion_requests.retry_request, _REQUEST, "Retried. The request is in the queue again."),
    "cancel": Act(
        "Cancel the request",
        deletion_requests.withdraw,
        _REQUEST,
        "Cancelled. The person stays in the models.",
        "The request ends, the person stays in the models, and a cancelled request cannot be opened again.",
    ),
    "extend": Act(
        "Extend the deadline",
        deletion_requests.prolong,
        _REQUEST,
        "Extended. The new deadline is below.",
        "The law allows one extension, and wants the person to be informed of it and of its reasons within the first "
        "deadline. It is on record and cannot be taken back.",
    ),
    "lift": Act(
        "Lift the hold",
        holds.lift_hold,
        "/console/holds",
        "Lifted. Requests that it blocked are in the queue again.",
        "Requests that this hold blocks continue at once and delete what it kept. That cannot be undone.",
    ),
    "retrain": Act(
        "Retrain now",
        retrains.retrain,
        _MODEL,
        "A retrain is planned. A worker begins with it soon.",
        _cost,
        body=lambda _: retrains.RetrainOrder(),
    ),
    "dry-run": Act(
        "Count what a retrain would change",
        retrains.retrain,
        _MODEL,
        "Counting. The result is shown here in a moment. Nothing is trained.",
        body=lambda _: retrains.RetrainOrder(dry_run=True),
    ),
    "port": Act(
        "Port the model",
        retrains.port,
        _MODEL,
        "A port is planned. A worker begins with it soon.",
        "The model is trained on the rows of its recipe, without anyone who asked to be forgotten. Requests that wait "
        "end with it. The current version is served until the new one is ready; its accuracy is not compared with the "
        "new one's, which other people measure. `expunge models port NAME --dry-run` counts the people first.",
        body=lambda _: retrains.PortOrder(),
    ),
    "cancel-preparation": Act(
        "Cancel the preparation",
        lifecycle.retire_model,
        "/",
        "Cancelled. The name is free again.",
        "What was built so far is destroyed and the name is free again. Requests that waited for this model continue "
        "without it.",
    ),
    "publish": Act(
        "Publish anyway",
        lifecycle.publish_withheld,
        _MODEL,
        "It is trained once more, and published at any accuracy.",
        "A plain training is more accurate by more than the policy allows. Later updates keep the gate.",
    ),
    "retire": Act(
        "Retire the model",
        lifecycle.retire_model,
        _MODEL,
        "Retired. No version of it is served any more.",
        "No version is served any more, its requests end with it, and its state and keys are destroyed. A retired "
        "model cannot be brought back. Copies that were downloaded are not reached.",
    ),
    "policy": Act(
        "Change the policy",
        lifecycle.policy,
        _MODEL,
        "Changed. Requests that may continue are in the queue.",
        body=_policy,
    ),
    "remove-consumer": Act(
        "Remove the consumer",
        consumers.remove,
        _MODEL,
        "Removed. No request waits for this consumer any more.",
        "Do this only if the consumer serves the model no more. Requests that wait for it are completed, although a "
        "consumer that is still there may still serve people who were deleted.",
    ),
    "revoke": Act(
        "Revoke the key",
        keys.revoke,
        "/console/keys",
        "Revoked. The key opens nothing any more.",
        "Everything that uses this key is refused from now on. It cannot be undone; if it is the key of your session, "
        "you are logged out.",
    ),
    "rotate": Act(
        "Replace the key",
        keys.rotate,
        "/console/keys",
        "",
        "A new key with the same scopes is made and shown once. The old one works for another day.",
    ),
    "disable": Act(
        "Disable the endpoint",
        webhooks.remove,
        "/console/webhooks",
        "Disabled. Nothing more is sent to this endpoint.",
        "Nothing more is sent to this endpoint, what waits included. It cannot be enabled again: add it a second time.",
    ),
    "send-again": Act(
        "Send again",
        webhooks.send_again,
        "/console/webhooks/{endpoint_id}",
        "It is sent again within seconds, under the same id.",
    ),
    "test": Act(
        "Send a test",
        webhooks.test,
        "/console/webhooks/{endpoint_id}",
        "A test was made. It is sent within seconds; the list below says what came of it.",
    ),
}


@router.post("/console/act")
def act(visit: Visitor, fields: Form) -> Response:
    """Carry out what the form names, and lead back; where it cannot be undone and is not confirmed yet, ask first."""
    chosen = ACTS.get(field(fields, "act"))
    if chosen is None:
        raise not_found("page")
    arguments = _arguments(chosen.route, fields)
    back = chosen.back.format(**arguments)
    asked = f"{back}/decide" if chosen.question else ""
    visit.request.state.back = asked or back
    require_scopes_of(chosen.route, visit.caller)
    visit.check_form(fields)
    body = {} if chosen.body is None else {"body": chosen.body(fields)}
    if chosen.warning and field(fields, "sure") != "yes":
        warning = chosen.warning if isinstance(chosen.warning, str) else chosen.warning(visit, arguments["name"])
        return visit.ask(chosen.label, warning, fields, asked or back, question=chosen.question)
    # the state that a form was made in, where what it does would be another thing in another state
    state = field(fields, "state") if "state" in fields else None
    made = visit.call(chosen.route, state, **arguments, **body)
    return visit.lead(back, chosen.done) if chosen.done else visit.lead_to_secret("API key", made.key, back)


def _arguments(route: Callable[..., Any], fields: Fields) -> dict[str, str]:
    """Return what the route acts on. Raises ApiProblem (404) where the form does not say it, or not in its form."""
    wanted = _ARGUMENTS.keys() & inspect.signature(route).parameters
    try:
        return {name: _ARGUMENTS[name].validate_python(field(fields, name)) for name in wanted}
    except ValidationError:
        raise not_found("page") from None
