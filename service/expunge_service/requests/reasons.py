"""The reasons why a request, or a model's part of it, waits or ended: what happened, what to do, and the role for it.

API, page, terminal, doctor, alerts, log and letters take sentence and remedy from this table alone. docs/reasons.md is
made from it by ``python -m tests.docs.reasons``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from expunge_service.access import KeyRole, Scope


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

    ``{request}``, ``{model}``, ``{hold}`` and ``{earlier}`` (another request) are replaced by ids, words in capitals by
    the caller's own values.

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
        calls = [(self.path, self.command)]
        for kind, values in ids.items():
            slot = f"{{{kind}}}"
            if slot in self.path or slot in self.command:
                calls = [
                    (path.replace(slot, value), command.replace(slot, value))
                    for path, command in calls
                    for value in values or [kind.upper()]
                ]
        return [WayOut(self.verb, self.method, path, command, self.scopes, self.body) for path, command in calls]


_DECIDE = ((Scope.DELETIONS_DECIDE,), (Scope.DELETIONS_READ,))
_HOLD = ((Scope.DELETIONS_DECIDE,),)
_ADMIN = ((Scope.MODELS_ADMIN,),)
_REQUEST, _MODEL = "/v1/deletion-requests/{request}", "/v1/models/{model}"


def _policy(field: str, value: str) -> WayOut:
    """Return the step that sets a field of the model's policy."""
    command = f"expunge models policy {{model}} --set {field}={value}"
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
SAME_PERSON = WayOut(
    "same-person",
    "POST",
    f"{_REQUEST}/same-person",
    "expunge requests same-person {request} --subject RIGHT-ID",
    _DECIDE,
    {"subject_id": "RIGHT-ID"},
)
OTHER_PERSON = WayOut(
    "other-person", "POST", f"{_REQUEST}/other-person", "expunge requests other-person {request}", _DECIDE
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
    ((Scope.MODELS_ADMIN, Scope.DELETIONS_DECIDE), (Scope.DELETIONS_READ,)),
)
DO_IT_NOW = replace(RETRY, verb="hurry")
OPEN_HOLD = WayOut("open", "GET", "/v1/holds/{hold}", "expunge holds list {hold}", _HOLD)
LIFT = WayOut("lift", "DELETE", "/v1/holds/{hold}", "expunge holds lift {hold}", _HOLD)
NAME_THE_PERSON = WayOut(
    "delete",
    "POST",
    "/v1/deletion-requests",
    "expunge delete --subject ID",
    ((Scope.DELETIONS_WRITE,),),
    {"subject_id": "ID"},
)
SHOW_REQUEST = WayOut(
    "show",
    "GET",
    "/v1/deletion-requests/{earlier}",
    "expunge requests show {earlier}",
    ((Scope.DELETIONS_READ,),),
)
WATCH = WayOut("watch", "GET", _MODEL, "expunge models show {model}", ((Scope.MODELS_READ,),))
CONSUMERS = WayOut("consumers", "GET", f"{_MODEL}/consumers", "expunge models show {model}", ((Scope.MODELS_READ,),))
REMOVE_CONSUMER = WayOut(
    "remove", "DELETE", f"{_MODEL}/consumers/CONSUMER", "expunge models remove-consumer {model} CONSUMER", _ADMIN
)
RETRAIN = WayOut("retrain", "POST", f"{_MODEL}/retrains", "expunge models retrain {model}", _ADMIN, {})
PORT = WayOut("port", "POST", f"{_MODEL}/port", "expunge models port {model}", _ADMIN, {})
FALL_BACK = _policy("fallback", "retrain")
TOLERATE = _policy("max_accuracy_drop", "NUMBER")
RETIRE = WayOut("retire", "POST", f"{_MODEL}/retire", "expunge models retire {model}", _ADMIN)
PUBLISH = WayOut("publish", "POST", f"{_MODEL}/publish", "expunge models retrain {model}", _ADMIN)
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
    """What to do about a reason, in a sentence, the role that does it, and the steps that do it."""

    action: str
    by: Role
    steps: tuple[WayOut, ...]


