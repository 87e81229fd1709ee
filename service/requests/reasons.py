"""The reasons why a request, or one model's part of it, waits or ended: what happened, what to do, who can do it.

docs/reasons.md is made from this table by ``python -m tests.docs.reasons``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from service.access.api_keys import Scope
from service.access.roles import KeyRole


class Role(StrEnum):
    """The people who run an installation. ``key`` is the role of the key that each of them works with."""

    key: KeyRole

    def __new__(cls, name: str, key: KeyRole) -> Role:
        role = str.__new__(cls, name)
        role._value_ = name
        role.key = key
        return role

    OPERATOR = ("operator", KeyRole.OPERATOR)
    PRIVACY_OFFICER = ("privacy officer", KeyRole.PRIVACY)
    ML_ENGINEER = ("ML engineer", KeyRole.OPERATOR)


@dataclass(frozen=True)
class WayOut:
    """A step that a caller can take about a reason: one call, and the command that makes the same call.

    ``{request}``, ``{model}`` and ``{hold}`` are replaced by ids, words in capitals by the caller's own values.

    Args:
        verb: names the step in one word.
        method, path: the call.
        command: the command.
        scopes: what the key must hold: at least one of each group.
        body: the call's JSON; None: it has none.
    """

    verb: str
    method: str
    path: str
    command: str
    scopes: tuple[tuple[Scope, ...], ...]
    body: Mapping[str, Any] | None = None

    def filled(self, ids: Mapping[str, Sequence[str]]) -> list[WayOut]:
        """Return the step once for each id of its kind; once with the kind in capitals where none is known."""
        steps = [self]
        for kind, values in ids.items():
            slot = f"{{{kind}}}"
            if slot in self.path + self.command:
                steps = [
                    replace(step, path=step.path.replace(slot, value), command=step.command.replace(slot, value))
                    for step in steps
                    for value in values or [kind.upper()]
                ]
        return steps


_DECIDE = ((Scope.DELETIONS_DECIDE,), (Scope.DELETIONS_READ,))
_HOLD = ((Scope.DELETIONS_DECIDE,),)
_ADMIN = ((Scope.MODELS_ADMIN,),)
_REQUEST, _MODEL = "/v1/deletion-requests/{request}", "/v1/models/{model}"


def _policy(field: str, value: str) -> WayOut:
    """Return the step that sets a field of the model's policy."""
    command = f"expunge models policy {{model}} --{field.replace('_', '-')} {value}"
    return WayOut("policy", "PATCH", f"{_MODEL}/policy", command, _ADMIN, {field: value})


VERIFY = WayOut("verify", "POST", f"{_REQUEST}/verify", "expunge requests verify {request}", _DECIDE)
REJECT = WayOut(
    "reject",
    "POST",
    f"{_REQUEST}/reject",
    "expunge requests reject {request} --reason TEXT",
    _DECIDE,
    {"reason": "TEXT"},
)
CANCEL = WayOut(
    "cancel",
    "DELETE",
    _REQUEST,
    "expunge requests cancel {request}",
    ((Scope.DELETIONS_WRITE,), (Scope.DELETIONS_READ,)),
)
APPROVE = WayOut("approve", "POST", f"{_REQUEST}/approve", "expunge requests approve {request}", _DECIDE)
RETRY = WayOut(
    "retry",
    "POST",
    f"{_REQUEST}/retry",
    "expunge requests retry {request}",
    ((Scope.MODELS_ADMIN, Scope.DELETIONS_DECIDE),),
)
OPEN_HOLD = WayOut("open", "GET", "/v1/holds/{hold}", "expunge holds show {hold}", _HOLD)
LIFT = WayOut("lift", "DELETE", "/v1/holds/{hold}", "expunge holds lift {hold}", _HOLD)
NAME_THE_PERSON = WayOut(
    "delete",
    "POST",
    "/v1/deletion-requests",
    "expunge delete --subject ID",
    ((Scope.DELETIONS_WRITE,),),
    {"subject_id": "ID"},
)
WATCH = WayOut("watch", "GET", f"{_MODEL}/preparation", "expunge models show {model}", ((Scope.MODELS_READ,),))
CONSUMERS = WayOut("consumers", "GET", f"{_MODEL}/consumers", "expunge consumers list {model}", ((Scope.MODELS_READ,),))
REMOVE_CONSUMER = WayOut(
    "remove", "DELETE", f"{_MODEL}/consumers/CONSUMER", "expunge consumers remove {model} CONSUMER", _ADMIN
)
RETRAIN = WayOut("retrain", "POST", f"{_MODEL}/retrains", "expunge models retrain {model} --new-data", _ADMIN, {})
RETRAIN_BY_POLICY, FALL_BACK = _policy("on_exhausted", "retrain"), _policy("fallback", "retrain")
TOLERATE = _policy("utility_tolerance", "NUMBER")
RETIRE = WayOut("retire", "POST", f"{_MODEL}/retire", "expunge models retire {model}", _ADMIN)
STOP_PREPARATION = WayOut("cancel", "POST", f"{_MODEL}/cancel", "expunge models cancel {model}", _ADMIN)
REGISTER = WayOut(
    "register",
    "POST",
    "/v1/models",
    "expunge models add {model} --recipe RECIPE",
    _ADMIN,
    {"name": "MODEL", "recipe": "RECIPE"},
)


