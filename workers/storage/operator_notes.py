"""Sealed notes for operators, which a row may hold: why the policy's fallback was taken."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping

from unlearning.types import Json
from workers.storage.encryption import Sealer

NOTE = "note"
"""the place for which notes are sealed"""


def seal_note(sealer: Sealer, facts: Mapping[str, Json]) -> str:
    """Return the facts as sealed text (base64)."""
    return b64encode(sealer.seal(NOTE, json.dumps(dict(facts)).encode())).decode()


def open_note(sealer: Sealer, note: str) -> dict[str, Json]:
    """Return the facts of ``seal_note``. Raises Damaged."""
    facts: dict[str, Json] = json.loads(sealer.open(NOTE, b64decode(note)))
    return facts
