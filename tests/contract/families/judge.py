"""Trains each family twice: without somebody who was there, and where the person never was; and compares the bytes."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import signal
import socketserver
import sqlite3
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json
from pyarrow import parquet

from tests.contract.families import data
from tests.contract.families.carriage import carry
from tests.contract.families.template import Template, remove_traces
from unlearning.columns import Column, Texts
from unlearning.rows import Rows, Source, open_rows
from unlearning.rows.declarations import QuerySource, TableSource
from unlearning.types import RecipeError

HERE = Path(__file__).parent
KINDS = ("csv", "jsonl", "parquet", "spelled", "sqlite")
KEY = 0x0E000000 + os.getpid() % 0xFFFFFF

Answer = dict[str, Any]
"""what a training published (``data``), or why there is none (``refused``)"""


class Compared(NamedTuple):
    """What a family answered in three trainings."""

    everybody: Answer
    left: Answer
    """without the person, who is in the table"""
    never: Answer
    """on a table that never held the person"""


@dataclass(frozen=True)
class Family:
    """A recipe: the function ``name`` in the module ``group`` of the folder ``honest`` or ``looking``."""

    folder: str
    group: str
    name: str
    sources: tuple[str, ...]
    """the names of the sources that its parameters have as defaults"""
    libraries: tuple[str, ...]
    """what the function imports itself"""

    def __str__(self) -> str:
        return f"{self.group}.{self.name}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of source that have what it reads."""
        return ("sqlite",) if self.group == "by_query" else KINDS

    def code(self, kind: str) -> dict[str, str]:
        """The files of its folder, by name: the service copies all of them."""
        files = {path.name: path.read_text() for path in (HERE / self.folder).glob("*.py")}
        return files | {
            "sources.py": (HERE / "sources" / f"{kind}.py").read_text(),
            "recipe.py": f"from {self.group} import {self.name} as recipe\n",
        }