@dataclass(frozen=True)
class Remedy:
    """What to do about a reason, in a sentence, who does it, and the steps that do it."""

    action: str
    by: Role
    steps: tuple[WayOut, ...]


_IN_PLACE = "Train the model again now, or set its policy to fallback: retrain, which does so for all such requests."


def _in_place(*more: WayOut, first: str = "") -> Remedy:
    """Return the remedy where a retrain serves the request under the model's name."""
    return Remedy(f"{first}{_IN_PLACE}", Role.ML_ENGINEER, (RETRAIN, FALL_BACK, *more))


def _retry(action: str, by: Role = Role.OPERATOR, *more: WayOut) -> Remedy:
    return Remedy(action, by, (RETRY, *more))


class Reason(StrEnum):
    """The code that the tables, the log and the API hold. ``remedy`` is None where nothing is left to do."""

    sentence: str
    remedy: Remedy | None

    def __new__(cls, code: str, sentence: str = "", remedy: Remedy | None = None) -> Reason:
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.sentence, reason.remedy = sentence, remedy
        return reason

    # a person has to decide
    UNVERIFIED = (
        "unverified",
        "Nobody has confirmed yet that the request comes from the person it names.",
        Remedy(
            "Verify the request, or reject it and tell the person why.",
            Role.PRIVACY_OFFICER,
            (VERIFY, REJECT),
        ),
    )
    LARGE = (
        "large",
        "The request removes unusually many samples and waits for an approval.",
        Remedy(
            "Approve it, or cancel it. It continues without you when its waiting time is over.",
            Role.PRIVACY_OFFICER,
            (APPROVE, CANCEL),
        ),
    )
    LEGAL_HOLD = (
        "legal_hold",
        "A legal hold keeps this person's samples.",
        Remedy(
            "Open the hold, and lift it when its legal reason is gone. The request then continues without a retry.",
            Role.PRIVACY_OFFICER,
            (OPEN_HOLD, LIFT),
        ),
    )
    PARTIAL_SUBJECT = (
        "partial_subject",
        "The request names some of a person's samples, and this model forgets whole people only.",
        Remedy(
            "Send a new request that names the person (subject_id), and retry this one when that one is completed. "
            "Or let the ML engineer train the model again.",
            Role.PRIVACY_OFFICER,
            (NAME_THE_PERSON, RETRY, RETRAIN, FALL_BACK),
        ),
    )

    # it continues without anyone's help
    AWAITING_RETRAIN = (
        "awaiting_retrain",
        "The model's method cannot remove these samples. A retraining is planned or under way.",
        Remedy(
            "Wait. The preparation of the model shows how far the retraining is.",
            Role.OPERATOR,
            (WATCH,),
        ),
    )
    AWAITING_OTHERS = (
        "awaiting_others",
        "Removing these samples repeats the whole training. It waits for more requests of that kind.",
        _retry("Wait until scheduled_at, or retry to have it done at once."),
    )
    AWAITING_CONSUMERS = (
        "awaiting_consumers",
        "A version without these samples is published, but a consumer still serves an older one.",
        Remedy(
            "Move the consumer to the current version, or remove it if it no longer exists.",
            Role.OPERATOR,
            (CONSUMERS, REMOVE_CONSUMER),
        ),
    )

    # the model's method or its policy does not allow an update
    BUDGET_EXHAUSTED = (
        "budget_exhausted",
        "The model's privacy budget does not allow another update.",
        Remedy(
            "Train the model again now: the retrain forgets who waits and begins a new budget. Or change the policy "
            "to on_exhausted: retrain, which does so each time.",
            Role.ML_ENGINEER,
            (RETRAIN, RETRAIN_BY_POLICY),
        ),
    )
    BEYOND_CALIBRATION = (
        "beyond_calibration",
        "More people asked to be forgotten than the model's calibration covers.",
        _in_place(),
    )
    CAP_NOT_REACHED = (
        "cap_not_reached",
        "The update could not bring the weights within max_distance of a retraining.",
        _in_place(RETRY, first="Retry if many were forgotten at once. "),
    )
    METHOD_REFUSED = (
        "method_refused",
        "The method cannot forget these samples.",
        _in_place(RETRY, first="Retry if many were forgotten at once. "),
    )
    WEIGHTS_NOT_FINITE = (
        "weights_not_finite",
        "The update gave weights that are not finite numbers. Nothing was published.",
        _in_place(RETRY, first="Retry if many were forgotten at once. "),
    )
    VECTORS_MISSING = (
        "vectors_missing",
        "The stored vectors of some people, which the method needs, are missing.",
        _in_place(),
    )
    NOBODY_LEFT = (
        "nobody_left",
        "No training sample would be left in the model.",
        Remedy("Retire the model. It cannot be trained on nobody.", Role.ML_ENGINEER, (RETIRE,)),
    )
    UTILITY_GATE = (
        "utility_gate",
        "The new version's accuracy on the holdout fell by more than the policy allows. It was not published.",
        _retry(
            "Retry: the next draw of the noise may pass, and each draw is charged to the budget. If it fails again, "
            "train the model again, or allow a larger utility_tolerance and retry.",
            Role.ML_ENGINEER,
            RETRAIN,
            TOLERATE,
        ),
    )

    # something on the worker has to be repaired
    ENVIRONMENT_CHANGED = (
        "environment_changed",
        "The worker's software or device is not the one that the model was prepared with.",
        _retry(
            "Start a worker with that software and device (expunge doctor says what differs), then retry. Or train the "
            "model again.",
            Role.OPERATOR,
            RETRAIN,
        ),
    )
    RECIPE_CHANGED = (
        "recipe_changed",
        "The recipe's code or settings are not those that the model was registered with.",
        _retry("Put the registered code and settings back, then retry.", Role.ML_ENGINEER),
    )
    RECIPE_REFUSED = (
        "recipe_refused",
        "The recipe does not run any more.",
        _retry("Read the worker's log, repair what the recipe needs, then retry.", Role.ML_ENGINEER),
    )
    SAMPLES_CHANGED = (
        "samples_changed",
        "The recipe gives other samples than at registration.",
        _retry(
            "Put the registered data back, then retry. Or train on the new data: that serves the request too.",
            Role.ML_ENGINEER,
            RETRAIN,
        ),
    )
    STATE_DAMAGED = (
        "state_damaged",
        "The model's encrypted state cannot be read.",
        _retry("Put the file back into EXPUNGE_PRIVATE_STORE, then retry. Or train again.", Role.OPERATOR, RETRAIN),
    )
    STATE_FORMAT_UNKNOWN = (
        "state_format_unknown",
        "The model's encrypted state was written by another version of Expunge.",
        _retry("Start a worker of that version of Expunge, then retry. Or train again.", Role.OPERATOR, RETRAIN),
    )
    WORKER_LOST = (
        "worker_lost",
        "The worker crashed three times on this request.",
        _retry("Check the worker's log and its memory, then retry."),
    )
    FAILED = (
        "failed",
        "Three attempts ended with an error.",
        _retry("Remove the cause of the error, which the code names with its place, then retry."),
    )
    RETRAIN_REFUSED = (
        "retrain_refused",
        "The retraining was refused. The model's reason says why.",
        _retry("Repair what the model's reason names, then retry: that plans another retraining.", Role.ML_ENGINEER),
    )

    # it ended, and nothing is left to do
    NO_MATCH = ("no_match", "No model was trained on this person.")
    IN_HOLDOUT = ("in_holdout", "The person is only in the holdout, which no model is trained on.")
    IN_HOLDOUT_READ = (
        "in_holdout_read",
        "The person is only in the holdout, which the recipe's own training could read.",
    )
    ALREADY_FORGOTTEN = ("already_forgotten", "An earlier request removed these samples.")
    LEFT_OUT = ("left_out", "The samples were left out of the training.")
    MODEL_REFUSED = ("model_refused", "The model was refused at registration and was never published.")
    MODEL_CANCELLED = ("model_cancelled", "The model's preparation was cancelled. It was never published.")
    MODEL_RETIRED = ("model_retired", "The model is retired. No version of it is served.")

    @property
    def steps(self) -> tuple[WayOut, ...]:
        """Return the steps of the remedy; none where nothing is left to do."""
        return () if self.remedy is None else self.remedy.steps

    @property
    def retry_helps(self) -> bool:
        return RETRY in self.steps


