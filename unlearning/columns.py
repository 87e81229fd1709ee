"""Columns with an entry for each sample, and no Python object for each sample."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import eq
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

Value = TypeVar("Value", bound=Hashable)
Other = TypeVar("Other", bound=Hashable)
BLOCK = 2**16
"""rows that are Python objects at once"""
DIGEST = 32
"""bytes of a SHA-256"""


class Column(Sequence[Value], Generic[Value]):
    """A column of repeated entries: each row holds the place of its entry among ``values``.

    Args:
        codes: (n,) int64 on the CPU, places in ``values``.
        values: the different entries.
    """

    def __init__(self, codes: Tensor, values: Sequence[Value]) -> None:
        self.codes, self.values = codes, values

    @classmethod
    def of(cls, entries: Iterable[Value]) -> Column[Value]:
        """Return the column of these entries; equal ones are kept once."""
        if isinstance(entries, Column):
            return entries
        places: dict[Value, int] = {}
        codes = np.fromiter((places.setdefault(entry, len(places)) for entry in entries), dtype=np.int64)
        return cls(torch.from_numpy(codes), tuple(places))

    @classmethod
    def joined(cls, columns: Sequence[Column[Value]]) -> Column[Value]:
        """Return the column of the rows of these, one column after the other."""
        whole = cls.of(value for column in columns for value in column.values)
        starts = np.cumsum([0, *(len(column.values) for column in columns)]).tolist()
        codes = [column.codes + start for column, start in zip(columns, starts[:-1], strict=True)]
        return cls(whole.codes[torch.cat(codes)], whole.values)

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[Value]:
        for part in torch.split(self.codes, BLOCK):
            yield from map(self.values.__getitem__, part.tolist())

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        if isinstance(index, slice):
            return tuple(self.values[int(self.codes[row])] for row in range(len(self))[index])
        return self.values[int(self.codes[index])]

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Column of {len(self)} rows"  # entries may name people

    def take(self, rows: Tensor) -> Column[Value]:
        """Return the column of these rows: places (m,) int64, or a mask (n,) bool."""
        return Column(self.codes[rows.to(self.codes.device)], self.values)

    def distinct(self) -> frozenset[Value]:
        """Return the entries that some row has."""
        return frozenset(map(self.values.__getitem__, self._present().tolist()))

    def compact(self) -> Column[Value]:
        """Return the same column, without the entries that no row has."""
        present = self._present()
        places = torch.empty(len(self.values), dtype=torch.int64)
        places[present] = torch.arange(len(present))
        return Column(places[self.codes], tuple(map(self.values.__getitem__, present.tolist())))

    def where(self, chosen: Callable[[Value], bool]) -> Tensor:
        """Return a mask (n,) bool of the rows with a chosen entry; each different entry is asked for once."""
        return self.each(chosen).bool()

    def each(self, number: Callable[[Value], int]) -> Tensor:
        """Return ``number`` of each row's entry, (n,) int64; each different entry is asked for once."""
        present = self._present()
        found = torch.zeros(len(self.values), dtype=torch.int64)
        found[present] = torch.tensor([int(number(self.values[code])) for code in present.tolist()], dtype=torch.int64)
        return found[self.codes]

    def map(self, change: Callable[[Value], Other]) -> Column[Other]:
        """Return the column with every entry changed; each different entry is changed once."""
        changed = Column.of(change(value) for value in self.values)
        return Column(changed.codes[self.codes], changed.values)

    def _present(self) -> Tensor:
        """Return the places in ``values`` that some row has, rising."""
        return torch.bincount(self.codes, minlength=len(self.values)).nonzero().squeeze(1)


