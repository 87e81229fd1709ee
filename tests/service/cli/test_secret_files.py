"""Which secret files the doctor calls private: a person's own, and those that Kubernetes mounts from a Secret."""

from __future__ import annotations

import os

import pytest

from expunge_service.cli.checks import is_open_to_others

ROOT, OURS, OTHER = 0, 10001, 20000


def file(mode: int, owner: int, group: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, group, 65, 0, 0, 0))


@pytest.mark.parametrize(
    "mode, owner, group, is_open",
    [
        (0o600, OURS, OURS, False),
        (0o400, OURS, OURS, False),
        (0o640, OURS, OURS, True),
        (0o604, OURS, OURS, True),
        (0o440, ROOT, OURS, False),
        (0o440, ROOT, OTHER, True),
        (0o460, ROOT, OURS, True),
        (0o444, ROOT, OURS, True),
        (0o440, OTHER, OURS, True),
    ],
)
def test_a_file_is_private_whose_one_reader_is_this_user(mode: int, owner: int, group: int, is_open: bool) -> None:
    assert is_open_to_others(file(mode, owner, group), OURS, {OURS}) is is_open


def test_root_owns_what_it_reads() -> None:
    assert is_open_to_others(file(0o440, ROOT, ROOT), ROOT, {ROOT})
    assert not is_open_to_others(file(0o400, ROOT, ROOT), ROOT, {ROOT})
