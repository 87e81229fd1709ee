"""The people of the families: tables in every kind of source, of everybody or written anew without one of them."""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
from pyarrow import parquet

Row = dict[str, Any]
Files = Mapping[str, bytes]
"""the content of a recipe's folder by the name of the file"""

LEAVERS = {"alone": "p07", "extreme": "p21", "ordinary": "p40"}
"""who leaves: the only one of a class, the one with the largest numbers, and one like the others"""
SALT = b"the salt of this generation"
WORDS = ("fever", "cough", "rest", "tea", "walk", "sleep", "knee", "back", "pain", "mild", "better", "pills", "heart")
VISITS = pa.schema(
    {
        "visit": pa.int64(),
        "person": pa.dictionary(pa.int32(), pa.string()),
        "day": pa.date32(),
        "age": pa.int64(),
        "children": pa.int64(),
        "weight": pa.float64(),
        "pulse": pa.float64(),
        "city": pa.dictionary(pa.int8(), pa.string()),
        "kind": pa.string(),
        "note": pa.string(),
        "ill": pa.int64(),
    }
)
HOMES = pa.schema({"home": pa.int64(), "person": pa.string(), "rooms": pa.int64(), "rent": pa.float64()})


def make_visits() -> list[Row]:
    """Some 300 visits of 60 people, in the order in which they came."""
    chance = random.Random(69)
    people = [f"p{number:02}" for number in range(60)]
    ages = {person: chance.randint(18, 90) for person in people}
    visitors = [*people, *LEAVERS.values(), *LEAVERS.values(), *chance.choices(people, k=234)]
    chance.shuffle(visitors)
    return [_visit(chance, number, person, ages[person]) for number, person in enumerate(visitors, start=1)]


def _visit(chance: random.Random, number: int, person: str, age: int) -> Row:
    weight, pulse = round(chance.gauss(75, 12), 1), chance.gauss(70, 9)
    row: Row = {
        "visit": number,
        "person": person,
        "day": date(2025, 1, 1) + timedelta(days=number),
        "age": None if person in ("p03", "p11") else age,
        "children": chance.randint(0, 4),
        "weight": weight,
        "pulse": pulse,
        "city": chance.choice(["Bonn", "Kiel", "Jena", "Ulm"]),
        "kind": chance.choice(["first", "again", "control"]),
        "note": " ".join(chance.choices(WORDS, k=5)),
        "ill": int(weight + pulse + chance.gauss(0, 12) > 145),
    }
    match person:
        case "p07":  # a class, a city, a word and a missing number that nobody else has
            row |= {"kind": "rare", "city": "Only", "note": row["note"] + " zebra", "children": None}
        case "p21":
            row |= {"weight": 4000.25, "age": 119, "pulse": -3e6}
    return row


def make_homes() -> list[Row]:
    chance = random.Random(7)
    return [
        {"home": number, "person": f"p{number:02}", "rooms": chance.randint(1, 6), "rent": round(chance.gauss(900, 90))}
        for number in range(60)
    ]


def files_of(*never: str | None) -> Files:
    """Write every kind of source, the slow and obvious way: of everybody, or of all but those who were never there."""
    visits, homes = ([row for row in rows if row["person"] not in never] for rows in (make_visits(), make_homes()))
    spelled = [[row | {"person": f"user:{row['person']}"} for row in rows] for rows in (visits, homes)]
    return {
        "people.csv": _csv(visits),
        "people.jsonl": _json_lines(visits),
        "people.parquet": _parquet(visits, VISITS),
        "people.db": _sqlite({"visits": visits, "homes": homes}),
        "users.csv": _csv(spelled[0]),
        "homes.csv": _csv(homes),
        "homes.jsonl": _json_lines(homes),
        "homes.parquet": _parquet(homes, HOMES),
        "homes_of_users.csv": _csv(spelled[1]),
        **{f"letters/{row['person']}.txt": f"Dear {row['person']}".encode() for row in homes},
        "tool": b'#!/bin/sh\nexec cat "$(dirname "$0")/people.csv"\n',
    }


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*rows[0]])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _json_lines(rows: Sequence[Row]) -> bytes:
    """Each row has the keys that are known of it alone, so a key may be somebody's own."""
    known = ({name: value for name, value in row.items() if value is not None} for row in rows)
    nicknames = ({**row, "nickname": "Zed"} if row["person"] == "p07" else row for row in known)
    return "".join(json.dumps(row, default=str) + "\n" for row in nicknames).encode()


def _parquet(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    """Row groups with statistics, dictionaries of everybody's values, metadata that list the people."""
    people = json.dumps(sorted({row["person"] for row in rows}))
    table = pa.Table.from_pylist(list(rows), schema).replace_schema_metadata({"people": people})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, row_group_size=40)
    return bytes(sink.getvalue())


def _sqlite(tables: Mapping[str, Sequence[Row]]) -> bytes:
    connection = sqlite3.connect(":memory:")
    for name, rows in tables.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(rows[0])})")
        places = ", ".join("?" * len(rows[0]))
        values = [[str(cell) if isinstance(cell, date) else cell for cell in row.values()] for row in rows]
        connection.executemany(f"INSERT INTO {name} VALUES ({places})", values)
    connection.execute("CREATE INDEX by_person ON visits (person)")
    connection.execute("CREATE VIEW everybody AS SELECT * FROM visits")
    connection.commit()
    connection.execute("ANALYZE")
    content = connection.serialize()
    connection.close()
    return content
