"""Versions of several files: a zip without compression, listed and unpacked. Its names are not trusted."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from expunge_client.errors import NotAuthentic

ARCHIVE = "zip"
"""the ``checkpoint_suffix`` of a version of several files"""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_HINT = "It was not opened: tell whoever runs Expunge that the recipe publishes another kind of zip."
_BLOCK = 1 << 20


def archive_digests(archive: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a version's archive by its name, in the archive's order.

    Raises NotAuthentic where it is no archive as Expunge publishes.
    """
    digests = {}
    with _opened(archive) as (file, entries):
        for entry in entries:
            digest = hashlib.sha256()
            with file.open(entry) as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
            digests[entry.filename] = digest.hexdigest()
    return digests


def unpack_archive(archive: Path, folder: Path) -> None:
    """Write the files of a version's archive into ``folder``, which must not exist: all of them, or nothing.

    Raises:
        NotAuthentic: it is no archive as Expunge publishes: compressed or damaged, or a name leads out of the folder.
        OSError: the folder cannot be written, or holds something.
    """
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with _opened(archive) as (file, entries):
            for entry in entries:
                path = part / entry.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with file.open(entry) as content, path.open("xb") as target:
                    shutil.copyfileobj(content, target, _BLOCK)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """Open an archive whose entries may be read: none is compressed, so they are no larger than the archive."""
    try:
        with zipfile.ZipFile(archive) as file:
            entries = file.infolist()
            if wrong := _why_not(entries, archive.stat().st_size):
                raise NotAuthentic(f"The archive {archive.name} {wrong} {_HINT}")
            yield file, entries
    except NotAuthentic:
        raise
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise NotAuthentic(f"The archive {archive.name} cannot be read: {error}. {_HINT}") from error


def _why_not(entries: list[zipfile.ZipInfo], size: int) -> str | None:
    """Return what is wrong with the entries of an archive of ``size`` bytes, as the end of a sentence."""
    names = {entry.filename.lower() for entry in entries}
    folders = {name[: found.start()] for name in names for found in re.finditer("/", name)}
    for entry in entries:
        # later versions of Python rename an entry after its "Unicode path" field
        if not _NAME.fullmatch(entry.orig_filename) or entry.filename != entry.orig_filename:
            return f"holds a file named {entry.orig_filename[:200]!r}."
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            return f"holds {entry.filename[:200]!r} compressed or encrypted."
    if not entries or len(names) < len(entries) or names & folders:
        return "holds no file, or several of one name."
    if sum(entry.file_size for entry in entries) > size:
        return "says that its files are larger than itself."
    return None
