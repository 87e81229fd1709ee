"""What was done to a request, signed, and the same in words."""

from __future__ import annotations

from expunge_service.certificates.envelope import verify
from expunge_service.certificates.issue import UNISSUED, erasing, issue_due, records_of
from expunge_service.certificates.letters import Facts, PersonalLetter, day, letter
from expunge_service.certificates.outcome import ModelOutcome
from expunge_service.certificates.plain_words import differed, in_words, note, weakest
from expunge_service.certificates.statement import foreseen
