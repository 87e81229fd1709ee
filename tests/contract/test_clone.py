"""What a clone must have to work on any file system: no link, and copies that are what they were copied from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIES = {
    "deploy/helm/expunge/files/alerts.yml": "dashboards/alerts.yml",
    "deploy/helm/expunge/files/expunge.json": "dashboards/grafana/dashboards/expunge.json",
}
"""a chart may read only files of its own folder"""
NOT_CLONED = {"build", "dist", "recipes", "data", "secrets", "shared", "node_modules"}


def test_no_file_of_the_tree_is_a_link() -> None:
    links = []
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder)
        links += [path for path in map(here.joinpath, [*folders, *files]) if path.is_symlink()]
        top = here == ROOT
        folders[:] = [name for name in folders if not (name.startswith(".") or (top and name in NOT_CLONED))]
    assert [path.relative_to(ROOT).as_posix() for path in links if path.name != ".servers"] == []


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_its_source(copy: str) -> None:
    assert (ROOT / copy).read_bytes() == (ROOT / COPIES[copy]).read_bytes(), f"Run: cp {COPIES[copy]} {copy}"
