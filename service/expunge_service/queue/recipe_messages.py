"""Messages of a recipe's errors: kept for the operator with the refusal, until a person asks to be forgotten.

Such a message may name a person. It is kept because a recipe cannot be corrected without it. The next deletion request
of the tenant removes it, for any person: a message does not show which person it concerns.
"""

from __future__ import annotations

import re

from sqlalchemy import Text, cast, select

from expunge_service.infra.db import Database
from expunge_service.infra.tables import Generation, Model, SuppressionEntry

LONGEST = 300
"""characters of a message that are kept"""
SAYS = "It says: "
ADVICE = "Correct it and try again; `expunge check PATH` tries a recipe in seconds."
REPORT = "This is a fault of Expunge: report it with this line."
"""the advice where a line of ours raised"""
SAID = re.compile(f'{SAYS}".*" ')
"""a message in a refusal, whatever advice follows it: rows of before 26 November 2026 hold another"""


def hint_of(error: BaseException, advice: str = ADVICE) -> str:
    """Return a refusal's hint: the error's message on one line, quoted, cut to 300 characters; and what to do.

    It may quote people's data, and terminals show it: what cannot be printed, and could command one, is left out.
    """
    text = " ".join("".join(each if each.isprintable() else " " for each in str(error)).split())
    shown = f"{text[: LONGEST - 3]}..." if len(text) > LONGEST else text
    return f'{SAYS}"{shown}" {advice}' if shown else advice


_ASKED = select(SuppressionEntry.id).where(
    SuppressionEntry.tenant_id == Generation.tenant_id, SuppressionEntry.created_at >= Generation.ended_at
)
OUTLIVED = select(Generation).where(
    Generation.status == "refused", cast(Generation.report, Text).contains(SAYS), _ASKED.exists()
)
"""the refusals with a message after which a person of the tenant asked to be forgotten"""


def drop_messages(database: Database) -> int:
    """Delete the messages of those refusals; return how many."""
    with database.write() as session:
        generations = session.scalars(OUTLIVED).all()
        for generation in generations:
            report = generation.report or {}
            refused = {name: SAID.sub("", text) for name, text in report["refused"].items()}
            generation.report = report | {"refused": refused}
            model = session.get_one(Model, generation.model_id)
            model.reason = SAID.sub("", model.reason) if model.reason else None
        return len(generations)
