"""``exact`` means: byte for byte what a registration that never held the person publishes.

Each registration below deletes two people, one after the other. What it publishes is compared with what registrations
whose recipe never had these people publish, made in a fresh process by an installation with the same pepper. The
reference is never a training that is told whom to leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from expunge.workers.app import Worker
from expunge.workers.runtime import heartbeat
from tests.contract.exact import kinds
from tests.contract.exact.installation import Registration, installation, published, registered, without
from tests.harness import databases
from unlearning.accounting.certificate import Guarantee
from unlearning.methods import NAMES, load

LEAVING = (kinds.RARE, "p20")
"""the people who ask, in this order"""
OF_BYTES = ("bytes", "lightgbm", "xgboost", "forest", "estimator")
MINIMISERS = ("converge", "features", "blocks", "crossing")
"""kinds that no method with phases trains"""
TWO = {"shards": 2, "slices": 2}
WEIGHED = {"shards": 2, "early_share": [0.6], "phase_shares": [0.8, 0.2], "stacked": 0.7}
THREE_PHASES = {"early_share": [0.4, 0.7], "phase_shares": [0.6, 0.2, 0.2]}
REPEATED = ("full-batch", "radius", "own-loss-adam", "xgboost", "forest")
"""kinds that repeat a fact which another kind shows"""


def in_phases(kind: str, method: str) -> bool:
    """Tell whether ``late`` or ``shards`` can train this kind."""
    return kind not in MINIMISERS and kind != "estimator" and not (method == "late" and kind in OF_BYTES)


GROUPS: dict[str, tuple[Registration, ...]] = {
    "retrain": (
        *(Registration(kind) for kind in kinds.KINDS if kind not in REPEATED),
        Registration("sgd", policy={"reference": "fixed-denominator"}),
        Registration("dropout", policy={"granularity": "sample"}),
    ),
    "in phases": (
        *(Registration(kind, "late") for kind in ("sgd", "dropout", "norm", "own", "rare-class")),
        Registration("adam", "late", THREE_PHASES),
        Registration("momentum", "late", policy={"reference": "fixed-denominator"}),
        *(Registration(kind, "shards", TWO) for kind in ("sgd", "own-loss", "lightgbm")),
        Registration("augment", "shards", {"shards": 3, "slices": 1, "stacked": 0.6}),
        Registration("own", "shards", WEIGHED),
    ),
    "repeated": tuple(map(Registration, REPEATED)),
    **{
        f"all by {method}": tuple(Registration(kind, method, more) for kind in kinds.KINDS if in_phases(kind, method))
        for method, more in (("late", {}), ("shards", TWO))
    },
}
FAST = ("retrain", "in phases")
CASES = [
    pytest.param(group, each, id=f"{group}: {each.name}", marks=() if group in FAST else pytest.mark.drill)
    for group, registrations in GROUPS.items()
    for each in registrations
]


@dataclass(frozen=True)
class Published:
    """Files by the name of the registration, after one deletion and after two."""

    deleted: tuple[dict[str, bytes], ...]
    never_held: tuple[dict[str, bytes], ...]
    """by registrations without these people"""


def published_by(folder: Path, template: Path, registrations: Sequence[Registration]) -> Published:
    """Register all; delete both people; register again without them, in a fresh process.

    The first deletion is made by the worker that registered, which kept what it read. Before the second, the recipe
    loses the rows of the first person, and another worker makes it, which finds everything on the disk.
    """
    with installation(folder / "held", template) as world:
        warm, deleted = Worker(world.process, world.pulse()), []
        models = {each.name: registered(world, each, warm) for each in registrations}
        for place, person in enumerate(LEAVING):
            kinds.leave_out(world.settings.recipes, LEAVING[:place])
            request = world.delete(person)
            worker = warm if place == 0 else Worker(world.process, world.pulse())
            for name, model_id in models.items():
                worker.work(model_id)
                assert world.head(model_id).number == place + 2, f"{name}: {world.model(model_id).reason}"
                assert world.generation(model_id).guarantee == Guarantee.EXACT.value
            assert world.request(request).status == "completed"
            deleted.append({name: published(world, model_id) for name, model_id in models.items()})
    orders = [(LEAVING[: place + 1], registrations) for place in range(len(LEAVING))]
    return Published(tuple(deleted), tuple(without(folder / "never", orders)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Published]]:
    """Return what gives the files of a group, made when the first test asks for them."""
    template = databases.sqlite_template(tmp_path_factory.mktemp("template"))

    @cache
    def files(group: str) -> Published:
        return published_by(tmp_path_factory.mktemp("group"), template, GROUPS[group])

    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat, "sleep", lambda _: None)
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield files
    torch.set_num_threads(before)


def test_every_method_and_kind_that_may_be_exact_is_here() -> None:
    fast = [each for group in FAST for each in GROUPS[group]]
    assert {each.method for each in fast} == {name for name in NAMES if load(name).exact}
    assert {each.kind for each in fast} | {*REPEATED} == {*kinds.KINDS}


@pytest.mark.timeout(900)  # the first test of a group waits for the whole of it
@pytest.mark.parametrize(("group", "registration"), CASES)
def test_a_deletion_publishes_what_a_registration_without_the_person_does(
    group: str, registration: Registration, found: Callable[[str], Published]
) -> None:
    name, files = registration.name, found(group)
    deleted, never_held = ([each[name] for each in side] for side in (files.deleted, files.never_held))
    assert deleted == never_held
    assert deleted[0] != deleted[1]
