"""``expunge doctor``: a sound installation has no fault, and each fault by itself is found and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text, update

from expunge_service.cli import checks
from expunge_service.cli.checks import Finding
from expunge_service.infra import files
from expunge_service.infra.db import now
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Generation, Heartbeat, Model, Version
from expunge_service.infra.time import ALIVE_SECONDS, SECOND
from expunge_service.models.generations import open_generation
from expunge_workers import doctor
from expunge_workers.runtime.heartbeat import HeartbeatSender
from expunge_workers.scheduler.run import SILENT_SECONDS, forget_processes
from tests.harness.servers import free_port
from tests.workers.worlds import World

RECIPE = """
import torch
import unlearning as ul

def recipe(rows: ul.Rows = ul.table("people.csv", person="id", id="id")) -> ul.Recipe:
    inputs = rows.tensor("x", "y").float()
    targets = (inputs[:, 0] > 0).long()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2, bias=False),
        samples=rows.samples(inputs, targets, at=rows["__row"]),
        holdout=(torch.eye(2), torch.tensor([1, 0])),
        loss="cross_entropy",
        training=ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
"""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """Recipes of this test's own, to be broken."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "rows.py").write_text(RECIPE)
    write_people(folder, 8)
    return settings.model_copy(update={"recipes": folder})


def write_people(folder: Path, count: int) -> None:
    rows = [f"person-{k},{(-1.0) ** k * (k + 1)},{0.5 * k}" for k in range(count)]
    (folder / "people.csv").write_text("\n".join(["id,x,y", *rows]) + "\n")


@pytest.fixture
def sound(world: World) -> World:
    """An installation without a fault: a proved model, a worker and a scheduler that beat."""
    world.live("rows", method="newton", guarantee="proved")
    beat(world)
    return world


def beat(world: World) -> None:
    for kind in ("worker", "scheduler"):
        HeartbeatSender(world.database, kind, kind, 30).beat()


def look(settings: Settings, clock: Callable[[], float] = time.time) -> list[Finding]:
    return [*checks.examine(settings, clock), *doctor.examine(settings)]


def faults(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: f"{finding.what} {finding.hint}" for finding in findings if not finding.well}


def test_a_sound_installation_has_no_fault(sound: World) -> None:
    findings = look(sound.settings)
    assert faults(findings) == {}
    assert {"clock", "disk", "device", "walls", "recipe rows", "generation of m", "worker", "scheduler", "schema"} <= {
        finding.name for finding in findings
    }


Break = Callable[[World], Settings]


def altered(**values: object) -> Break:
    """The same installation under other settings."""
    return lambda world: world.settings.model_copy(update=values)


def after(act: Callable[[World], object]) -> Break:
    """The same settings after something happened to the installation."""

    def broken(world: World) -> Settings:
        act(world)
        return world.settings

    return broken


def sql(statement: str) -> Break:
    def act(world: World) -> None:
        with world.database.write() as session:
            session.execute(text(statement))

    return after(act)


def without(kind: str) -> Break:
    def act(world: World) -> None:
        with world.database.write() as session:
            session.execute(delete(Heartbeat).where(Heartbeat.kind == kind))

    return after(act)


def wrong_clock(world: World) -> None:
    HeartbeatSender(world.database, "worker", "worker", 30, clock=lambda: time.time() - 90).beat()


def of_the_old_form(world: World) -> None:
    """As if a release before rows had trained the model."""
    generation = world.rows_of(Generation)[0]
    world.change(Generation, generation.id, manifest=generation.manifest | {"with_rows": False})


def store_under_a_file(world: World) -> Settings:
    (world.settings.home / "file").write_text("")
    return world.settings.model_copy(update={"store": world.settings.home / "file" / "store"})


def trajectory_of_another_torch(world: World) -> None:
    generation = world.rows_of(Generation)[0]
    libraries = generation.manifest["libraries"] | {"torch": "1.13.1"}
    policy = world.rows_of(Model)[0].policy | {"method": "mini"}
    world.change(Generation, generation.id, method="mini", manifest=generation.manifest | {"libraries": libraries})
    world.change(Model, generation.model_id, policy=policy)


def exhausted_and_asked(world: World) -> None:
    world.change(Model, world.model_named("m"), status="exhausted")
    world.delete("person-1")


def lose_state(world: World) -> None:
    (world.settings.private_store / world.rows_of(Version)[0].state).unlink()


