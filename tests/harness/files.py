"""Where a store on a disk keeps its files: for tests that look at them, damage them or take them away."""

from __future__ import annotations

from pathlib import Path

from expunge_service.infra.files import MARK, DiskFolder
from expunge_service.infra.stores import Store


def root_of(store: Store) -> Path:
    """Return the folder of a store on a disk."""
    assert isinstance(store.folder, DiskFolder)
    return store.folder.root


def path_in(store: Store, digest: str) -> Path:
    """Return the path of one of its files."""
    return root_of(store) / digest


def names_in(store: Store) -> set[str]:
    """Return the names of its files, without the mark of the installation."""
    return {entry.name for entry in store.folder.entries()} - {MARK}
