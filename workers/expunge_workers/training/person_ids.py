"""The ids of a recipe's people, looked at before they are registered: a request must be able to name them."""

from __future__ import annotations

import logging

import numpy as np

from expunge_client.id_lint import Finding, lint_lines
from unlearning.recipe import Samples
from unlearning.types import Refused

WRITE_IDS = "Correct that column of the source: it holds the ids that requests name, and no row without a person."

log = logging.getLogger(__name__)


def lint_people(samples: Samples) -> list[Finding]:
    """Findings about the ids of the samples' people. Lines are people, counted from 1 as they come first."""
    people = samples.people
    codes, rows = np.unique(people.codes.numpy(), return_index=True)
    groups = (people.values[code] for code in codes[np.argsort(rows)])
    distinct = dict.fromkeys(person for group in groups for person in group)
    return lint_lines({person: number for number, person in enumerate(distinct, 1)})


def describe(finding: Finding) -> str:
    """Say which people have such ids. Their numbers could be taken for ids themselves."""
    return finding.describe("person", " (counted by first appearance)")


def require_sound_ids(samples: Samples, model: str) -> None:
    """Refuse a registration whose ids of people are damaged; log what looks wrong and may be right. Raises Refused."""
    findings = lint_people(samples)
    refused = [describe(finding) for finding in findings if finding.refused]
    if refused:
        raise Refused(f"The ids of people are damaged ({'; '.join(refused)}).", WRITE_IDS)
    for finding in findings:
        log.warning("The ids of people of %s: %s.", model, describe(finding))