def reason_of(code: str) -> Reason | None:
    """Return the reason of a stored code; None where this version of the software does not know the code.

    ``failed:KeyError at digits.py:41`` names the error's type and place behind its code.
    """
    try:
        return Reason(code.partition(":")[0])
    except ValueError:
        return None


def explain(code: str | None, request_id: str, models: Sequence[str] = (), holds: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``reason``, ``title``, ``remedy`` and ``actions`` of a stored code as JSON, for the API and for webhooks.

    A code that this version of the software does not know is its own title.

    Args:
        code: the stored code; None: there is no reason.
        request_id: the request that has it.
        models: the names of the models whose part of the request has it.
        holds: the ids of the legal holds that keep samples of the request.
    """
    reason = None if code is None else reason_of(code)
    if reason is None:
        return {"reason": code, "title": code, "remedy": None, "actions": []}
    remedy = None if reason.remedy is None else {"action": reason.remedy.action, "by": reason.remedy.by}
    _, _, error = (code or "").partition(":")
    title = f"{reason.sentence[:-1]}: {error}." if error else reason.sentence
    steps = actions(reason.steps, request=[request_id], model=models, hold=holds)
    return {"reason": code, "title": title, "remedy": remedy, "actions": steps}


def actions(steps: Iterable[WayOut], **ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps as JSON with these ids filled in: ``request``, ``model``, ``hold``."""
    return [asdict(filled) for step in steps for filled in step.filled(ids)]


NOT_FOR_AN_UPDATE = (Reason.AWAITING_RETRAIN, Reason.AWAITING_CONSUMERS)
"""of tasks that no update can serve"""