class NamedValue(NamedTuple):
    """A value that a sentence may name: ``scope`` is the right to see it, ``pattern`` is what it must look like.

    ``also``: another right that it takes; None: no other.
    """

    scope: Scope
    pattern: str
    also: Scope | None = None

    def may_name(self, value: str, scopes: Collection[str]) -> bool:
        """Return whether a caller with these scopes may see the value, and it looks as it must."""
        seen = self.scope in scopes and (self.also is None or self.also in scopes)
        return seen and re.fullmatch(self.pattern, value) is not None


_COUNT, _SEEN_BY_MODELS = r"\d{1,18}", Scope.MODELS_READ
SLOTS: dict[str, NamedValue] = {
    "samples": NamedValue(Scope.DELETIONS_READ, _COUNT),
    "limit": NamedValue(Scope.DELETIONS_READ, _COUNT),
    "searched": NamedValue(Scope.DELETIONS_READ, _COUNT),
    "time": NamedValue(Scope.DELETIONS_READ, r"[\w: ]{1,40}"),
    "done_by": NamedValue(Scope.DELETIONS_READ, r"[\w ]{1,40}"),
    "earlier": NamedValue(Scope.DELETIONS_READ, r"[0-9a-f]{32}"),
    "elsewhere": NamedValue(Scope.PEOPLE_SEARCH, r"[\w, -]{1,400}"),
    "near": NamedValue(Scope.PEOPLE_SEARCH, _COUNT, Scope.DELETIONS_DECIDE),
    "differs": NamedValue(Scope.PEOPLE_SEARCH, r"[a-zA-Z ,-]{1,400}", Scope.DELETIONS_DECIDE),
    "consumer": NamedValue(_SEEN_BY_MODELS, r"[\w.-]{1,63}"),
    "version": NamedValue(_SEEN_BY_MODELS, _COUNT),
    "served": NamedValue(_SEEN_BY_MODELS, _COUNT),
    "people": NamedValue(_SEEN_BY_MODELS, _COUNT),
    "method": NamedValue(_SEEN_BY_MODELS, r"[a-z_]{1,32}"),
    "detail": NamedValue(_SEEN_BY_MODELS, r"[^\d\n]{1,300}"),
    "points": NamedValue(_SEEN_BY_MODELS, r"[\d.e+-]{1,12}"),
    "runs": NamedValue(_SEEN_BY_MODELS, "two runs of this training differ"),
    "here": NamedValue(_SEEN_BY_MODELS, r"[\w.+ -]{1,60}"),
    "prepared": NamedValue(_SEEN_BY_MODELS, r"[\w.+ -]{1,60}"),
    "needs": NamedValue(_SEEN_BY_MODELS, r"[\w. -]{1,60}"),
    "error": NamedValue(_SEEN_BY_MODELS, r"[A-Za-z_]\w{0,79}"),
    "file": NamedValue(_SEEN_BY_MODELS, r"[\w.<>-]{1,80}"),
    "line": NamedValue(_SEEN_BY_MODELS, _COUNT),
    "lacking": NamedValue(_SEEN_BY_MODELS, _COUNT),
    "table": NamedValue(_SEEN_BY_MODELS, r"[a-z_]{1,32}"),
}
"""The values that sentences and remedies may name; any other is left out. An error is its type, never its message."""


class Cause(StrEnum):
    """Why a reason applies, where one reason has several sentences. It is stored among the facts as ``cause``."""

    BEYOND_CALIBRATION = "beyond_calibration"
    CAP_NOT_REACHED = "cap_not_reached"
    VECTORS_MISSING = "vectors_missing"
    METHOD_REFUSED = "method_refused"
    WEIGHTS_NOT_FINITE = "weights_not_finite"
    OUR_FAULT = "our_fault"
    PACKAGES_REPLACED = "packages_replaced"
    ENGINE_DIFFERS = "engine_differs"
    RECIPE_RAISED = "recipe_raised"
    RECIPE_REFUSED = "recipe_refused"
    FORMAT = "format"
    WORKER_LOST = "worker_lost"
    OVERWRITTEN = "overwritten"
    THIS_MODEL = "this_model"
    SPELLING = "spelling"
    TWINS = "twins"
    DAMAGED = "damaged"
    SHAPE = "shape"
    COUNT = "count"
    HOLD = "hold"
    EXACTLY = "exactly"
    COMPARED = "compared"
    OTHER_PEOPLE = "other_people"


