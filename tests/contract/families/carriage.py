"""How rows travel into a world, for now: ``unlearning.rows`` will bring ``to_bytes`` and ``from_bytes`` of its own.

A stand-in: one JSON line with what is no column, then an Arrow stream for each source. Swap it here, in one place.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc

from unlearning.columns import Column, Texts
from unlearning.rows import Rows

PEOPLE, IDS, NUMBERS = "//people", "//ids", "//numbers"
"""columns that travel beside those of the table; no csv of the tests has such names"""


def carry(sources: Mapping[str, Rows]) -> bytes:
    """Write the rows of each source, by its key."""
    streams = {key: _stream_of(rows) for key, rows in sources.items()}
    header = {
        key: {
            "salt": base64.b64encode(rows._salt).decode(),
            "splits": rows._splits,
            "people": rows._people.values,
            "bytes": len(streams[key]),
        }
        for key, rows in sources.items()
    }
    return json.dumps(header).encode() + b"\n" + b"".join(streams.values())


def rows_of(carried: memoryview) -> dict[str, Rows]:
    """Read what ``carry`` wrote."""
    line = io.BytesIO(carried).readline()
    header, start = json.loads(line), len(line)
    sources = {}
    for key, facts in header.items():
        sources[key] = _rows_of(carried[start : start + facts["bytes"]], facts)
        start += facts["bytes"]
    return sources


def _stream_of(rows: Rows) -> bytes:
    assert not rows._arrays
    table = rows._table
    for name, values in (
        (PEOPLE, pa.array(rows._people.codes.numpy())),
        (IDS, pa.array(list(rows._ids), pa.string())),
        (NUMBERS, pa.array(rows._numbers)),
    ):
        table = table.append_column(name, values)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _rows_of(stream: memoryview, facts: Mapping[str, Any]) -> Rows:
    table = ipc.open_stream(stream).read_all()
    return Rows(
        _table=table.drop_columns([PEOPLE, IDS, NUMBERS]),
        _people=Column(
            torch.tensor(table.column(PEOPLE).to_pylist(), dtype=torch.int64), tuple(map(tuple, facts["people"]))
        ),
        _ids=Texts.of(table.column(IDS).to_pylist()),
        _numbers=np.array(table.column(NUMBERS).to_pylist(), dtype=np.int64),
        _arrays={},
        _salt=base64.b64decode(facts["salt"]),
        _splits=facts["splits"],
    )
