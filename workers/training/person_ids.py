"""The ids of a recipe's people, looked at before they are registered: a request must be able to name them."""

from __future__ import annotations

import logging

import numpy as np

from expunge_client.id_lint import Finding, lint_lines
from unlearning.recipe import Samples
from unlearning.types import Refused

READ_AS_TEXT = (
    "Read the column of ids as text (pandas: dtype=str; DuckDB: CAST), and leave rows without a person out. Requests "
    "name the text that the recipe gives."
)

log = logging.getLogger(__name__)


def lint_people(samples: Samples) -> list[Finding]:
    """Findings about the ids of the samples' people. Lines are samples, counted from 1, where an id stands first."""
    people = samples.people
    codes, rows = np.unique(people.codes.numpy(), return_index=True)
    lines: dict[str, int] = {}
    for row, code in sorted(zip(rows.tolist(), codes.tolist(), strict=True)):
        for person in people.values[code]:
            lines.setdefault(person, row + 1)
    return lint_lines(lines)


def require_sound_ids(samples: Samples, model: str) -> None:
    """Refuse a registration whose ids of people are damaged; log what looks wrong and may be right. Raises Refused."""
    findings = lint_people(samples)
    refused = [finding.describe("sample") for finding in findings if finding.refused]
    if refused:
        raise Refused(f"The recipe's ids of people are damaged ({'; '.join(refused)}).", READ_AS_TEXT)
    for finding in findings:
        log.warning("The ids of people of %s: %s.", model, finding.describe("sample"))
