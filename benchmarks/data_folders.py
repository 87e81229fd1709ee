"""Where data sets that no benchmark downloads lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def folder_with(files: Sequence[str], variable: str, beside: Path, source: str) -> Path:
    """Return the folder that the environment variable names, else ``beside`` the checkout or further up.

    ``source``: where the files come from, in words.

    Raises:
        FileNotFoundError: no such folder has all the files; the message says what to set.
    """
    named = os.environ.get(variable)
    places = [Path(named)] if named else [parent / beside for parent in Path(__file__).resolve().parents]
    for place in places:
        if all((place / file).is_file() for file in files):
            return place
    where = named or f"{beside} beside this checkout"
    raise FileNotFoundError(
        f"{' and '.join(files)} are not in {where}. Set {variable} to the folder that holds these files of {source}."
    )
