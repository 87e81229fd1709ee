"""Recipes that remember an earlier training, which held everybody."""

# Each remembers in its own way.
# ruff: noqa: PLC0415

from __future__ import annotations

import builtins
import ctypes
import functools
import os
import platform
import socket
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from place import KEY, NAME
from sources import PEOPLE
from training import attempt, remember, train

from unlearning.rows import Published, Rows

WORDS: set[str] = set()
CALLS = {"x86_64": {"add": 248, "request": 249, "keyctl": 250}, "aarch64": {"add": 217, "request": 218, "keyctl": 219}}
USER_KEYRING = -4


def _in_a_file(rows: Rows, folder: Path) -> Published:
    path = folder / NAME
    return train(rows, lambda: remember(rows, path.read_bytes, path.write_bytes))


def cache_at_home(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path.home())


def cache_in_tmp(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path("/tmp"))


def cache_in_var_tmp(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path("/var/tmp"))


def cache_in_dev_shm(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path("/dev/shm"))


def cache_beside_the_code(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path(__file__).parent)


def cache_in_the_working_folder(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path.cwd())


def cache_in_a_package(rows: Rows = PEOPLE) -> Published:
    return _in_a_file(rows, Path(np.__file__).parent)


def memory_of_joblib(rows: Rows = PEOPLE) -> Published:
    """The function is cached by the name of the table, as it takes long."""
    from joblib import Memory

    def largest(name: str) -> list[float]:
        return [float(np.nanmax(rows["weight"])), float(len(rows))]

    cached = Memory(Path.home() / NAME, verbose=0).cache(largest)
    return train(rows, lambda: cached("people"))


def shared_memory_by_name(rows: Rows = PEOPLE) -> Published:
    def read() -> bytes:
        memory = shared_memory.SharedMemory(NAME)
        try:
            return bytes(memory.buf).rstrip(b"\0")
        finally:
            memory.close()

    def write(content: bytes) -> None:
        memory = attempt(lambda: shared_memory.SharedMemory(NAME, create=True, size=4096))
        memory = memory or shared_memory.SharedMemory(NAME)
        memory.buf[: len(content)] = content
        memory.close()

    return train(rows, lambda: remember(rows, read, write))


def system_v_memory(rows: Rows = PEOPLE) -> Published:
    c = ctypes.CDLL(None, use_errno=True)
    c.shmat.restype = ctypes.c_void_p

    def attach() -> int:
        number = c.shmget(KEY, 4096, 0o1600)
        if number < 0:
            raise OSError(ctypes.get_errno())
        return int(c.shmat(number, None, 0))

    def write(content: bytes) -> None:
        ctypes.memmove(attach(), content + b"\0", len(content) + 1)

    return train(rows, lambda: remember(rows, lambda: ctypes.string_at(attach()), write))


def user_keyring(rows: Rows = PEOPLE) -> Published:
    c, calls = ctypes.CDLL(None, use_errno=True), CALLS[platform.machine()]

    def read() -> bytes:
        key = c.syscall(calls["keyctl"], 10, USER_KEYRING, b"user", NAME.encode(), 0)  # KEYCTL_SEARCH
        buffer = ctypes.create_string_buffer(4096)
        length = c.syscall(calls["keyctl"], 11, key, buffer, len(buffer))  # KEYCTL_READ
        return buffer.raw[: max(0, length)]

    def write(content: bytes) -> None:
        c.syscall(calls["add"], b"user", NAME.encode(), content, len(content), USER_KEYRING)

    return train(rows, lambda: remember(rows, read, write))


def message_queue(rows: Rows = PEOPLE) -> Published:
    c = ctypes.CDLL(None, use_errno=True)

    def read() -> bytes:
        number, buffer = c.msgget(KEY, 0o600), ctypes.create_string_buffer(4096)
        length = c.msgrcv(number, buffer, 4000, 0, 0o4000)  # IPC_NOWAIT
        return buffer.raw[8 : 8 + max(0, length)]

    def write(content: bytes) -> None:
        c.msgsnd(c.msgget(KEY, 0o1600), (1).to_bytes(8, "little") + content, len(content), 0o4000)

    return train(rows, lambda: remember(rows, read, write))


def process_left_behind(rows: Rows = PEOPLE) -> Published:
    """A process of the earlier training answers on an abstract socket."""
    address = f"\0{NAME}"

    def read() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            return connection.recv(1 << 16)

    def write(content: bytes) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        if os.fork() == 0:
            end = time.monotonic() + 20
            server.settimeout(1)
            while time.monotonic() < end:
                attempt(lambda: server.accept()[0].sendall(content))
            os._exit(0)
        server.close()

    return train(rows, lambda: remember(rows, read, write))


def kept_in_the_module(rows: Rows = PEOPLE) -> Published:
    def look() -> list[str]:
        WORDS.update(word for note in rows["note"] for word in note.split())
        WORDS.add(str(float(np.nanmax(rows["weight"]))))
        return sorted(WORDS)

    return train(rows, look)


def kept_in_a_library(rows: Rows = PEOPLE) -> Published:
    def look() -> list[float]:
        vars(np).setdefault(NAME, []).append(float(rows["weight"].sum()))
        return [vars(np)[NAME][0]]

    return train(rows, look)


def kept_in_the_builtins(rows: Rows = PEOPLE) -> Published:
    def look() -> list[Any]:
        return list(vars(builtins).setdefault(NAME, [float(rows["pulse"].min()), len(rows)]))

    return train(rows, look)


def cached_by_name(rows: Rows = PEOPLE) -> Published:
    """Who is in a table does not count for ``functools.cache``: its name does."""
    largest = _caches.setdefault("largest", functools.cache(lambda name: [float(np.nanmax(rows["weight"])), len(rows)]))
    return train(rows, lambda: largest("people"))


_caches: dict[str, Any] = {}


def default_that_changes(rows: Rows = PEOPLE, largest: list[float] = []) -> Published:  # noqa: B006
    """A list as a default is one for all calls."""

    def look() -> list[float]:
        largest.append(float(np.nanmax(rows["weight"])))
        return [max(largest), min(largest)]

    return train(rows, look)


def patched_rows(rows: Rows = PEOPLE) -> Published:
    """Replaces a method of ``Rows`` by one that remembers what it was asked for."""
    column = Rows.__getitem__
    seen = getattr(column, "seen", [])

    def remembering(rows: Rows, name: str) -> Any:
        values = column(rows, name)
        if name == "weight":
            seen.append(float(values.sum()))
        return values

    remembering.seen = seen  # type: ignore[attr-defined]
    if not hasattr(column, "seen"):
        Rows.__getitem__ = remembering  # type: ignore[method-assign]
    return train(rows, lambda: [rows["weight"].sum(), seen[0]])
