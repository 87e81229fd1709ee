"""Facts for operators alone, sealed so that a row may hold them: why the policy's fallback was taken."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping

from unlearning.types import Json
from workers.storage.encryption import Sealer


def seal_note(sealer: Sealer, facts: Mapping[str, Json]) -> str:
    """The facts as sealed text."""
    return b64encode(b"".join(sealer.seal([json.dumps(dict(facts)).encode()]))).decode()


def open_note(sealer: Sealer, note: str) -> dict[str, Json]:
    """The inverse of ``seal_note``. Raises Unsealable."""
    facts: dict[str, Json] = json.loads(sealer.unseal(b64decode(note)))
    return facts
