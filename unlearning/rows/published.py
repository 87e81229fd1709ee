"""What a recipe returns that trained by itself: files, as they will be published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unlearning.artefact import SAFE
from unlearning.formats import archive_of, format_of, is_archive, why_misnamed
from unlearning.rows._rows import Rows
from unlearning.types import RecipeError


@dataclass(frozen=True)
class Published:
    """The files of a trained model, and how good it is.

    Args:
        files: the content by name, bytes or text (written as UTF-8); each of a format in ``unlearning.formats``. A name
            may have folders: ``en/model.json``.
        score: (rows kept apart) -> a number, greater is better. It is called after the files are out.

    Raises:
        RecipeError: there is no file; a name leads elsewhere, stands twice but for its case, or is that of a pickle or
            a zip; a content is empty, an archive, or of no known format; ``score`` is no function.
    """

    files: Mapping[str, bytes | str]
    score: Callable[[Rows], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.files, Mapping):
            what = f"Published got a {type(self.files).__name__} in place of contents by name."
            raise RecipeError(
                what, "Of a folder: Published({file.name: file.read_bytes() for file in folder.iterdir()})."
            )
        if not self.files:
            raise RecipeError("The recipe publishes no file.", "Return one: Published({'model.txt': ...}).")
        if wrong := why_misnamed(self.files):
            raise RecipeError(*wrong)
        if self.score is not None and not callable(self.score):
            what = f"Published got a {type(self.score).__name__} as score, and no function."
            raise RecipeError(what, "Write one of the rows kept apart (aside=): score=lambda apart: ...")
        files = {name: _content(name, content) for name, content in self.files.items()}
        object.__setattr__(self, "files", files)

    def __bytes__(self) -> bytes:
        """Return what is published: one file as it is; several as a zip without compression, ordered by name.

        ``unlearning.formats.files_of`` reads several back.

        Raises:
            RecipeError: they are too many, or too large together, for such a zip.
        """
        contents = {name: content for name, content in self.files.items() if isinstance(content, bytes)}
        if len(contents) == 1:
            return next(iter(contents.values()))
        try:
            return archive_of(contents)
        except ValueError as error:
            raise RecipeError(str(error), "Publish fewer files, or smaller ones.") from None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _content(name: str, content: object) -> bytes:
    if not isinstance(content, bytes | str):
        raise RecipeError(f"The file {name!r} holds a {type(content).__name__}.", "Give bytes or a text.")
    data = content.encode() if isinstance(content, str) else content
    if not data:
        raise RecipeError(f"The file {name!r} is empty.", "Leave it out.")
    if is_archive(data):
        raise RecipeError(f"The file {name!r} is an archive.", "Give the files that are in it, each under its name.")
    if format_of(data) is None and _is_json(data):
        what = f"The file {name!r} is JSON, and no object."
        raise RecipeError(what, 'Put the value into one: json.dumps({"values": values}).')
    if format_of(data) is None:
        what = f"The file {name!r} is of no format that is known to run no code where it is opened, as pickles do."
        raise RecipeError(what, SAFE)
    return data