OPTIONAL = re.compile(r"\[([^\]|]*)(?:\|([^\]]*))?\]")


def filled(text: str, known: Mapping[str, str]) -> str:
    """Return a sentence with its values. ``[with {value}|without]`` is the first where all its values are known."""

    def choose(match: re.Match[str]) -> str:
        try:
            return match[1].format(**known)
        except KeyError:
            return match[2] or ""

    return OPTIONAL.sub(choose, text)


def values(facts: Mapping[str, Any] | None, scopes: Collection[str]) -> dict[str, str]:
    """Return those of the facts that a sentence may name to a caller with these scopes, as text."""
    known = {name: str(value).removesuffix(".") for name, value in (facts or {}).items() if name in SLOTS}
    return {name: value for name, value in known.items() if SLOTS[name].may_name(value, scopes)}


def stored(reason: str | None, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return those of the facts that ``reason`` may name, as a request or a task keeps them; None without any.

    They are stored under the reason, so that those of an earlier reason are never shown with a later one.
    """
    known = {name: value for name, value in facts.items() if name in SLOTS or name == "cause"}
    return {str(reason): known} if reason is not None and known else None


def _ml(action: str, *steps: WayOut) -> Remedy:
    return Remedy(action, Role.ML_ENGINEER, steps)


def _operator(action: str, *steps: WayOut) -> Remedy:
    return Remedy(action, Role.OPERATOR, steps)


def _officer(action: str, *steps: WayOut) -> Remedy:
    return Remedy(action, Role.PRIVACY_OFFICER, steps)


class Reason(StrEnum):
    """The code that the tables, the log and the API hold.

    ``sentence`` and the remedy's action are templates of ``filled``; ``by_cause`` has other sentences for some causes.
    ``remedy`` is None where no step is left; ``shows`` then has the steps that show more.
    """

    sentence: str
    remedy: Remedy | None
    by_cause: Mapping[Cause, str]
    shows: tuple[WayOut, ...]

    def __new__(
        cls,
        code: str,
        sentence: str = "",
        remedy: Remedy | None = None,
        by_cause: Mapping[Cause, str] | None = None,
        shows: tuple[WayOut, ...] = (),
    ) -> Reason:
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.sentence, reason.remedy, reason.by_cause, reason.shows = sentence, remedy, by_cause or {}, shows
        return reason

    # a person has to decide
    UNVERIFIED = (
        "unverified",
        "Not yet confirmed that this request comes from the person. Nothing is deleted until you decide.",
        _officer("Check the identity; verify the request, or reject it with a reason.", VERIFY, REJECT),
    )
    NEAR_MISS = (
        "near_miss",
        "Waits for a decision about the id[; people with nearly the same one: {near}; it differs in {differs}]. "
        "Nothing is deleted until you decide.",
        _officer(
            "Look the person up in your own books. If the id is written otherwise there, name that id; if not, say "
            "that it is another person.",
            SAME_PERSON,
            OTHER_PERSON,
        ),
        {
            Cause.DAMAGED: "The id looks damaged: a program wrote something else in its place. Nothing is deleted "
            "until you decide.",
            Cause.SHAPE: "No id of the models looks like this one. Nothing is deleted until you decide.",
            Cause.COUNT: "The models hold another number of samples under this id than the order expects. Nothing is "
            "deleted until you decide.",
            Cause.HOLD: "Waits for a decision about the id[; a legal hold is on one that differs in {differs}: if it "
            "is this person's, hold this id first]. Nothing is deleted until you decide.",
        },
    )
    LARGE = (
        "large",
        "This request removes [{samples} samples, more than {limit}|unusually many samples]. Without a decision it "
        "continues [on {time}|when its waiting time is over].",
        _officer("Look at it. Approve it, or cancel it.", APPROVE, CANCEL),
    )
    LEGAL_HOLD = (
        "legal_hold",
        "A legal hold protects this person's data.",
        _officer("Read the hold; lift it when its ground is gone. The request then continues.", OPEN_HOLD, LIFT),
    )
    PARTIAL_SUBJECT = (
        "partial_subject",
        "The request names single samples; this model can only delete whole people.",
        _ml(
            "Train again without these samples, or have the privacy officer ask for the whole person and retry.",
            RETRAIN,
            NAME_THE_PERSON,
            FALL_BACK,
            RETRY,
        ),
    )

    # it continues by itself
    AWAITING_RETRAIN = (
        "awaiting_retrain",
        "The model is being trained again without this person[, ready about {time}].",
        _operator("No action needed.", WATCH),
    )
    AWAITING_BATCH = (
        "awaiting_batch",
        "Waits for the model's next update[ on {time}], with all who wait[; it will be done by {done_by}].",
        _operator("No action needed. To do it now, retry.", DO_IT_NOW),
    )
    AWAITING_CONSUMERS = (
        "awaiting_consumers",
        "[Version {version} is out. {consumer} still serves version {served}.|A version without these samples is out. "
        "A consumer still serves an older one.]",
        _operator(
            "Move it to [version {version}|the current version], or remove it if it is gone.",
            CONSUMERS,
            REMOVE_CONSUMER,
        ),
    )

    # the model's method or its policy does not allow an update
    BUDGET_EXHAUSTED = (
        "budget_exhausted",
        "The model's privacy budget is used up.",
        _ml("Train again: this deletes all who wait and starts a new budget.", RETRAIN, FALL_BACK),
    )
    NEEDS_RETRAIN = (
        "needs_retrain",
        "This model's method cannot delete these samples.",
        _ml(
            "Train again, or always do so in such cases. A retry may help where many people left at once.",
            RETRAIN,
            FALL_BACK,
            RETRY,
        ),
        {
            Cause.BEYOND_CALIBRATION: "More people have left than the calibration covers[ ({people})].",
            Cause.CAP_NOT_REACHED: "The update ended too far from a retraining to be certified.",
            Cause.VECTORS_MISSING: "No stored vector for some of these people.",
            Cause.METHOD_REFUSED: "[{method}|The method] cannot delete these samples[: {detail}].",
            Cause.WEIGHTS_NOT_FINITE: "The update failed numerically; it was not published.",
        },
    )
    NO_DATA_LEFT = (
        "no_data_left",
        "This would leave the model without training data.",
        _ml("Retire the model.", RETIRE),
    )
    ACCURACY_DROP = (
        "accuracy_drop",
        "The new version is [more than {points} points less accurate, the policy's limit|less accurate than the policy "
        "allows]. Not published.",
        _ml(
            "Train again, allow more, or retry with new noise, which costs budget[; {runs}].",
            RETRAIN,
            TOLERATE,
            RETRY,
        ),
    )

    # something on the worker has to be repaired
    ENVIRONMENT_CHANGED = (
        "environment_changed",
        "[The worker has {here}; the model was prepared with {prepared}.|The worker's software or device is not the "
        "one that the model was prepared with.]",
        _operator("Start such a worker and retry, or train again.", RETRY, RETRAIN),
        {
            Cause.PACKAGES_REPLACED: "Packages were replaced under the running worker[, which had {here}]: restart it.",
            Cause.ENGINE_DIFFERS: "A machine of the cluster differs from its worker[, which has {here}]: run its image "
            "there.",
        },
    )
    NO_WORKER = (
        "no_worker",
        "No running worker takes this model[, which needs {needs}].",
        _operator("Start such a worker; the request then continues. Or train again.", RETRY, RETRAIN),
    )
    RECIPE_CHANGED = (
        "recipe_changed",
        "[{file}, or a module that it imports,|The recipe] differs from the one registered.",
        _ml(
            "Put it back and retry, or train again by the recipe as it is now.",
            RETRY,
            RETRAIN,
        ),
    )
    RECIPE_FORM = (
        "recipe_form",
        "The model was trained by a recipe that read its data by itself, which none does any more.",
        _ml(
            "Rewrite the recipe as docs/rows.md says, then port the model: it is trained on the recipe's rows without "
            "all who wait.",
            PORT,
        ),
    )
    RECIPE_FAILED = (
        "recipe_failed",
        "The recipe fails[: {error} at {file}:{line}].",
        _ml("Correct it, then retry.", RETRY),
        {Cause.RECIPE_REFUSED: "The recipe fails[: {detail}]."},
    )
    SAMPLES_CHANGED = (
        "samples_changed",
        "Training samples are missing or changed[ ({lacking})].",
        _ml("Put them back and retry, or train again on today's data.", RETRY, RETRAIN),
    )
    STATE_UNREADABLE = (
        "state_unreadable",
        "The stored state[ {file}] is missing or damaged.",
        _operator(
            "Restore the file from the private store's replica, or start a worker of the release that wrote it; retry. "
            "Or train again.",
            RETRY,
            RETRAIN,
        ),
        {Cause.FORMAT: "The stored state[ {file}] was written by another release of Expunge."},
    )
    TABLES_DIFFER = (
        "tables_differ",
        "The database[, in its table {table},] is not what the current version was published with. Nothing was "
        "published.",
        _operator(
            "Run `expunge audit verify` to see what differs. Put the database back from a backup of before, run "
            "`expunge restore`, then retry.",
            RETRY,
        ),
    )
    FAILED = (
        "failed",
        "Three attempts failed[: {error} at {file}:{line}].",
        _operator("See log and memory. Report a line of Expunge, correct one of the recipe; retry.", RETRY),
        {
            Cause.OUR_FAULT: "Expunge fails[: {error} at {file}:{line}].",
            Cause.WORKER_LOST: "The worker died three times on this request.",
        },
    )
    RETRAIN_REFUSED = (
        "retrain_refused",
        "The retraining was refused[: {detail}].",
        _ml("Correct that, or report a line of Expunge; then retry: it plans another.", RETRY),
        {
            Cause.OUR_FAULT: "The retraining was refused: Expunge fails[, {error} at {file}:{line}].",
            Cause.PACKAGES_REPLACED: "The retraining was refused: packages were replaced under the worker: restart it.",
            Cause.ENGINE_DIFFERS: "The retraining was refused: a machine of the cluster differs from its worker.",
            Cause.RECIPE_RAISED: "The retraining was refused: the recipe fails[, {error} at {file}:{line}].",
        },
    )

    # it ended, and nothing is left to do
    NO_MATCH = (
        "no_match",
        "No model holds data under this id[ ({searched} searched)].",
        None,
        {
            Cause.THIS_MODEL: "This model holds no data under this id.",
            Cause.EXACTLY: "No model holds data under this id[ ({searched} searched)]. It was compared exactly only.",
            Cause.OTHER_PEOPLE: "No model holds data under this id[ ({searched} searched)]; those with nearly the same "
            "id are other people.",
        },
    )
    NOT_IN_NAMED_MODELS = (
        "not_in_named_models",
        "The models you named hold no data under this id[; {elsewhere}].",
        None,
        {
            Cause.EXACTLY: "The models you named hold no data under this id[; {elsewhere}]. It was compared exactly "
            "only.",
            Cause.OTHER_PEOPLE: "The models you named hold no data under this id[; {elsewhere}]; those with nearly the "
            "same id are other people.",
        },
        (NAME_THE_PERSON,),
    )
    IN_HOLDOUT = (
        "in_holdout",
        "These data measure accuracy and are no training samples.",
        _ml("Remove them from the recipe's test data."),
        {Cause.OVERWRITTEN: "These data only measure accuracy; no model is trained on them."},
    )
    ALREADY_DELETED = (
        "already_deleted",
        "[Request {earlier}|An earlier request] already deleted these samples.",
        None,
        None,
        (SHOW_REQUEST,),
    )
    LEFT_OUT = ("left_out", "The model was trained without them.")
    NOT_PUBLISHED = ("not_published", "This model was never published.")
    MODEL_RETIRED = ("model_retired", "It is retired; no certificate covers it or its copies.")

    @property
    def steps(self) -> tuple[WayOut, ...]:
        """Return the steps of the remedy, the first of which is the button; or those that show more."""
        return self.shows if self.remedy is None else self.remedy.steps

    @property
    def retry_helps(self) -> bool:
        return RETRY in self.steps

    def says(self, facts: Mapping[str, Any] | None = None, scopes: Collection[str] = ()) -> str:
        """Return the sentence with what the scopes allow to see of the facts."""
        return filled(self.sentence_of((facts or {}).get("cause")), values(facts, scopes))

    def sentence_of(self, cause: str | None) -> str:
        """Return the template of the sentence where the reason has this cause."""
        return next((text for each, text in self.by_cause.items() if each == cause), self.sentence)


_FORMERLY = {
    "already_forgotten": Reason.ALREADY_DELETED,
    "beyond_calibration": Reason.NEEDS_RETRAIN,
    "cap_not_reached": Reason.NEEDS_RETRAIN,
    "method_refused": Reason.NEEDS_RETRAIN,
    "model_cancelled": Reason.NOT_PUBLISHED,
    "model_refused": Reason.NOT_PUBLISHED,
    "nobody_left": Reason.NO_DATA_LEFT,
    "recipe_refused": Reason.RECIPE_FAILED,
    "state_damaged": Reason.STATE_UNREADABLE,
    "state_format_unknown": Reason.STATE_UNREADABLE,
    "utility_gate": Reason.ACCURACY_DROP,
    "vectors_missing": Reason.NEEDS_RETRAIN,
    "weights_not_finite": Reason.NEEDS_RETRAIN,
    "worker_lost": Reason.FAILED,
}
"""codes of release 0.1 that the audit log keeps, and tasks that the log committed to before the migration"""


def reason_of(code: str) -> Reason | None:
    """Return the reason of a stored code; None where this version of the software does not know the code."""
    try:
        return _FORMERLY.get(code) or Reason(code)
    except ValueError:
        return None


def explain(
    code: str | None,
    request_id: str,
    models: Sequence[str] = (),
    holds: Sequence[str] = (),
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    scopes: Collection[str] = (),
) -> dict[str, Any]:
    """Return ``reason``, ``title``, ``remedy`` and ``actions`` of a stored code as JSON, for the API and for webhooks.

    A code that this version of the software does not know is its own title.

    Args:
        code: the stored code; None: there is no reason.
        request_id: the request that has it.
        models: the names of the models in which the request has it.
        holds: the ids of the legal holds that keep samples of the request.
        facts: the values of the sentence, by reason, as the request or the task holds them.
        scopes: what the reader may see; without any, no value is named.
    """
    reason = None if code is None else reason_of(code)
    if reason is None:
        return {"reason": code, "title": code, "remedy": None, "actions": []}
    known = (facts or {}).get(reason, {})
    seen = values(known, scopes)
    remedy = None
    if reason.remedy is not None:
        remedy = {"action": filled(reason.remedy.action, seen), "by": reason.remedy.by}
    earlier = [seen["earlier"]] if "earlier" in seen else []
    possible = [step for step in reason.steps if earlier or step is not SHOW_REQUEST]
    steps = actions(possible, request=[request_id], model=models, hold=holds, earlier=earlier)
    return {
        "reason": reason.value,
        "title": filled(reason.sentence_of(known.get("cause")), seen),
        "remedy": remedy,
        "actions": steps,
    }


def actions(steps: Iterable[WayOut], **ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps as JSON with these ids filled in: ``request``, ``model``, ``hold``, ``earlier``."""
    return [dict(vars(way)) for step in steps for way in step.filled(ids)]


AT_ONCE = 0
"""the ``not_before`` of a task that was hurried: it waits for no batch"""
NOT_FOR_AN_UPDATE = (Reason.AWAITING_RETRAIN, Reason.AWAITING_CONSUMERS)
"""of tasks that no update can serve"""
