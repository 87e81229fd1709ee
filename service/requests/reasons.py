"""The reasons why a request, or one model's part of it, waits or ended: what happened, what to do, who can do it.

docs/reasons.md is made from this table by ``python -m tests.docs.reasons``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """The people who run an installation."""

    OPERATOR = "operator"
    PRIVACY_OFFICER = "privacy officer"
    ML_ENGINEER = "ML engineer"


@dataclass(frozen=True)
class Remedy:
    """What to do about a reason. ``{id}`` in ``call`` and ``command`` is the request's id."""

    action: str
    by: Role
    call: str | None = None
    command: str | None = None


_RETRY = ("POST /v1/deletion-requests/{id}/retry", "expunge requests retry {id}")
_REGISTER = ("POST /v1/models", "expunge models add NAME --recipe RECIPE")
_NEW_MODEL = "Register the recipe under a new name with on_suppressed: leave_out"


def _retry(action: str, by: Role = Role.OPERATOR) -> Remedy:
    return Remedy(action, by, *_RETRY)


def _register(action: str) -> Remedy:
    return Remedy(action, Role.ML_ENGINEER, *_REGISTER)


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
            "POST /v1/deletion-requests/{id}/verify; POST /v1/deletion-requests/{id}/reject",
            "expunge requests verify {id}; expunge requests reject {id} --reason TEXT",
        ),
    )
    LARGE = (
        "large",
        "The request removes unusually many samples and waits for an approval.",
        _retry(
            "Approve it by retrying it, or cancel it. It continues without you when its waiting time is over.",
            Role.PRIVACY_OFFICER,
        ),
    )
    LEGAL_HOLD = (
        "legal_hold",
        "A legal hold keeps this person's samples.",
        Remedy(
            "Lift the hold when the legal reason is gone. The request then continues without a retry.",
            Role.PRIVACY_OFFICER,
            "DELETE /v1/holds/HOLD",
            "expunge holds lift HOLD",
        ),
    )
    PARTIAL_SUBJECT = (
        "partial_subject",
        "The request names some of a person's samples, and this model forgets whole people only.",
        Remedy(
            "Send a new request that names the person (subject_id).",
            Role.PRIVACY_OFFICER,
            "POST /v1/deletion-requests",
            "expunge delete --subject ID",
        ),
    )

    # it continues without anyone's help
    AWAITING_RETRAIN = (
        "awaiting_retrain",
        "The model's method cannot remove these samples. A retraining is planned or under way.",
        Remedy(
            "Wait. The preparation of the model shows how far the retraining is.",
            Role.OPERATOR,
            "GET /v1/models/NAME/preparation",
            "expunge models show NAME",
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
            "GET /v1/models/NAME/consumers; DELETE /v1/models/NAME/consumers/CONSUMER",
            "expunge consumers list NAME; expunge consumers remove NAME CONSUMER",
        ),
    )

    # the model's method or its policy does not allow an update
    BUDGET_EXHAUSTED = (
        "budget_exhausted",
        "The model's privacy budget does not allow another update.",
        _register(f"Train the model again. {_NEW_MODEL}; the new model begins a new budget."),
    )
    BEYOND_CALIBRATION = (
        "beyond_calibration",
        "More people asked to be forgotten than the model's calibration covers.",
        _register(f"{_NEW_MODEL} and larger calibration sizes, or with fallback: retrain."),
    )
    CAP_NOT_REACHED = (
        "cap_not_reached",
        "The update could not bring the weights within max_distance of a retraining.",
        _register(f"{_NEW_MODEL} and a larger max_distance, or with fallback: retrain."),
    )
    METHOD_REFUSED = (
        "method_refused",
        "The method cannot forget these samples.",
        _register(f"{_NEW_MODEL} and another method, or with fallback: retrain."),
    )
    WEIGHTS_NOT_FINITE = (
        "weights_not_finite",
        "The update gave weights that are not finite numbers. Nothing was published.",
        _register(f"{_NEW_MODEL} and other method options, or with fallback: retrain."),
    )
    VECTORS_MISSING = (
        "vectors_missing",
        "The stored vectors of some people, which the method needs, are missing.",
        _register(f"{_NEW_MODEL}."),
    )
    NOBODY_LEFT = (
        "nobody_left",
        "No training sample would be left in the model.",
        Remedy("Stop serving the model. It cannot be trained on nobody.", Role.ML_ENGINEER),
    )
    UTILITY_GATE = (
        "utility_gate",
        "The new version's accuracy on the holdout fell by more than the policy allows. It was not published.",
        _retry(
            "Retry: the next draw of the noise may pass, and each draw is charged to the budget. If it fails again, "
            "register the recipe under a new name with a larger utility_tolerance.",
            Role.ML_ENGINEER,
        ),
    )

    # something on the worker has to be repaired
    ENVIRONMENT_CHANGED = (
        "environment_changed",
        "The worker's software or device is not the one that the model was prepared with.",
        _retry("Start a worker with that software and device (expunge doctor says what differs), then retry."),
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
            "Put the registered data back, then retry. Or train on the new data: expunge models retrain NAME "
            "--new-data. That serves the request too.",
            Role.ML_ENGINEER,
        ),
    )
    STATE_DAMAGED = (
        "state_damaged",
        "The model's encrypted state cannot be read.",
        _retry("Put the file back into EXPUNGE_PRIVATE_STORE, then retry."),
    )
    STATE_FORMAT_UNKNOWN = (
        "state_format_unknown",
        "The model's encrypted state was written by another version of Expunge.",
        _retry("Start a worker of that version of Expunge, then retry."),
    )
    WORKER_LOST = (
        "worker_lost",
        "The worker crashed three times on this request.",
        _retry("Check the worker's log and its memory, then retry."),
    )
    FAILED = (
        "failed",
        "Three attempts ended with an error.",
        _retry("Read the worker's log for the error's place, remove its cause, then retry."),
    )
    RETRAIN_REFUSED = (
        "retrain_refused",
        "The retraining was refused. The model's reason says why.",
        _retry("Repair what the model's reason names, then retry: that plans another retraining.", Role.ML_ENGINEER),
    )

    # it ended, and nothing is left to do
    NO_MATCH = ("no_match", "No model was trained on this person.")
    IN_HOLDOUT = ("in_holdout", "The person is only in the holdout, which no model is trained on.")
    ALREADY_FORGOTTEN = ("already_forgotten", "An earlier request removed these samples.")
    LEFT_OUT = ("left_out", "The samples were left out of the training.")
    MODEL_REFUSED = ("model_refused", "The model was refused at registration and was never published.")
    MODEL_RETIRED = ("model_retired", "The model is retired. No version of it is served.")

    @property
    def retry_helps(self) -> bool:
        return self.remedy is not None and self.remedy.command == _RETRY[1]


def reason_of(code: str) -> Reason | None:
    """Return the reason of a stored code; None where this version of the software does not know the code.

    ``failed:KeyError`` names the error's type behind its code.
    """
    try:
        return Reason(code.partition(":")[0])
    except ValueError:
        return None


def explain(code: str | None, request_id: str) -> dict[str, Any]:
    """Return ``reason``, ``title`` and ``remedy`` of a stored code as JSON, for the API and for webhooks.

    A code that this version of the software does not know is its own title.
    """
    reason = None if code is None else reason_of(code)
    if reason is None:
        return {"reason": code, "title": code, "remedy": None}
    remedy = None if reason.remedy is None else asdict(reason.remedy)
    filled = remedy and {name: text and text.replace("{id}", request_id) for name, text in remedy.items()}
    return {"reason": code, "title": reason.sentence, "remedy": filled}


NOT_FOR_AN_UPDATE = (Reason.AWAITING_RETRAIN, Reason.AWAITING_CONSUMERS)
"""of tasks that no update can serve"""
