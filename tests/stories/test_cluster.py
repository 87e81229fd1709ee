"""A worker that has its models trained on a Ray cluster: over HTTP, with the runner that its setting names."""

from __future__ import annotations

import time
from pathlib import Path

import expunge
from tests.harness.ray_cluster import ray_cluster
from tests.harness.servers import Postgres, Redis
from tests.harness.stack import Stack, running
from tests.stories.conftest import recipes_in
from tests.stories.test_own_training import claims_of
from tests.workers.engines.conftest import programs
from tests.workers.rows.data import EVERYBODY, lay_out
from tests.workers.rows.test_ranks import DDP

INSTALLED = {
    "METADATA": f"Metadata-Version: 2.1\nName: expunge-ray\nVersion: {expunge.__version__}\n",
    "entry_points.txt": "[expunge.runners]\nray = expunge_ray.runner:RayRunner\n",
}


def checkpoint(stack: Stack, name: str) -> bytes:
    """The file that the model's current version publishes."""
    headers, number = {"Authorization": f"Bearer {stack.account.api_key}"}, stack.head(name)["number"]
    answer = stack.http.get(f"/v1/models/{name}/versions/{number}/checkpoint", headers=headers)
    return answer.raise_for_status().content


def test_a_cluster_trains_and_forgets_in_the_bytes_of_a_worker(
    postgres_server: Postgres, redis_server: Redis, tmp_path: Path
) -> None:
    """Two processes each. The worker is killed while the model without the person is trained."""
    installed = tmp_path / "packages/expunge_ray-1.dist-info"
    installed.mkdir(parents=True)
    for name, text in INSTALLED.items():
        (installed / name).write_text(text)
    recipes, place, gone = recipes_in(tmp_path / "recipes"), tmp_path / "parts", 7
    with (
        ray_cluster(installed.parent) as variables,
        running(tmp_path / "home", recipes, (postgres_server, redis_server), TRIAL_SECONDS="0") as stack,
    ):
        stack.restart("worker", **variables, EXPUNGE_RUNNER=f"ray@{place}")
        lay_out(recipes, recipe=DDP.replace("    return published", "    time.sleep(3)\n    return published"))
        held = stack.live("rows", "retrain")
        first = checkpoint(stack, held)
        asked = stack.delete(held, subject_id=f"p{gone}", regulation="gdpr")
        stack.eventually(lambda: programs(str(place)), bool)
        before = programs(str(place))
        time.sleep(1)
        stack.kill("worker")
        assert programs(str(place)) == before, "the training goes on without its worker"
        stack.start("worker", **variables, EXPUNGE_RUNNER=f"ray@{place}")
        assert stack.ended(asked)["status"] == "completed", stack.logs()
        after = checkpoint(stack, held)
        (claim,) = claims_of(stack, asked["id"])
        assert (claim["guarantee"], claim["world"]["walls"], claim["operators_word"]) == ("exact", "reported", True)
        assert not programs(str(place)) and [*place.iterdir()] == []
        stack.restart("worker")
        lay_out(recipes, (person for person in EVERYBODY if person != gone), DDP)
        assert after != first and checkpoint(stack, stack.live("rows", "retrain")) == after
