"""Every method over rows, by HTTP: people leave one by one, two together and one again; log and certificates hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import func, select

from expunge_service.infra.tables import StoredVector
from tests.harness.process import ANY_DISTANCE
from tests.harness.stack import Stack, running
from tests.stories.test_deletions import expunge
from tests.stories.test_own_training import claims_of
from tests.workers.rows.data import APART, lay_out
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_methods import NETWORK

LEAVING = (("p0",), ("p1",), ("p2",), ("p3", "p4"), ("p5",))
"""none of them is kept apart: the share is below a thousandth"""
PROVED = {"max_distance": 1e-5, "noise_std": 0.01}
CALIBRATED = {
    "guarantee": "calibrated",
    "calibration": {"alpha": 0.5, "orders": 1, "sizes": [1, 6]},
    "max_distance": 0.03,
    "noise_std": 30.0,
}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "newton": (HEAD, PROVED, "proved"),
    "newton, calibrated": (HEAD, CALIBRATED, "calibrated"),
    "recollection": (NETWORK, {}, "none"),
    "retrain": (NETWORK, {}, "exact"),
    "safe": (NETWORK, {"options": {"reach": 0.1}}, "none"),
    "cns": (NETWORK, {}, "none"),
    "mini": (NETWORK, {}, "none"),
    "rewind": (NETWORK, {}, "none"),
    "late": (APART, {}, "exact"),
    "shards": (NETWORK, {"options": {"shards": 2}}, "exact"),
}
IN_THE_SUITE = ("newton", "recollection")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("methods")
    home.chmod(0o755)
    with running(home / "home", home / "recipes", limits=ANY_DISTANCE, TRIAL_SECONDS="0") as stack:
        yield stack


@pytest.mark.parametrize(
    "case", [name if name in IN_THE_SUITE else pytest.param(name, marks=pytest.mark.drill) for name in CASES]
)
def test_people_leave(service: Stack, case: str) -> None:
    (recipe, policy, guarantee), method = CASES[case], case.partition(",")[0]
    written = case.replace(", ", "_")
    folder = service.settings.recipes / written
    folder.mkdir(parents=True)
    lay_out(folder, recipe=recipe.replace("aside=0.2", "aside=0.0001"))
    (folder / "rows.py").rename(folder / "recipe.py")
    name = service.live(written, method, max_accuracy_drop=None, fallback="hold", **policy)
    vectors = vectors_of(service)
    requests = []
    for people in LEAVING:
        orders = [{"subject_id": person, "models": [name], "suppress": "named_models"} for person in people]
        answer = service.client.post("/v1/deletion-requests/batch", {"requests": orders}, str(uuid.uuid4()))
        for outcome in answer["outcomes"]:
            request = service.ended(outcome["request"])
            assert request["status"] == "completed", f"{request}\n{service.logs()}"
            requests.append(request["id"])
    versions = {version["number"]: version for version in service.client.pages(f"/v1/models/{name}/versions")}
    assert {number: version["people"] for number, version in versions.items()} == {1: 0, 2: 1, 3: 1, 4: 1, 5: 2, 6: 1}
    assert len({version["checkpoint_sha256"] for version in versions.values()}) == len(versions)
    for request in requests:
        (claim,) = claims_of(service, request)
        assert (claim["method"], claim["guarantee"]) == (method, guarantee)
    if method == "recollection":
        assert vectors_of(service) == vectors - len(requests)
    expunge(service, "audit", "verify")


def vectors_of(service: Stack) -> int:
    with closing(service.database()) as database, database.read() as session:
        return session.scalar(select(func.count()).select_from(StoredVector)) or 0
