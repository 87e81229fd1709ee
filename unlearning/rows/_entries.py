"""Arrays with one entry for each row: in memory, in a file of numpy, or sealed in a file on disk.

What is larger than memory is read where it is looked at. On disk it is encrypted under a key that is nowhere but in the
memory of the processes that read it, so that nothing of a person can be read there once these have ended.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import IO, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from unlearning.rows._paths import UnwrittenFile
from unlearning.rows._read import Places
from unlearning.types import RecipeError

Array = np.ndarray[Any, Any]
PIECE_BYTES = 2**22
"""of which the entries are in memory at once while all are read"""
KEY_BYTES, BLOCK_BYTES = 32, 16
"""of AES, whose keystream is one for all arrays of a file"""
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Entries(ABC):
    """An array (n, ...) with an entry for each of n rows. ``most``: bytes of it that may be in memory at once."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], most: int | None = None) -> None:
        self.shape, self.dtype, self.most = shape, dtype, most

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def entry_bytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape[1:], dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return len(self) * self.entry_bytes

    @abstractmethod
    def take(self, places: Places) -> Array:
        """Return these entries in memory. Raises RecipeError where they cannot be read."""

    def whole(self) -> Array:
        """Return the array in memory. Raises RecipeError where it takes more than ``most``, and as ``take``."""
        if self.most is not None and self.nbytes > self.most:
            what = f"{len(self):,} entries take {self.nbytes:,} bytes, and a worker holds {self.most:,} in memory."
            raise RecipeError(what, "Take some at a time: `for batch in rows.batches(256, seed=0)`, or rows.blocks(n).")
        return self._loaded()

    def _loaded(self) -> Array:
        return self.take(np.arange(len(self)))

    def at(self, places: Places) -> Entries:
        """Return these entries, not yet read."""
        return TakenEntries(self, places)

    def pieces(self) -> Iterator[Array]:
        """Yield all entries in order, some megabytes at a time."""
        count = max(1, PIECE_BYTES // max(1, self.entry_bytes))
        return (self.take(np.arange(at, min(at + count, len(self)))) for at in range(0, len(self), count))


class LoadedEntries(Entries):
    """An array in memory."""

    def __init__(self, array: Array) -> None:
        super().__init__(array.shape, array.dtype)
        self._array = array

    def take(self, places: Places) -> Array:
        return np.ascontiguousarray(self._array[places])

    def _loaded(self) -> Array:
        return self._array


class TakenEntries(Entries):
    """Some entries of another array. Their array is read once, where all of it is asked for."""

    def __init__(self, entries: Entries, places: Places) -> None:
        super().__init__((len(places), *entries.shape[1:]), entries.dtype, entries.most)
        self._entries, self._places = entries, places

    def take(self, places: Places) -> Array:
        return self._entries.take(self._places[places])

    def at(self, places: Places) -> Entries:
        return TakenEntries(self._entries, self._places[places])

    def _loaded(self) -> Array:
        return self._array

    @cached_property
    def _array(self) -> Array:
        return self._entries.take(self._places)


class NpyEntries(Entries):
    """An array in a file of numpy, as C orders it. ``start``: where the array begins in it."""

    def __init__(self, file: UnwrittenFile, shape: tuple[int, ...], dtype: np.dtype[Any], start: int) -> None:
        super().__init__(shape, dtype)
        self._file, self._start = file, start

    def take(self, places: Places) -> Array:
        entries = _gathered(self, places, self._read)
        self._file.require_unwritten()
        return entries

    def _read(self, start: int, into: memoryview) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._file.descriptor, [into[done:]], self._start + start + done)
            if not count:
                raise self._file.refusal()
            done += count


class SealedEntries(Entries):
    """An array in a file that ``seal_entries`` wrote. ``start``: where the array begins in it."""

    def __init__(
        self, data: memoryview, key: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], *, start: int, most: int
    ) -> None:
        super().__init__(shape, dtype, most)
        self._data, self._key, self._start = data, key, start

    def take(self, places: Places) -> Array:
        return _gathered(self, places, self._read)

    def _read(self, start: int, into: memoryview) -> None:
        start += self._start
        _cipher(self._key, start).update_into(self._data[start : start + len(into)], into)


def open_entries(file: IO[bytes], path: str) -> Entries:
    """Return the array of a file of numpy. Raises RecipeError where it is none, or holds objects."""
    try:
        read_header = HEADERS.get(np.lib.format.read_magic(file))
        if read_header is not None:
            shape, by_column, dtype = read_header(file)
            if not dtype.hasobject and (not by_column or len(shape) < 2):
                return NpyEntries(UnwrittenFile(file, path), shape, dtype, file.tell())
        file.seek(0)
        return LoadedEntries(np.lib.format.read_array(file, allow_pickle=False))
    except ValueError:
        what = f"{path} is no array without objects."
        raise RecipeError(what, "Write numbers with numpy.save; texts belong into the table.") from None


def seal_entries(arrays: Mapping[str, Entries], file: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Write arrays into a file under a new key; return where each is and its SHA-256, and the key."""
    key, start, places = secrets.token_bytes(KEY_BYTES), 0, {}
    cipher = _cipher(key, start)
    for name, entries in arrays.items():
        digest = hashlib.sha256()
        for piece in entries.pieces():
            raw = _raw(piece)
            digest.update(raw)
            file.write(cipher.update(raw))
        places[name] = [entries.dtype.str, [*entries.shape], start, digest.hexdigest()]
        start += entries.nbytes
    file.flush()
    return places, key


def sealed_entries(places: Mapping[str, Any], data: memoryview, key: bytes, most: int) -> dict[str, Entries]:
    """Return the arrays of a file that ``seal_entries`` wrote, by name."""
    return {
        name: SealedEntries(data, key, tuple(shape), np.dtype(kind), start=start, most=most)
        for name, (kind, shape, start, _) in places.items()
    }


def _cipher(key: bytes, start: int) -> Any:
    """Return what encrypts or decrypts from this byte of the file on."""
    block, within = divmod(start, BLOCK_BYTES)
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK_BYTES))).encryptor()
    cipher.update(bytes(within))
    return cipher


def _raw(array: Array) -> memoryview:
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)


def _gathered(entries: Entries, places: Places, read: Callable[[int, memoryview], None]) -> Array:
    """Return the entries at these places; ``read`` fills memory from a byte of the array on."""
    array = np.empty((len(places), *entries.shape[1:]), dtype=entries.dtype)
    if not array.nbytes:
        return array
    raw, width = _raw(array), entries.entry_bytes
    firsts = np.flatnonzero(np.diff(places, prepend=places[0]) != 1)  # neighbours are read at once
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(places)], strict=True):
        read(int(places[first]) * width, raw[first * width : end * width])
    return array
