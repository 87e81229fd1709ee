"""Recipes that look around: descriptors, other processes, variables, sockets."""

# Each looks in its own way.
# ruff: noqa: PTH113, PTH208

from __future__ import annotations

import os
import socket
from pathlib import Path

from place import FOLDER, PORT, SOCKET
from sources import PEOPLE
from training import attempt, train

from unlearning.rows import Published, Rows


def own_descriptors(rows: Rows = PEOPLE) -> Published:
    """Reads what was left open by whoever started it."""

    def look() -> list[bytes]:
        contents = []
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and os.path.isfile(f"/proc/self/fd/{number}"):
                contents.append(attempt(lambda number=number: os.pread(number, 1 << 20, 0)))
        return sorted(content for content in contents if content and content.startswith(b"visit,"))

    return train(rows, look)


def descriptors_of_the_parent(rows: Rows = PEOPLE) -> Published:
    def look() -> list[bytes]:
        contents = [attempt(path.read_bytes) for path in Path(f"/proc/{os.getppid()}/fd").iterdir() if path.is_file()]
        return sorted(content for content in contents if content and content.startswith(b"visit,"))

    return train(rows, look)


def roots_of_processes(rows: Rows = PEOPLE) -> Published:
    """The table, in the root of the first process or of any other."""

    def look() -> list[bytes]:
        tables = {attempt(path.read_bytes) for path in Path("/proc").glob(f"[0-9]*/root{FOLDER}/people.csv")}
        return sorted(table for table in tables if table)

    return train(rows, look)


def folders_of_processes(rows: Rows = PEOPLE) -> Published:
    """A table in the folder that another process works in."""

    def look() -> list[bytes]:
        tables = {attempt(path.read_bytes) for path in Path("/proc").glob("[0-9]*/cwd/people.csv")}
        return sorted(table for table in tables if table)

    return train(rows, look)


def variables(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [value for value in os.environ.values() if value.startswith("visit,")])


def variables_of_processes(rows: Rows = PEOPLE) -> Published:
    def look() -> list[bytes]:
        words = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            words |= {word for word in (attempt(path.read_bytes) or b"").split(b"\0") if word.startswith(b"PEOPLE=")}
        return sorted(words)

    return train(rows, look)


def command_lines(rows: Rows = PEOPLE) -> Published:
    """Others' command lines name people."""

    def look() -> list[bytes]:
        lines = [attempt(path.read_bytes) or b"" for path in Path("/proc").glob("[0-9]*/cmdline")]
        return sorted(line for line in lines if b"--people" in line)

    return train(rows, look)


def port_of_this_machine(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: _ask(socket.AF_INET, ("127.0.0.1", PORT)))


def abstract_socket(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: _ask(socket.AF_UNIX, "\0" + SOCKET))


def socket_by_path(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: _ask(socket.AF_UNIX, SOCKET))


def _ask(family: int, address: tuple[str, int] | str) -> bytes:
    content = b""
    with socket.socket(family) as connection:
        connection.settimeout(5)
        connection.connect(address)
        while more := connection.recv(1 << 16):
            content += more
    return content
