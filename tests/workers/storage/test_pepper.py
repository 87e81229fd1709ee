"""An installation has one pepper: no process works under another."""

from __future__ import annotations

import pytest

from expunge_service.access.api_keys import create_key
from expunge_service.app import create_app
from expunge_service.cli import checks
from expunge_service.infra.settings import SettingsError, adopt_secret
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.storage.storage import Storage
from tests.workers.worlds import TENANT, World


def pepper_findings(world: World) -> list[checks.Finding]:
    return [each for each in checks.examine(world.settings) if each.name == "pepper"]


def make_key(world: World) -> None:
    pepper = Storage.of(world.settings).pepper
    with world.database.write() as session:
        create_key(session, pepper, label="test", scopes=["audit:read"], tenant_id=TENANT)


def test_the_first_api_key_fixes_the_pepper_and_no_process_starts_under_another(world: World) -> None:
    make_key(world)
    kept = world.settings.pepper_file.read_text()
    first = world.storage.pepper.id
    assert pepper_findings(world) == []
    adopt_secret(world.settings.pepper_file)
    for start in (create_app, Storage.of, open_scheduler):
        with pytest.raises(SettingsError, match=f"EXPUNGE_SECRETS: .* pepper {first}"):
            start(world.settings)
    found = pepper_findings(world)
    assert [each.well for each in found] == [False] and first in found[0].what
    world.settings.pepper_file.write_text(kept)
    make_key(world)
    create_app(world.settings)
    open_scheduler(world.settings)
    assert pepper_findings(world) == []


def test_no_key_is_made_under_another_pepper(world: World) -> None:
    """A process that started without its database, or before the first key, is stopped here."""
    adopt_secret(world.settings.pepper_file)
    other = Storage.of(world.settings).pepper
    make_key(world)
    with pytest.raises(SettingsError, match=other.id), world.database.write() as session:
        create_key(session, world.storage.pepper, label="test", scopes=["audit:read"], tenant_id=TENANT)