def families(folder: str) -> list[Family]:
    """Find the public functions of a folder that have a source as a default."""
    found = []
    for path in sorted((HERE / folder).glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names = [entry.id for entry in node.args.defaults if isinstance(entry, ast.Name)]
                if names:
                    found.append(Family(folder, path.stem, node.name, tuple(names), tuple(_imported(node))))
    return found


def _imported(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)


@cache
def _files_of(without: str | None) -> data.Files:
    return MappingProxyType(dict(data.files_of(without)))


@cache
def _declared(kind: str) -> Mapping[str, Any]:
    return runpy.run_path(str(HERE / "sources" / f"{kind}.py"))


class Place:
    """The folder of a recipe and its tables, and a server on this machine that gives a table away."""

    def __init__(self, above: Path) -> None:
        above.chmod(0o755)  # files of everybody's, so that walls alone hide them
        self.folder, self.home = above / "recipes", above / "home"
        self.name = f"expunge-families-{os.getpid()}"
        self.socket = str(above / "socket")

    def lay_out(self, files: data.Files, code: Mapping[str, str]) -> None:
        """Write the folder anew, and forget what recipes left on this machine."""
        for folder in (self.folder, self.home):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            folder.chmod(0o777)
        remove_traces(self.name, KEY)
        for name, content in {**files, **{name: text.encode() for name, text in code.items()}}.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755)
            os.utime(path, (0, len(content)))  # its time is another one where its content is

    @contextmanager
    def bystander(self) -> Iterator[None]:
        """A process of this machine that has to do with the people of the table, and shows it."""
        table = (self.folder / "people.csv").read_text()
        people = sorted({line.split(",")[1] for line in table.splitlines()[1:]})
        command = ["sh", "-c", "sleep 60; :", "--people", *people]
        process = subprocess.Popen(command, cwd=self.folder, env={"PEOPLE": table}, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def constants(self, port: int) -> str:
        """The module ``place``: what an engineer would have typed."""
        return (
            f"FOLDER = {str(self.folder)!r}\nNAME = {self.name!r}\nKEY = {KEY}\nPORT = {port}\n"
            f"SOCKET = {self.socket!r}\nNEVER_IN = {sorted(data.LEAVERS.values())}\n"
        )


class Judge:
    """Asks a template for the trainings of a family, and lays the data out for each."""

    def __init__(self, template: Template, place: Place, port: int) -> None:
        self.template, self._place, self._port = template, place, port

    def compare(self, family: Family, kind: str, leavers: Sequence[str], **how: bool) -> dict[str, Compared]:
        """Train without each leaver, and on a table that never held the person.

        An earlier training held everybody who was in the table, in both.

        Args:
            how: ``walled``: behind walls, each training in a world of its own, the first one in an earlier world; else
                one after the other in one process. ``filtered_last``: people leave after the types were found.
        """
        people = [data.LEAVERS[leaver] for leaver in leavers]
        everybody, *left = self._train(family, kind, None, people, **how)
        never = [self._train(family, kind, person, [None], **how)[1] for person in people]
        return {
            leaver: Compared(everybody, *answers)
            for leaver, answers in zip(leavers, zip(left, never, strict=True), strict=True)
        }

    def _train(
        self,
        family: Family,
        kind: str,
        never: str | None,
        without: Sequence[str | None],
        walled: bool = True,
        filtered_last: bool = False,
    ) -> list[Answer]:
        """Train on a table that never held one person: first with all in it, then without each of these."""
        code = family.code(kind) | {"place.py": self._place.constants(self._port)}
        self._place.lay_out(_files_of(never), code)
        opened = [self._open(family, kind, person, filtered_last) for person in (None, *without)]
        with self._place.bystander():
            return self._ask(opened, code, walled)

    def _ask(self, opened: Sequence[bytes | Answer], code: Mapping[str, str], walled: bool) -> list[Answer]:
        carried = [rows for rows in opened if isinstance(rows, bytes)]
        order = {"walled": walled, "files": code, "folder": str(self._place.folder), "variables": self._variables()}
        if walled and len(carried) == len(opened):
            first, others = self.template.train(order, carried[:1]), self.template.train(order, carried[1:])
            answers = iter([*first, *others])
        else:
            answers = iter(self.template.train(order, carried) if carried else [])
        return [next(answers) if isinstance(rows, bytes) else rows for rows in opened]

    def _open(self, family: Family, kind: str, person: str | None, filtered_last: bool) -> bytes | Answer:
        """Return the rows of a family's sources without a person, as they travel; or why they are refused."""
        databases = {"crm": f"sqlite:///{self._place.folder}/people.db"}
        gone = frozenset() if person is None else frozenset({person})
        try:
            sources: list[Source] = [_declared(kind)[name] for name in family.sources]
            return carry(
                {
                    repr(source): open_filtered_last(source, self._place.folder, gone)
                    if filtered_last
                    else open_rows(source, self._place.folder, without=gone, salt=data.SALT, databases=databases)
                    for source in sources
                }
            )
        except RecipeError as error:
            return {"refused": str(error)}

    def _variables(self) -> dict[str, str]:
        path = f"{self._place.folder}{os.pathsep}{os.environ['PATH']}"
        return {"HOME": str(self._place.home), "TMPDIR": str(self._place.home), "PATH": path}


@contextmanager
def judging(template: Template, above: Path) -> Iterator[Judge]:
    """A judge whose place is below a folder, with a server of its table on a port and on two sockets."""
    place = Place(above)

    class GiveTable(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall((place.folder / "people.csv").read_bytes())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), GiveTable) as port:
        servers: list[socketserver.BaseServer] = [port]
        for address in (place.socket, f"\0{place.socket}"):
            servers.append(socketserver.ThreadingUnixStreamServer(address, GiveTable))
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Judge(template, place, port.server_address[1])
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()
            remove_traces(place.name, KEY)


def open_filtered_last(source: Source, root: Path, gone: frozenset[str]) -> Rows:
    """Read a source as a hasty service would: the whole table with its types, then a filter. A twin that must fail."""
    table = _whole_table(source, root)
    start, end = source.spelled.split("{}")
    (column,) = source.person_columns
    people = [name.removeprefix(start).removesuffix(end) for name in table.column(column).to_pylist()]
    places = np.flatnonzero([person not in gone for person in people])
    every = Column.of((person,) for person in people)
    ids = (
        [f"{place}" for place in range(len(people))]
        if source.id is None
        else map(str, table.column(source.id).to_pylist())
    )
    return Rows(
        _table=table.filter(pa.array([person not in gone for person in people])),
        _people=Column(every.codes[torch.from_numpy(places)], every.values),
        _ids=Texts.of([name for name, person in zip(ids, people, strict=True) if person not in gone]),
        _numbers=places,
        _arrays={},
        _salt=data.SALT,
    )


def _whole_table(source: Source, root: Path) -> pa.Table:
    match source:
        case QuerySource(sql=sql):
            connection = sqlite3.connect(root / "people.db")
            cursor = connection.execute(sql)
            names = [entry[0] for entry in cursor.description]
            table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in cursor])
            connection.close()
            return table
        case TableSource(path=path, format="parquet"):
            return parquet.read_table(root / path)
        case TableSource(path=path, format="jsonl"):
            return arrow_json.read_json(root / path)
        case TableSource(path=path):
            return arrow_csv.read_csv(root / path)
    raise TypeError(type(source).__name__)
