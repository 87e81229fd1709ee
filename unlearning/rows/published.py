"""What a recipe returns that trained by itself: files, as they will be published."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unlearning.artefact import PICKLES, SAFE
from unlearning.formats import format_of
from unlearning.rows._rows import Rows
from unlearning.types import RecipeError

_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DATE = (1980, 1, 1, 0, 0, 0)
"""the first that a zip file can hold"""


@dataclass(frozen=True)
class Published:
    """The files of a trained model, and how good it is.

    Args:
        files: the content by name, bytes or text (written as UTF-8); each of a format in ``unlearning.formats``. A name
            may have folders: ``en/model.json``.
        score: (rows kept apart) -> a number, greater is better. It is called after the files are out.

    Raises:
        RecipeError: there is no file; a name leads elsewhere, stands twice but for its case, or is that of a pickle; a
            content is empty or of no known format.
    """

    files: Mapping[str, bytes | str]
    score: Callable[[Rows], Any] | None = None

    def __post_init__(self) -> None:
        files = {name: _content(name, content) for name, content in self.files.items()}
        if not files:
            raise RecipeError("The recipe publishes no file.", "Return one: Published({'model.txt': ...}).")
        names = {name.lower() for name in files}
        if len(names) < len(files):
            raise RecipeError("Two files have one name but for its case.", "Give each its own name.")
        folders = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}
        if names & folders:
            what = f"The name {min(names & folders)!r} is that of a file and of a folder."
            raise RecipeError(what, "Give each its own name.")
        object.__setattr__(self, "files", files)

    def __bytes__(self) -> bytes:
        """Return what is published: one file as it is; several as a zip without compression, ordered by name.

        The same files give the same bytes on every machine and day.
        """
        contents = {name: content for name, content in self.files.items() if isinstance(content, bytes)}
        if len(contents) == 1:
            return next(iter(contents.values()))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(contents):
                entry = zipfile.ZipInfo(name, _DATE)
                entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, whatever it is written on
                archive.writestr(entry, contents[name])
        return buffer.getvalue()


def _content(name: str, content: object) -> bytes:
    components = name.split("/") if isinstance(name, str) else [""]
    if not all(_COMPONENT.fullmatch(component) for component in components):
        what = f"A file is named {name!r}."
        raise RecipeError(what, "Use letters, digits, '.', '_' and '-', and / between folders: 'en/model.json'.")
    if PICKLES & set(components[-1].lower().split(".")[1:]):
        raise RecipeError(f"The name {name!r} is that of a pickled file, which runs code.", SAFE)
    if not isinstance(content, bytes | str):
        raise RecipeError(f"The file {name!r} holds a {type(content).__name__}.", "Give bytes or a text.")
    data = content.encode() if isinstance(content, str) else content
    if not data:
        raise RecipeError(f"The file {name!r} is empty.", "Leave it out.")
    if format_of(data) is None:
        what = f"The file {name!r} is of no format that is known to run no code where it is opened, as pickles do."
        raise RecipeError(what, SAFE)
    return data
