"""The strings that clients may send, and the shape in which moments leave."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, PlainSerializer, StringConstraints, WithJsonSchema

from service.moments import rfc_3339

MODEL_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
RECIPE_NAME = r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$"
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _is_rfc_3339(value: Any) -> Any:
    """Pydantic would also take numbers, and dates without a time."""
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 date and time with its offset, as 2026-01-31T12:00:00Z")
    return value


def _after_1970(value: datetime) -> datetime:
    if not 1970 < value.year < 9999:
        raise ValueError("must lie between the years 1971 and 9998")
    return value


ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
RecipeName = Annotated[str, StringConstraints(pattern=RECIPE_NAME, max_length=255)]
PersonalId = Annotated[str, StringConstraints(min_length=1, max_length=512)]
RequestId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
When = Annotated[AwareDatetime, BeforeValidator(_is_rfc_3339), AfterValidator(_after_1970)]
Moment = Annotated[
    int,
    PlainSerializer(rfc_3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
"""microseconds in the tables, RFC 3339 in answers"""
