"""The strings that clients may send, and the shape in which moments leave."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from starlette.convertors import Convertor, register_url_convertor

from expunge_service.infra.time import RFC_3339, rfc_3339, within_reach
from expunge_service.requests import CASE_ID
from unlearning.accounting.ids import PATTERN, spelled

MODEL_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
RECIPE_NAME = r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$"
PLACE_NAME = r"^[a-z0-9][a-z0-9_-]{0,30}$"
"""as in ``unlearning.accounting.policy``"""
LARGEST_NUMBER = 2**53 - 1
"""that every JSON parser reads exactly"""
_YEARS = r"^(197[1-9]|19[89][0-9]|[2-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-"


def _is_rfc_3339(value: Any) -> Any:
    """Refuse what Pydantic would also accept: numbers, and dates without a time."""
    if not isinstance(value, str) or not RFC_3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 date and time with its offset, as 2026-01-31T12:00:00Z")
    return value


def _whole(value: Any) -> Any:
    """Convert 3.0 to 3: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Digest(Convertor[str]):
    """A part of an address that can only be an id."""

    regex = "[0-9a-f]{32}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digest", _Digest())


def one_of(**kinds: str) -> dict[str, Any]:
    """Return the part of a JSON schema that demands exactly one of these fields (name, JSON type); the others null or
    absent.

    It is said with ``if`` and ``else``: of ``oneOf`` both common client generators make one class for each choice, and
    lose every other field.
    """
    *names, last = kinds
    schema = _given(last, kinds[last])
    for place, name in reversed(list(enumerate(names))):
        others = {other: {"type": "null"} for other in [*names, last][place + 1 :]}
        schema = {"if": _given(name, kinds[name]), "then": {"properties": others}, "else": schema}
    return schema


def _given(name: str, kind: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"type": kind} | ({"items": {}} if kind == "array" else {})}}


WHOLE = BeforeValidator(_whole)
"""after a strict integer's Field"""
ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
PlaceName = Annotated[str, StringConstraints(pattern=PLACE_NAME)]
RecipeName = Annotated[str, StringConstraints(pattern=RECIPE_NAME, max_length=200)]
CaseId = Annotated[str, StringConstraints(pattern=CASE_ID)]
"""opaque: no space, no @ and no +, so that neither a name, an address nor a phone number with its country fits"""
PersonalId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    AfterValidator(spelled),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 512, "pattern": PATTERN}),
]
"""of a person or a sample: compared by its NFC form, refused with what no reader sees"""
FreeText = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]+$")
]
RequestId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
When = Annotated[
    AwareDatetime,
    BeforeValidator(_is_rfc_3339),
    AfterValidator(within_reach),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _YEARS, "maxLength": 36}),
]
Moment = Annotated[
    int,
    PlainSerializer(rfc_3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
"""microseconds in the tables, RFC 3339 in answers"""
