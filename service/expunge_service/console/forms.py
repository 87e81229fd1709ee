"""What was sent with a form of a page: its fields, each with its values."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from expunge_service.api.problems import ApiProblem

_MOST_FIELDS = 300
Fields = dict[str, list[str]]


async def sent(request: Request) -> Fields:
    """Return the fields of a form, each with its values. Raises ApiProblem (422) where there are too many, or one holds
    a zero byte, which PostgreSQL takes in no text.
    """
    text = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise ApiProblem(422, "too_many_fields", f"A form may have at most {_MOST_FIELDS} fields.") from None
    if any("\0" in value for values in fields.values() for value in values):
        raise ApiProblem(422, "form_incomplete", "A field holds a zero byte. Nothing was changed. Type it again.")
    return fields


def field(fields: Fields, name: str) -> str:
    """Return a field's first value without spaces around it; empty where it was not sent."""
    return fields.get(name, [""])[0].strip()


def filled(model: type[BaseModel], hint: str, **values: Any) -> Any:
    """Return a body of the API from a form's fields; empty ones are left out. Raises ApiProblem (422) with ``hint``."""
    try:
        return model(**{name: value for name, value in values.items() if value not in ("", [], None)})
    except ValidationError:
        raise ApiProblem(422, "form_incomplete", f"{hint} Nothing was changed.") from None


def typed(fields: Fields) -> list[tuple[str, str]]:
    """Return what a person filled in, name and value, without what the page put in to know its session."""
    return [(name, value) for name, values in fields.items() if name not in ("token", "sure") for value in values]


Form = Annotated[Fields, Depends(sent)]
