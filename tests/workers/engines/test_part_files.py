"""The files of a part, its program where something is wrong, and the setting that names an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from expunge_service.infra.settings import SettingsError
from expunge_service.infra.stores import Damaged
from expunge_workers import doctor, part
from expunge_workers.runtime import drain, engine
from expunge_workers.runtime.part_files import PartFiles, delete_unasked
from expunge_workers.runtime.world import seal
from expunge_workers.storage import new_key
from tests.workers.worlds import World

ROWS = b"rows of people who stay"


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> PartFiles:
    if request.param == "folder":
        return PartFiles.at(str(tmp_path / "parts"), "a" * 64, new_key())
    bucket: str = request.getfixturevalue("bucket")
    return PartFiles.at(f"{bucket}/parts", "a" * 64, new_key())


def handed_over(files: PartFiles) -> PartFiles:
    handle = seal(ROWS)
    files.ask()
    files.hand_over({"seed": 1}, {"rows people": handle}, {"aside people": handle})
    os.close(handle)
    return files


def names(files: PartFiles) -> list[str]:
    """The names of the files; a bucket of SeaweedFS lists itself, too."""
    return [entry.name for entry in files.folder.entries() if entry.name]


def test_what_goes_out_comes_back_and_cannot_be_read_on_the_way(files: PartFiles) -> None:
    handed_over(files)
    order = files.order()
    assert order["seed"] == 1
    for given in (order["files"], order["aside"]):
        with files.given(given) as handles:
            assert [os.pread(handle, 100, 0) for handle in handles.values()] == [ROWS]
    files.keep_checkpoint({"step": 7}, b"weights of step 7")
    assert files.checkpoint() == ({"step": 7}, b"weights of step 7")
    assert files.verdict() is None
    files.answer({"score": None}, b"a model")
    assert files.verdict() == ({"score": None}, b"a model")
    everything = b"".join(files.folder.read(entry.name) for entry in files.folder.entries())
    assert not any(secret in everything for secret in (ROWS, b"weights", b"a model", b"seed"))
    files.remove()
    assert names(files) == []


def test_files_of_another_part_or_name_or_key_do_not_open(files: PartFiles) -> None:
    handed_over(files)
    other = PartFiles("b" * 64, files.folder, files.sealer)
    other.folder.write(f"{other.name}.part", [files.folder.read(f"{files.name}.part")])
    files.folder.write(f"{files.name}.verdict", [files.folder.read(f"{files.name}.part")])
    for read in (other.order, files.verdict, PartFiles(files.name, files.folder, type(files.sealer)(new_key())).order):
        with pytest.raises(Damaged):
            read()


def test_what_was_handed_over_under_a_key_that_is_gone_is_handed_over_anew(files: PartFiles) -> None:
    handed_over(files)
    anew = handed_over(PartFiles(files.name, files.folder, type(files.sealer)(new_key())))
    assert anew.order()["seed"] == 1


def test_a_program_whose_part_was_removed_leaves_nothing(files: PartFiles) -> None:
    handed_over(files).remove()
    files.keep_checkpoint({}, b"late")
    files.answer({}, b"late")
    assert names(files) == [] and files.unasked_seconds() == float("inf")


def test_files_that_no_worker_asks_for_are_deleted(tmp_path: Path) -> None:
    place, kept = str(tmp_path / "parts"), []
    for name, age in (("a" * 64, 100), ("b" * 64, 10)):
        kept.append(handed_over(PartFiles.at(place, name, new_key())))
        asked = Path(place) / f"{name}.asked"
        os.utime(asked, (asked.stat().st_atime, asked.stat().st_mtime - age))
    delete_unasked(place, 50)
    assert {path.name.partition(".")[0] for path in Path(place).iterdir()} == {"b" * 64}
    assert 10 <= kept[1].unasked_seconds() < 50


def test_a_program_that_no_worker_asks_for_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_wanted", drain._Wanted())
    monkeypatch.setattr(part, "ASK_SECONDS", 0.0)
    files = handed_over(PartFiles.at(str(tmp_path), "a" * 64, new_key()))
    look = part._end_unasked(files)
    look(0.0)
    assert not drain.asked()
    os.utime(tmp_path / f"{files.name}.asked", (0, 0))
    look(0.0)
    assert drain.asked()


@pytest.mark.parametrize("name", ["a" * 64, "b" * 64])
def test_a_program_says_that_its_files_do_not_open(tmp_path: Path, name: str) -> None:
    handed_over(PartFiles.at(str(tmp_path), "a" * 64, new_key()))
    command = [sys.executable, "-m", "expunge_workers.part", str(tmp_path), name]
    ended = subprocess.run(command, input=new_key(), capture_output=True, timeout=60)
    assert ended.returncode == part.UNSEALED and name in ended.stderr.decode()


class Runner:
    """A runner that is installed."""


def test_the_setting_names_a_runner_and_a_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    there = EntryPoint("tests", f"{__name__}:Runner", engine.GROUP)
    lacking = EntryPoint("lacking", "a_package_that_is_missing:Runner", engine.GROUP)
    monkeypatch.setattr(engine, "entry_points", lambda group: (there, lacking))
    home, asked = world.settings.home, engine.engine_of.__wrapped__
    assert asked("", home) is None
    for setting, place in (
        ("tests", str(home / "parts")),
        ("tests@/srv/parts", "/srv/parts"),
        ("tests@s3://b/p", "s3://b/p"),
    ):
        made = asked(setting, home)
        assert made is not None and type(made.runner).__name__ == "Runner" and made.place == place
    for setting, said in (
        ("slurm", "names no runner .lacking, tests.. Install"),
        ("lacking", "needs a_package_that_is"),
    ):
        with pytest.raises(SettingsError, match=said):
            asked(setting, home)
    monkeypatch.setattr(doctor, "engine_of", asked)
    found = [doctor.runner(world.settings.model_copy(update={"runner": each})) for each in ("", "tests", "slurm")]
    assert [finding.well for finding in found] == [True, True, False]