# fault -> (how it comes about, the finding's name, a word of what is said)
FAULTS: dict[str, tuple[Break, str, str]] = {
    "missing secret": (after(lambda w: w.settings.pepper_file.unlink()), "pepper_file", "EXPUNGE_SECRETS"),
    "secret that others read": (after(lambda w: w.settings.pepper_file.chmod(0o644)), "pepper_file", "chmod 600"),
    "unreachable database": (
        lambda w: w.settings.model_copy(
            update={"database_url": f"postgresql://expunge:hush@127.0.0.1:{free_port()}/expunge"}
        ),
        "database",
        "EXPUNGE_DATABASE_URL",
    ),
    "unreachable broker": (
        lambda w: w.settings.model_copy(update={"broker_url": f"redis://:hush@127.0.0.1:{free_port()}/0"}),
        "broker",
        "does not answer",
    ),
    "schema behind": (sql("DELETE FROM alembic_version"), "schema", "expunge migrate"),
    "schema ahead": (sql("UPDATE alembic_version SET version_num = '9999'"), "schema", "newer release"),
    "no worker": (without("worker"), "worker", "expunge run worker"),
    "no scheduler": (without("scheduler"), "scheduler", "expunge run scheduler"),
    "clock of a process": (after(wrong_clock), "clock", "worker is 90 s behind"),
    "store not writable": (store_under_a_file, "store", "cannot be written"),
    "recipe that does not import": (
        after(lambda w: (w.settings.recipes / "bad.py").write_text("1 / 0\ndef recipe(): ...\n")),
        "recipe bad",
        "The recipe fails: ZeroDivisionError at bad.py:1. Correct it, then retry.",
    ),
    "CUDA asked for and missing": (altered(device="cuda:99"), "device", "CUDA build"),
    "recipe of a generation changed": (
        after(lambda w: (w.settings.recipes / "rows.py").write_text(RECIPE + "N = 1\n")),
        "generation of m",
        "rows.py, or a module that it imports, differs from the one registered.",
    ),
    "generation of the old form": (
        after(of_the_old_form),
        "generation of m",
        "recipe that read its data by itself, which none does any more. Deletions will be blocked. Rewrite the recipe",
    ),
    "a model to be ported": (
        after(of_the_old_form),
        "ports",
        "recipe: m. 0 requests wait as recipe_form. `expunge models port m`",
    ),
    "recipe of a generation gone": (
        after(lambda w: (w.settings.recipes / "rows.py").unlink()),
        "generation of m",
        "no recipe",
    ),
    "data of a generation missing": (
        after(lambda w: write_people(w.settings.recipes, 6)),
        "generation of m",
        "Training samples are missing or changed (2).",
    ),
    "trajectory of another torch": (after(trajectory_of_another_torch), "generation of m", "torch 1.13.1"),
    "requests that an exhausted budget blocks": (after(exhausted_and_asked), "budget of m", "1 requests wait"),
    "state of a generation gone": (after(lose_state), "generation of m", "The stored state "),
}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_named(world: World, fault: str) -> None:
    broken, name, word = FAULTS[fault]
    if name.endswith(" of m") or name == "ports":
        world.live("rows", method="newton", guarantee="proved")
    beat(world)
    found = faults(look(broken(world)))
    assert word in found[name]
    assert "hush" not in str(found), "a password is never shown"


def test_files_that_are_no_recipes_are_named_and_skipped(sound: World) -> None:
    (sound.settings.recipes / "shared.py").write_text("import no_such_module\n")
    findings = look(sound.settings)
    assert faults(findings) == {}
    told = {finding.name: finding.what for finding in findings}
    assert "Skipped, for they define no recipe(): shared.py." in told["recipes"] and "recipe shared" not in told
    assert "recipes: rows." in told["recipes"]


def test_a_package_that_is_missing_is_a_fault_of_recipes_that_models_use(sound: World) -> None:
    needy = f"import no_such_module\n{RECIPE}"
    (sound.settings.recipes / "needy.py").write_text(needy)
    findings = {finding.name: finding for finding in look(sound.settings)}
    assert findings["recipe needy"].well
    what = "It imports a package that is not installed here, at needy.py:1. No served model uses it."
    assert findings["recipe needy"].what == what
    (sound.settings.recipes / "rows.py").write_text(needy)
    assert set(faults(look(sound.settings))) == {"recipe rows", "generation of m"}


def test_an_exhausted_budget_is_well_while_nobody_waits_or_a_retrain_is_on_its_way(sound: World) -> None:
    model_id = sound.model_named("m")
    sound.change(Model, model_id, status="exhausted")
    assert faults([*checks.examine(sound.settings)]) == {}
    sound.delete("person-1")
    assert set(faults([*checks.examine(sound.settings)])) == {"budget of m"}
    with sound.database.write() as session:
        candidate = Generation(
            tenant_id="default", model_id=model_id, status="candidate", method="newton", guarantee="none"
        )
        candidate.created_at = now(session)
        open_generation(session, candidate)
    assert faults([*checks.examine(sound.settings)]) == {}