class Texts(Sequence[str]):
    """A column of texts that do not repeat, as UTF-8 one after the other.

    Args:
        data: uint8, the bytes of all texts.
        ends: (n + 1,) int64, row i is ``data[ends[i]:ends[i + 1]]``.
    """

    def __init__(self, data: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        self.data, self.ends = data, ends

    @classmethod
    def of(cls, entries: Iterable[str]) -> Texts:
        """Return the column of these texts."""
        if isinstance(entries, Texts):
            return entries
        data, lengths = bytearray(), []
        for entry in entries:
            encoded = entry.encode()
            data += encoded
            lengths.append(len(encoded))
        ends = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        return cls(np.frombuffer(bytes(data), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from (each.decode() for each in self.encoded(start, start + BLOCK))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(len(self))[index])
        row = range(len(self))[index]
        return bytes(self.data[self.ends[row] : self.ends[row + 1]]).decode()

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts of {len(self)} rows"  # they may name people

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """Return the rows from ``start`` to before ``stop``, as UTF-8."""
        ends = self.ends[start : min(stop, len(self)) + 1]
        data = self.data[ends[0] : ends[-1]].tobytes()
        return [data[first:last] for first, last in pairwise((ends - ends[0]).tolist())]

    def take(self, rows: Tensor) -> Texts:
        """Return the column of these rows: places (m,) int64."""
        chosen = rows.numpy()
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.diff(self.ends)[chosen])])
        data = np.empty(ends[-1], dtype=np.uint8)
        for start in range(0, len(chosen), BLOCK):
            here = chosen[start : start + BLOCK]
            filled = ends[start : start + len(here) + 1]
            # byte j of a row lies j bytes after the row's first, here as there
            shift = np.repeat(self.ends[here] - filled[:-1], np.diff(filled))
            data[filled[0] : filled[-1]] = self.data[np.arange(filled[0], filled[-1]) + shift]
        return Texts(data, ends)

    @classmethod
    def joined(cls, columns: Sequence[Texts]) -> Texts:
        """Return the column of the rows of these, one column after the other."""
        lengths = np.concatenate([np.diff(column.ends) for column in columns])
        data = [column.data[column.ends[0] : column.ends[-1]] for column in columns]
        return cls(np.concatenate(data), np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]))

    @classmethod
    def read(cls, data: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Texts:
        """Return the column of what another process says it is. Raises ValueError where it is none."""
        if data.dtype != np.uint8 or ends.dtype != np.int64 or data.ndim != 1 or ends.ndim != 1 or not len(ends):
            raise ValueError("no texts")
        if ends[0] != 0 or ends[-1] != len(data) or bool((np.diff(ends) < 0).any()):
            raise ValueError("the ends of texts do not rise to the end of their bytes")
        starts = ends[:-1][np.diff(ends) > 0]
        data.tobytes().decode()
        if bool((data[starts] & 0xC0 == 0x80).any()):
            raise ValueError("a text begins within a character")
        return cls(data, ends)

    def same(self, other: Texts) -> bool:
        """Return whether both hold the same texts in the same order."""
        return np.array_equal(self.ends, other.ends) and np.array_equal(self.data, other.data)

    def plain(self) -> bool:
        """Return whether every text is printable ASCII and has no space at an end. No text may be empty."""
        first, last = self.data[self.ends[:-1]], self.data[self.ends[1:] - 1]
        within = self.data[self.ends[0] : self.ends[-1]]
        printable = bool(((within >= ord(" ")) & (within <= ord("~"))).all())
        return printable and bool(((first != ord(" ")) & (last != ord(" "))).all())

    def empty(self) -> int | None:
        """Return the first row without any text; None where there is none."""
        found = np.flatnonzero(np.diff(self.ends) == 0)
        return int(found[0]) if len(found) else None

    def repeated(self) -> int | None:
        """Return the first row with a text that an earlier row has; None where there is none."""
        hashes = self._hashes()
        ordered = np.sort(hashes)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        seen: set[str] = set()
        for row in np.flatnonzero(np.isin(hashes, twice)).tolist() if len(twice) else ():
            if self[row] in seen:
                return int(row)
            seen.add(self[row])
        return None

    def _hashes(self) -> np.ndarray[Any, Any]:
        """Return a number for each row, the same for equal texts, (n,) int64."""
        blocks = (self.encoded(start, start + BLOCK) for start in range(0, len(self), BLOCK))
        return np.fromiter(map(hash, chain.from_iterable(blocks)), dtype=np.int64, count=len(self))


def row_digests(rows: Iterable[bytes | memoryview]) -> np.ndarray[Any, Any]:
    """Return the SHA-256 of each row's bytes, (n, 32) uint8."""
    digests, sha256 = bytearray(), hashlib.sha256
    for row in rows:
        digests += sha256(row).digest()
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST)


def row_bytes(rows: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield the bytes of each row (n, ...) of an array in order of rows (C)."""
    data, width = rows.reshape(-1).view(np.uint8).data, rows.itemsize * math.prod(rows.shape[1:])
    return (data[row * width : (row + 1) * width] for row in range(len(rows)))


def _same(column: Sequence[Any], other: object) -> bool:
    if not isinstance(other, Sequence) or isinstance(other, str | bytes):
        return False
    return len(column) == len(other) and all(map(eq, column, other))
