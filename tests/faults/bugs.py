"""Bugs to plant: exact replacements in the source, kept in `tests/faults/planted/*.toml``.

Each file says the ``bug`` in words, the ``suite`` (pytest node ids) that must fail under it, and one or more ``edit``
tables with ``file``, ``old`` and ``new``. ``old`` occurs exactly once in the file; a test of the default suite keeps
that so.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent / "planted"


class DoesNotApply(ValueError):
    """The source has moved on: the text to replace is not there exactly once."""


@dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Edit the file under ``root``. Raises DoesNotApply."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise DoesNotApply(f"{self.file} holds {text.count(self.old)} times:\n{self.old}")
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        path.write_text(changed)


@dataclass(frozen=True)
class Bug:
    name: str
    words: str
    suite: tuple[str, ...]
    edits: tuple[Edit, ...]

    def plant(self, root: Path) -> None:
        """Put the bug into the source under ``root``. Raises DoesNotApply."""
        for edit in self.edits:
            edit.apply(root)


def every_bug() -> list[Bug]:
    return [_read(path) for path in sorted(HERE.glob("*.toml"))]


def _read(path: Path) -> Bug:
    read = tomllib.loads(path.read_text())
    return Bug(path.stem, read["bug"], tuple(read["suite"]), tuple(Edit(**edit) for edit in read["edit"]))
