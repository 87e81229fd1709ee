"""What a claim says of the worlds that made its version: which walls stood, what the operator vouches for.

A world is a process that gets the rows of the people who are left and, behind walls of the kernel, can open nothing
else. What the kernel showed and what is the operator's word are said apart. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

_SHA256 = re.compile(r"[0-9a-f]{64}")
_IN_WORDS = 3
"""public files whose digests a sentence gives; those of more stand in the record alone"""

MADE = "Made from the rows of the people who are left, by processes for which the kernel opened nothing else."
BOUNDED = (
    "The samples and settings of the bound were made from the rows of the people who are left, by processes for which "
    "the kernel opened nothing else."
)
HANDED = "The processes that made it were handed the rows of the people who are left, and no others."
COLUMNS = "No column of the sources was computed from several people before the service read it."
OPENED = "That these processes opened nothing else is the operator's word: "
"""how the sentence begins where the kernel did not show it"""
READ = "before rows are left out. That it mixes no people is the operator's word."
"""how the sentence ends about sources that a program of the operator's reads"""
VOUCHED = "The operator vouches that the recipe's code ("
"""how the sentence begins about what came into a world beside the rows"""


class Enclosure(StrEnum):
    """The walls around a world, strongest first; of several worlds the weakest counts.

    runtime/walls.py of the workers puts them up; here stands what a claim says of them.
    """

    NEW_ROOT = "new root"
    """the kernel shows that nothing else was opened"""
    REPORTED = "reported"
    """a program on a machine of an engine says that its kernel shows it: the operator's word"""
    LANDLOCK = "landlock alone"
    """files could not be opened, but sizes and other processes were seen: the operator's word"""
    NONE = "none"
    """the operator's word"""

    @classmethod
    def weakest(cls, walls: Iterable[str]) -> Enclosure:
        """Return the weakest of these; of no world at all ``NONE``."""
        return max((cls(wall) for wall in walls), key=[*cls].index, default=cls.NONE)


_UNSHOWN = {
    Enclosure.REPORTED: "machines of an engine reported the walls, and this service did not see them",
    Enclosure.LANDLOCK: "Landlock alone kept files from them",
    Enclosure.NONE: "no wall of the kernel stood",
}
"""why the kernel did not show here that nothing else was opened"""


@dataclass(frozen=True)
class DeclaredFile:
    """A file that the operator declares public: its name in the recipe, and the SHA-256 of its bytes in hex."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("A public file has no name. Give the path that the recipe declares.")
        _require_digest(f"public file {self.name!r}", self.sha256)


@dataclass(frozen=True)
class WorldRecord:
    """The worlds that made a version.

    No field may be computed from anyone's data: they are settings, digests of code, and what the kernel allowed.

    Args:
        walls: the weakest around any of its parts.
        code: the SHA-256 of the recipe's code, in hex.
        public_files: the files that the recipe declares public.
        sources: the kind of each source, such as ``table`` or ``query``, in the order of the recipe.
        own_readers: how many of them a program of the operator's own reads, before rows are left out.
        repeats: whether two worlds made the same bytes of the same rows; None: it was not tried.
    """

    walls: Enclosure
    code: str
    public_files: tuple[DeclaredFile, ...] = ()
    sources: tuple[str, ...] = ()
    own_readers: int = 0
    repeats: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.walls, Enclosure):
            raise ValueError(f"The walls of a world are {self.walls!r}. Give one of {', '.join(Enclosure)}.")
        _require_digest("code of a world", self.code)
        names = [file.name for file in self.public_files]
        if len(names) != len(set(names)):
            raise ValueError(f"The public files of a world are {names}: one is named twice. Name each once.")
        if not all(isinstance(kind, str) and kind for kind in self.sources):
            raise ValueError(f"The sources of a world are {self.sources!r}. Name the kind of each, such as 'table'.")
        readers = self.own_readers
        if not isinstance(readers, int) or isinstance(readers, bool) or not 0 <= readers <= len(self.sources):
            raise ValueError(f"own_readers is {readers!r}. It counts some of the {len(self.sources)} sources.")
        if not isinstance(self.repeats, bool | None):
            raise ValueError(f"repeats is {self.repeats!r} in a world. It must be true, false or null.")

    @property
    def shown(self) -> bool:
        """Whether the kernel showed that nothing but the rows of those who are left came in; else it is declared."""
        return self.walls is Enclosure.NEW_ROOT and not self.own_readers

    @property
    def declared(self) -> tuple[str, ...]:
        """What a claim takes from the operator's word, in the claim's words."""
        return (*self._opened(), *self._read(), self._vouched(), COLUMNS)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "walls": self.walls.value,
            "code": self.code,
            "public_files": [{"name": file.name, "sha256": file.sha256} for file in self.public_files],
            "sources": list(self.sources),
            "own_readers": self.own_readers,
            "repeats": self.repeats,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> WorldRecord:
        """Read what ``to_json`` wrote and check it again. Raises ValueError on a missing or unknown field."""
        names = {field.name for field in fields(cls)}
        if not isinstance(record, Mapping) or set(record) != names:
            raise ValueError(f"The world of a claim is {record!r}. Its fields must be {sorted(names)}.")
        files = tuple(DeclaredFile(**file) for file in record["public_files"])
        return cls(
            **{**record, "walls": Enclosure(record["walls"]), "public_files": files, "sources": (*record["sources"],)}
        )

    def _opened(self) -> tuple[str, ...]:
        if self.walls is Enclosure.NEW_ROOT:
            return ()
        return (f"{OPENED}{_UNSHOWN[self.walls]}.",)

    def _read(self) -> tuple[str, ...]:
        count = self.own_readers
        if not count:
            return ()
        return (f"{count} {'source is' if count == 1 else 'sources are'} read by the operator's own program {READ}",)

    def _vouched(self) -> str:
        files, code = self.public_files, f"{VOUCHED}sha256:{self.code})"
        if not files:
            return f"{code} was not derived from anyone's data."
        digests = ", ".join(f"sha256:{file.sha256}" for file in files)
        listed = digests if len(files) <= _IN_WORDS else "listed under world with their digests"
        return f"{code} and {count_files(len(files), 'public')} ({listed}) were not derived from anyone's data."


def count_files(count: int, kind: str) -> str:
    """Return such as ``2 public files``."""
    return f"{count:,} {kind} file{'' if count == 1 else 's'}"


def is_vouched(line: str) -> bool:
    """Tell whether a declared line follows from the record of a world alone, which a letter says in its own words."""
    return line.startswith((VOUCHED, OPENED)) or line.endswith(READ)


def plain_of(line: str) -> str | None:
    """Return the plain sentence for a line that a world declares, with ``{data}``; None for any other line."""
    if line.startswith(VOUCHED):
        files = re.search(r"and ([\d,]+) public files? \(", line)
        further = f" and {count_files(int(files[1].replace(',', '')), 'further')} were" if files else " was"
        return f"The recipe's program{further} not made from {{data}}."
    if line.startswith(OPENED):
        return "The training opened nothing but the rows of the others."
    if line.endswith(READ):
        return f"{line.removesuffix(READ)}before rows are left out; it mixes no people."
    return "No column of the tables mixes several people." if line == COLUMNS else None


def _require_digest(what: str, digest: object) -> None:
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ValueError(f"The digest of the {what} is {digest!r}. Give its SHA-256 in 64 lower-case hex digits.")
