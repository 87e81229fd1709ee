"""One running service per backend, shared by every system test: SQLite with files, PostgreSQL with Redis."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers import Postgres, Redis
from tests.harness.stack import Stack, running

ROOT = Path(__file__).parents[2]
BACKENDS = ["sqlite", "postgres"]
SETTINGS = {"GRACE": "0.5"}


@pytest.fixture(scope="package", params=BACKENDS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """API, worker and scheduler as processes. A test that stops one of them starts it again.

    They end with the last test of this package: three processes that poll for the rest of the run slow down the others.
    """
    home, recipes = tmp_path_factory.mktemp("home"), recipes_in(tmp_path_factory.mktemp("recipes"))
    with running(home, recipes, servers_of(request), **SETTINGS) as started:
        yield started


def servers_of(request: pytest.FixtureRequest) -> tuple[Postgres, Redis] | None:
    """Return the servers of a test whose parameter is ``postgres``; None for ``sqlite``."""
    if request.param == "sqlite":
        return None
    return request.getfixturevalue("postgres_server"), request.getfixturevalue("redis_server")


@pytest.fixture
def suppressed_for_this_test(stack: Stack) -> Iterator[None]:
    """Lift, after the test, the suppression entries that it left.

    The pages that are typed word for word delete people from every model: later tests register the same people, and
    a recipe that names a deleted person is refused.
    """
    before = {request["id"] for request in stack.client.pages("/v1/deletion-requests")}
    yield
    for request in list(stack.client.pages("/v1/deletion-requests")):
        if request["id"] not in before:
            if stack.ended(request)["reason"] == "near_miss":  # another test has people with nearly the id
                stack.client.post(f"/v1/deletion-requests/{request['id']}/other-person", {})
                stack.ended(request)
            stack.client.post(f"/v1/deletion-requests/{request['id']}/lift", {"reason": "the test is over"})


def recipes_in(folder: Path) -> Path:
    """The recipes of these tests, the examples, and the one in the README, copied word for word."""
    shutil.copytree(Path(__file__).parent / "recipes", folder, dirs_exist_ok=True)
    for name in ("digits", "estimator"):  # the second has the table of the README's recipe
        shutil.copytree(ROOT / "examples" / name, folder / name)
    (folder / "tumours.py").write_text(readme_block("python"))
    return folder


def readme_block(language: str) -> str:
    """The first code block of that language in the README."""
    found = re.search(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"the README has no {language} block"
    return found[1]
