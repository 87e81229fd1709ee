"""A fresh worker compares digests of whole groups. It finds what looking for each sample finds, or looks for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch

import unlearning as ul
from expunge.service.queue import Blocked, Deletions, plan
from expunge.service.requests import Suppress
from expunge.workers.storage import manifest, private_state
from expunge.workers.storage.manifest import FoundSamples
from expunge.workers.update.samples import UpdateSamples
from tests.workers import meanwhile
from tests.workers.worlds import World
from unlearning.types import Examples

FORGOTTEN, LEAVING = ["s9", "s10", "s11"], ["s15", "s16", "s17"]
"""the samples of p3, who left, and of p5, who leaves now"""


@pytest.fixture(autouse=True, params=[4, 1024])
def _groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "GROUP", request.param)


Table = tuple[list[str], list[str], torch.Tensor, torch.Tensor]
Change = Callable[[Table], Table]


def rows(table: Table, index: list[int]) -> Table:
    ids, people, inputs, targets = table
    return [ids[i] for i in index], [people[i] for i in index], inputs[index], targets[index]


def without(*names: str) -> Change:
    return lambda table: rows(table, [i for i, each in enumerate(table[0]) if each not in names])


def nothing(table: Table) -> Table:
    return table


def joined(table: Table) -> Table:
    """Strangers came, at the start, in the middle and at the end."""
    ids, people, inputs, targets = rows(table, [0, *range(10), 5, *range(10, len(table[0])), 7, 8])
    for place, name in ((0, "a"), (11, "b"), (len(ids) - 2, "c"), (len(ids) - 1, "d")):
        ids[place], people[place] = f"new-{name}", f"stranger-{name}"
    return ids, people, inputs, targets


def exchanged(table: Table) -> Table:
    """As many came as left."""
    return without(*FORGOTTEN, "new-a")(joined(table))


def turned(table: Table) -> Table:
    return rows(table, list(range(len(table[0])))[::-1])


def swapped(table: Table) -> Table:
    """Two of one person's samples changed places."""
    return rows(table, [1, 0, *range(2, len(table[0]))])


def renamed(table: Table) -> Table:
    return ["s0b", *table[0][1:]], *table[1:]


def given_away(table: Table) -> Table:
    """A sample now names somebody else who is in the model."""
    return table[0], ["p1", *table[1][1:]], *table[2:]


def changed(name: str, by: float = 2.0) -> Change:
    def change(table: Table) -> Table:
        inputs = table[2].clone()
        inputs[table[0].index(name)] *= by
        return *table[:2], inputs, table[3]

    return change


def relabelled(table: Table) -> Table:
    targets = table[3].clone()
    targets[0] = 1 - targets[0]
    return *table[:3], targets


def doubled(table: Table) -> Table:
    return *table[:2], table[2].double(), table[3]


def both(first: Change, second: Change) -> Change:
    return lambda table: second(first(table))


FAST = {
    "nothing changed": nothing,
    "who left is gone at the source": without(*FORGOTTEN),
    "who leaves is gone too": without(*FORGOTTEN, *LEAVING),
    "only who leaves is gone": without(*LEAVING),
    "strangers came": joined,
    "strangers came, and who leaves is gone": both(joined, without(*LEAVING)),
}
SLOW = {
    "as many came as left": (exchanged, True),
    "one sample of who leaves is gone": (without(LEAVING[0]), True),
    "another order": (turned, True),
    "two in another order": (swapped, True),
    "a sample of who leaves changed": (changed(LEAVING[0]), True),
    "a sample belongs to somebody else": (given_away, True),
    "a sample is missing": (without("s0"), False),
    "a sample is missing, and who leaves is gone": (without("s0", *LEAVING), False),
    "a sample has another name": (renamed, False),
    "a sample changed": (changed("s1"), False),
    "a sample beside who leaves changed, who is gone": (both(changed("s18"), without(*LEAVING)), False),
    "a sample beside who leaves has another name": (both(without(*LEAVING), renamed), False),
    "a sign of zero": (changed("s0", -1.0), False),
    "another label": (relabelled, False),
    "another type": (doubled, False),
}
"""with whether the retained samples are still found, one by one"""


@dataclass(frozen=True)
class Opened:
    """An update that a fresh worker begins on a changed source. ``found``: what it reads by digests of groups."""

    needed: UpdateSamples
    samples: ul.Samples
    found: FoundSamples | None

    def one_by_one(self) -> tuple[Examples | None, FoundSamples | None] | Blocked:
        return self.needed.one_by_one(self.samples)

    def retained(self) -> FoundSamples:
        """The slow twin."""
        found = self.one_by_one()
        assert not isinstance(found, Blocked) and found[1] is not None
        return found[1]


