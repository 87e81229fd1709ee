"""What a version says of itself in other systems, and that a damaged download is no bundle."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from expunge_client import NotAuthentic
from expunge_connect.registry.bom import properties_of
from expunge_connect.registry.bundle import BOM, name_of, write_bundle

VERSION: dict[str, Any] = {
    "model": "m",
    "number": 2,
    "parent": 1,
    "generation": 1,
    "method": "newton",
    "claim": {"guarantee": "none", "reference": "renormalised", "max_distance": None, "epsilon": None, "updates": 1},
    "samples": 3,
    "people": 1,
    "checkpoint_sha256": hashlib.sha256(b"weights").hexdigest(),
    "holdout_accuracy": None,
    "requests": ["0" * 32],
    "published_at": "2026-11-22T10:00:00.000000Z",
}


def test_properties_say_what_is_claimed_and_leave_out_what_is_not() -> None:
    assert properties_of(VERSION) == {
        "expunge.method": "newton",
        "expunge.generation": "1",
        "expunge.guarantee": "none",
        "expunge.reference": "renormalised",
        "expunge.updates": "1",
        "expunge.people_erased": "1",
        "expunge.samples_erased": "3",
        "expunge.erased_since": "2026-11-22T10:00:00.000000Z",
    }


def test_a_download_with_other_bytes_is_refused_and_not_kept(tmp_path: Path) -> None:
    def download(path: str, target: Path) -> None:
        assert path == "/v1/models/m/versions/2/checkpoint"
        target.write_bytes(b"other weights")

    with pytest.raises(NotAuthentic, match="m 2"):
        write_bundle(tmp_path, {"recipe": "r"}, VERSION, download)
    assert not (tmp_path / name_of(VERSION)).exists()


def test_a_file_of_another_library_keeps_its_suffix() -> None:
    assert name_of(VERSION) == "model.safetensors"
    assert name_of({**VERSION, "checkpoint_suffix": "lightgbm.txt"}) == "model.lightgbm.txt"
    assert name_of({**VERSION, "checkpoint_suffix": "zip"}) == "model.zip"


def test_a_zip_that_is_no_archive_is_no_bundle(tmp_path: Path) -> None:
    def download(path: str, target: Path) -> None:
        target.write_bytes(b"weights")

    with pytest.raises(NotAuthentic, match=r"model\.zip cannot be read"):
        write_bundle(tmp_path, {"recipe": "r"}, {**VERSION, "checkpoint_suffix": "zip"}, download)
    assert not (tmp_path / BOM).exists()
