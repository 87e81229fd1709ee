"""What a worker logs: what begins, ends, fails, is refused or lost, with model and reason, and nobody's id."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.logging import JsonLines
from expunge_service.queue import Stale
from expunge_workers import app
from tests.workers.rows.data import APART, lay_out
from tests.workers.worlds import World, open_world

PERSON = "p3"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_claim_and_a_publication_are_one_line_each(world: World, caplog: pytest.LogCaptureFixture) -> None:
    model_id = world.live("convex")
    request = world.delete(PERSON)
    caplog.set_level(logging.INFO)
    caplog.clear()
    world.work(model_id)
    said = {each.message: vars(each) for each in caplog.records}
    claimed, published, completed = (
        said[each] for each in ("deletions claimed", "version published", "request completed")
    )
    assert (claimed["model"], claimed["count"]) == ("m", 1)
    assert (published["model"], published["version"], published["count"]) == ("m", 2, 1)
    assert published["seconds"] > 0 and (completed["request_id"], completed["status"]) == (request, "completed")
    messages = [each.message for each in caplog.records]
    assert all(messages.count(each) == 1 for each in ("deletions claimed", "version published", "request completed"))
    written = "".join(JsonLines().format(each) for each in caplog.records)
    assert PERSON not in written


def raising(error: Exception) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


def said(caplog: pytest.LogCaptureFixture, begins: str) -> dict[str, Any]:
    (line,) = (each for each in caplog.records if each.getMessage().startswith(begins))
    return vars(line) | {"text": line.getMessage(), "written": JsonLines().format(line)}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_training_that_a_full_disk_ends_says_so_by_name(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model_id = world.register(name="heart")
    full = OSError(errno.ENOSPC, "No space left on device", "/srv/state-of-ada")
    monkeypatch.setattr(app, "prepare", raising(full))
    caplog.set_level(logging.INFO)
    world.work(model_id)
    assert said(caplog, "training begun")["model"] == "heart"
    failed = said(caplog, "training failed: ")
    assert (failed["model"], failed["reason"], failed["count"]) == ("heart", "ENOSPC", 1)
    assert failed["text"].startswith("training failed: ENOSPC at ") and "ada" not in failed["written"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_training_that_is_refused_and_one_that_is_lost_say_why(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.work(world.register("no_such_recipe", name="wrong"))
    refused = said(caplog, "training refused")
    assert refused["model"] == "wrong" and "no_such_recipe" in refused["why"]
    caplog.clear()
    monkeypatch.setattr(app, "prepare", raising(Stale("another worker has the claim")))
    world.work(world.register(name="heart"))
    lost = said(caplog, "training lost: ")
    assert (lost["model"], lost["reason"]) == ("heart", "Stale") and "another worker" in lost["text"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_recipe_whose_disk_is_full_is_not_refused_for_it(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = f"    raise OSError({errno.ENOSPC}, 'No space left on device', 'ada.csv')\n    frame ="
    lay_out(tmp_path / "recipes", recipe=APART.replace("    frame =", full))
    here = open_world(world.settings.model_copy(update={"recipes": tmp_path / "recipes"}))
    caplog.set_level(logging.INFO)
    model_id = here.register("rows", "retrain", name="heart")
    here.work(model_id)
    failed = said(caplog, "training failed: ENOSPC")
    assert (failed["model"], failed["reason"]) == ("heart", "ENOSPC") and "ada" not in failed["written"]
    assert here.model(model_id).status == "preparing", here.model(model_id).reason
    here.storage.close()