def opened(world: World, change: Change, *, wants_forgotten: bool = False, **policy: str) -> Opened:
    """Publish a version without p3, ask for p5, change the source; read it by the digests of that version."""
    meanwhile.SCALE["s0"] = 0.0  # so that a sign of zero is there to change
    model_id = world.live(method="newton", **policy)
    world.delete("p3")
    world.work(model_id)
    world.delete("p5")
    job = world.claim(model_id)
    assert isinstance(job, Deletions)
    samples = ul.Samples(*change(meanwhile.people()))
    with world.database.read() as session:
        going = plan(session, job, atomic=False).target.positions
    needed = UpdateSamples(job, world.storage, world.settings, going, wants_forgotten, True)
    return Opened(needed, samples, needed.unchanged(samples, digests(world, model_id), 36))


def digests(world: World, model_id: str) -> Mapping[int, str]:
    head, cpu = world.head(model_id), torch.device("cpu")
    place = private_state.place_of(head)
    found = private_state.opened(world.storage.private, world.storage.sealer, place, head.state, cpu)[1]
    assert found
    return found


def same(one: FoundSamples, other: FoundSamples) -> bool:
    a, b = one.examples, other.examples
    tensors = ((a.positions, b.positions), (a.inputs, b.inputs), (a.targets, b.targets))
    columns = (one.ids, a.people, a.subjects, one.digests) == (other.ids, b.people, b.subjects, other.digests)
    return columns and all(torch.equal(left, right) for left, right in tensors)


@pytest.mark.both_engines
@pytest.mark.parametrize("granularity", ["subject", "sample"])
@pytest.mark.parametrize("case", FAST)
def test_digests_of_groups_find_what_looking_for_each_sample_finds(world: World, case: str, granularity: str) -> None:
    scene = opened(world, FAST[case], granularity=granularity)
    assert scene.found is not None
    assert same(scene.found.without(scene.needed.going), scene.retained())


@pytest.mark.parametrize("case", SLOW)
def test_where_they_differ_every_sample_is_looked_for_and_named(world: World, case: str) -> None:
    change, found = SLOW[case]
    scene = opened(world, change)
    assert scene.found is None
    assert isinstance(scene.one_by_one(), Blocked) is not found


def test_who_is_forgotten_is_read_where_the_method_needs_her(world: World) -> None:
    scene = opened(world, nothing, wants_forgotten=True)
    assert scene.found is not None
    slow = scene.one_by_one()
    assert not isinstance(slow, Blocked) and slow[0] is not None
    theirs = scene.found.examples.only(torch.tensor(scene.needed.going))
    assert torch.equal(theirs.inputs, slow[0].inputs) and theirs.people == slow[0].people


def test_who_is_forgotten_and_cannot_be_read_is_looked_for_where_the_method_needs_her(world: World) -> None:
    scene = opened(world, without(*LEAVING), wants_forgotten=True)
    assert scene.found is None
    assert isinstance(scene.one_by_one(), Blocked)


def test_samples_that_are_read_by_blocks_by_now_are_looked_for(world: World) -> None:
    """There are no digests of what is not in memory, and none is no proof."""
    scene = opened(world.configured(sample_bytes=1), nothing)
    ids, people, inputs, targets = meanwhile.people()
    source = ul.Samples.from_numpy(inputs.numpy(), targets.numpy(), ids=ids, people=people)
    assert scene.found is not None
    assert scene.needed.unchanged(source, scene.found.digests, 36) is None
    assert scene.needed.unchanged(scene.samples, scene.found.digests, 36) is not None


def test_a_first_version_is_read_by_digests_too_though_people_were_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.live(method="newton", name="other")
    world.delete("p3", suppress=Suppress.EVERYWHERE)
    world.work(other)
    model_id = world.live(method="newton", leave_out_forgotten=True)
    assert len(digests(world, model_id)) == -(-33 // manifest.GROUP)
    monkeypatch.setattr(UpdateSamples, "one_by_one", None)
    request = world.delete("p5", models=("m",))
    world.work(model_id)
    assert world.task(request).status == "completed"


def test_digests_after_somebody_left_are_those_of_who_stays(world: World) -> None:
    """Only the groups that she was in are digested again."""
    found = opened(world, nothing).found
    assert found is not None
    fewer = found.without([0, 1, 2, 12, 13, 14, 15])
    assert same(fewer, FoundSamples.of(fewer.ids, fewer.examples))
    assert fewer.digests != found.digests


def test_the_sealed_state_holds_no_digest_of_a_group_that_everyone_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "GROUP", 3)  # one person each
    model_id = world.live(method="newton")
    before = digests(world, model_id)
    world.delete("p3")
    world.work(model_id)
    after = digests(world, model_id)
    assert before.keys() - after.keys() == {3}
    assert before[3] not in after.values()
