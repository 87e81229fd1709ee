"""How the rows of several sources travel into a world of the tests: as the product's own files, one after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping

from unlearning.rows import Rows, rows_from_bytes, rows_to_bytes


def carry(sources: Mapping[str, Rows]) -> bytes:
    """Write the rows of each source, by its key, behind a line that says how long each is."""
    files = {key: bytes(rows_to_bytes(rows)) for key, rows in sources.items()}
    sizes = {key: len(file) for key, file in files.items()}
    return json.dumps(sizes).encode() + b"\n" + b"".join(files.values())


def rows_of(carried: memoryview) -> dict[str, Rows]:
    """Read what ``carry`` wrote."""
    line, _, rest = bytes(carried).partition(b"\n")
    sources, start = {}, 0
    for key, size in json.loads(line).items():
        sources[key] = rows_from_bytes(rest[start : start + size])
        start += size
    return sources