@pytest.mark.parametrize("ahead", [60.0, -60.0])
def test_a_clock_that_disagrees_with_the_databases_is_found(sound: World, ahead: float) -> None:
    found = faults(look(sound.settings, clock=lambda: time.time() + ahead))
    assert ("ahead of" if ahead > 0 else "behind") in found.pop("clock")
    assert found == {}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_asks_a_worker_process_and_its_exit_code_tells(sound: World) -> None:
    def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {
            "EXPUNGE_HOME": str(sound.settings.home),
            "EXPUNGE_DATABASE_URL": sound.settings.database_url,
            "EXPUNGE_RECIPES": str(sound.settings.recipes),
        }
        words = [sys.executable, "-m", "expunge_client.cli.main", "doctor", *arguments]
        return subprocess.run(words, env=os.environ | ours | environment, capture_output=True, text=True, check=False)

    (sound.settings.recipes / "bad.py").write_text("print('noise')\nraise OSError('person-3')\ndef recipe(): ...\n")
    ill = command("--json", EXPUNGE_DEVICE="cuda:99")
    told = {each["name"]: each for each in json.loads(ill.stdout)}
    assert ill.returncode == 1
    assert {name for name, each in told.items() if not each["well"]} == {"recipe bad", "device"}
    assert "person-3" not in ill.stdout + ill.stderr


def test_a_process_that_stops_takes_its_heartbeat_away(world: World) -> None:
    pulse = HeartbeatSender(world.database, "here", "worker", 30)
    pulse.start()
    assert world.count(Heartbeat) == 1
    pulse.stop()
    assert world.count(Heartbeat) == 0


def test_a_process_that_died_is_forgotten_for_good_by_the_one_that_replaces_it(world: World) -> None:
    """One for one, of the same kind, and by nobody who ran beside it. It stays forgotten when its heir is stopped."""
    kinds = {"first": "worker", "second": "worker", "beside": "worker", "writer": "scheduler"}
    pulses = {name: HeartbeatSender(world.database, name, kind, 30) for name, kind in kinds.items()}
    for pulse in pulses.values():
        pulse.beat()
    with world.database.write() as session:
        for back, name in enumerate(("writer", "second", "first"), start=2):
            past = now(session) - back * ALIVE_SECONDS * SECOND
            session.execute(update(Heartbeat).where(Heartbeat.process == name).values(beat_at=past, started_at=past))
        session.execute(update(Heartbeat).where(Heartbeat.process == "beside").values(started_at=past - SECOND))

    def shown() -> set[str]:
        with world.database.read() as session:
            return set(session.scalars(select(Heartbeat.process)))

    pulses["beside"].beat()
    assert shown() == set(kinds)
    heir = HeartbeatSender(world.database, "heir", "worker", 30)
    for _ in range(3):
        heir.beat()
    assert shown() == {"second", "beside", "writer", "heir"}
    heir.stop()
    assert shown() == {"second", "beside", "writer"}
    last = HeartbeatSender(world.database, "last", "worker", 30)
    last.beat()
    assert shown() == {"beside", "writer", "last"}


def test_a_process_that_died_just_before_its_heir_began_is_forgotten_when_it_is_silent(world: World) -> None:
    died, heir = (HeartbeatSender(world.database, name, "worker", 30) for name in ("died", "heir"))
    died.beat()
    heir.beat()
    with world.database.write() as session:
        assert set(session.scalars(select(Heartbeat.process))) == {"died", "heir"}
        for name, seconds in (("died", ALIVE_SECONDS + 2), ("heir", ALIVE_SECONDS + 1)):
            past = now(session) - seconds * SECOND
            session.execute(update(Heartbeat).where(Heartbeat.process == name).values(beat_at=past, started_at=past))
    heir.beat()
    with world.database.read() as session:
        assert list(session.scalars(select(Heartbeat.process))) == ["heir"]


def test_a_process_that_died_is_forgotten_once_it_was_silent_for_an_hour(world: World) -> None:
    for name in ("dead", "alive"):
        HeartbeatSender(world.database, name, "worker", 30).beat()
    with world.database.write() as session:
        past = now(session) - (SILENT_SECONDS - 60) * SECOND
        session.execute(update(Heartbeat).where(Heartbeat.process == "dead").values(beat_at=past))
    assert forget_processes(world.database) == 0
    with world.database.write() as session:
        session.execute(update(Heartbeat).where(Heartbeat.process == "dead").values(beat_at=past - 61 * SECOND))
    assert forget_processes(world.database) == 1
    with world.database.read() as session:
        assert list(session.scalars(select(Heartbeat.process))) == ["alive"]


@pytest.mark.parametrize(("kind", "well"), [("zfs", False), ("btrfs", False), ("ext4", True)])
def test_a_key_folder_where_nothing_is_overwritten_in_place_is_a_fault(
    sound: World, monkeypatch: pytest.MonkeyPatch, kind: str, well: bool
) -> None:
    mounts = sound.settings.home / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\npool {sound.settings.key_folder} {kind} rw 0 0\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    found = [each for each in checks.examine(sound.settings) if each.name == "key_folder"]
    assert [each.well for each in found] == [True, well]
    assert well or f"({kind})" in found[-1].what
