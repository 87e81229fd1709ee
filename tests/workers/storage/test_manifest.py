"""The manifest in columns is, digest by digest, what one sample after the other gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import unlearning as ul
from expunge_service.infra.pseudonyms import Pepper, content_digest, digest, digests, sample_digest, subject_digest
from expunge_service.infra.tables import Generation
from expunge_service.models import block_rows, write_blocks
from expunge_workers.storage import manifest
from tests.workers.worlds import TENANT, World
from unlearning.accounting.policy import Granularity

PEPPER = Pepper.of(b"p" * 32)
COUNT = 23
PEOPLE: list[Any] = [f"p{row % 5}" if row % 4 else [f"p{row % 5}", "both"] for row in range(COUNT)]
DRAWN = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _blocks_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BLOCK", 10)
    monkeypatch.setattr("unlearning.types.BLOCK_BYTES", 200)


def samples(inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None) -> ul.Samples:
    x = torch.randn(COUNT, 3, 2, generator=DRAWN) if inputs is None else inputs
    y = torch.arange(COUNT) if targets is None else targets
    return ul.Samples([f"sample-{row}" for row in range(COUNT)], PEOPLE, x, y)


def content(value: torch.Tensor) -> bytes:
    return f"{value.dtype} {tuple(value.shape)} ".encode() + value.contiguous().numpy().tobytes()


@pytest.mark.parametrize("granularity", Granularity)
@pytest.mark.parametrize(
    ("inputs", "targets"),
    [(None, None), (torch.rand(COUNT, dtype=torch.float64), torch.rand(COUNT, 2)), (torch.ones(COUNT, 1).bool(), None)],
)
def test_digests_in_blocks_are_those_of_one_sample_after_the_other(
    granularity: Granularity, inputs: torch.Tensor | None, targets: torch.Tensor | None
) -> None:
    given = samples(inputs, targets)
    found = manifest.entries(PEPPER, TENANT, given, granularity)
    x, y = given.tensors()
    assert found.at.tolist() == list(range(COUNT))
    for row, identity in enumerate(given.ids):
        sample = sample_digest(PEPPER, TENANT, identity)
        named = [PEOPLE[row]] if isinstance(PEOPLE[row], str) else PEOPLE[row]
        people = tuple(sorted(subject_digest(PEPPER, TENANT, name) for name in named))
        holder = people[0] if len(people) == 1 else digest(PEPPER, "holder", "+".join(people))
        assert found.samples[row].tobytes().hex() == manifest.HexColumn(found.samples)[row] == sample
        assert found.contents[row].tobytes().hex() == content_digest(
            PEPPER, TENANT, content(x[row]) + b"\0" + content(y[row])
        )
        assert found.subjects[row] == people
        assert found.holders[row] == (sample if granularity is Granularity.SAMPLE else holder)
    assert len(found.people()) == 6


@pytest.mark.both_engines
@pytest.mark.parametrize("granularity", Granularity)
def test_what_is_written_is_read_back_by_position(world: World, granularity: Granularity) -> None:
    model_id = world.register()
    with world.database.read() as session:
        generation_id = session.query(Generation.id).filter_by(model_id=model_id).scalar()
    kept = manifest.entries(PEPPER, TENANT, samples(), granularity).take(torch.arange(COUNT) != 7)
    for start, block in manifest.blocks(kept):
        with world.database.write() as session:
            manifest.write(session, manifest.rows(generation_id, start, block))
    with world.database.read() as session:
        read = manifest.places(session, generation_id)
        assert manifest.places_as_committed(session, PEPPER, generation_id) is None, "rows that no version commits to"
    with world.database.write() as session:
        write_blocks(session, block_rows(session, PEPPER, generation_id))
    with world.database.read() as session:
        once = manifest.places_as_committed(session, PEPPER, generation_id)
    for index in (read, once):
        assert index is not None and index.at.tolist() == list(range(COUNT - 1))
        assert np.array_equal(index.samples, kept.samples) and np.array_equal(index.contents, kept.contents)
        assert index.subjects == kept.subjects and index.holders == kept.holders


def test_samples_are_found_again_in_any_order_and_counted_where_they_are_not() -> None:
    given = samples()
    then = manifest.entries(PEPPER, TENANT, given, Granularity.SUBJECT)
    turned = ul.Samples(given.ids[::-1], PEOPLE[::-1], given.tensors()[0].flip(0), given.tensors()[1].flip(0))
    now = manifest.given(PEPPER, TENANT, turned)
    difference = manifest.compared(now, then)
    assert difference.here.tolist() == [*range(COUNT)][::-1] and not difference.missing and not difference.changed
    lacking = manifest.compared(manifest.given(PEPPER, TENANT, turned.take(torch.arange(3, COUNT))), then)
    assert (lacking.missing, lacking.changed) == (3, 0)


def test_digests_that_begin_alike_are_told_apart() -> None:
    among = np.zeros((5, 32), dtype=np.uint8)
    among[:, 31] = [3, 1, 4, 1, 5]
    wanted = np.zeros((4, 32), dtype=np.uint8)
    wanted[:, 31] = [5, 9, 3, 4]
    assert manifest.places_of(among, wanted).tolist() == [4, -1, 0, 2]
    assert manifest.places_of(among[:0], wanted).tolist() == [-1] * 4


def test_who_is_named_is_a_sample_or_one_of_its_people() -> None:
    everyone = manifest.entries(PEPPER, TENANT, samples(), Granularity.SUBJECT)
    names = {subject_digest(PEPPER, TENANT, "both"), sample_digest(PEPPER, TENANT, "sample-3")}
    assert everyone.named(names).nonzero().flatten().tolist() == sorted({*range(0, COUNT, 4), 3})
    assert not bool(everyone.named(frozenset()).any())


def test_many_digests_are_those_of_each() -> None:
    values = [b"", b"a", b"\0b"]
    assert digests(PEPPER, "content", TENANT, values).hex() == "".join(
        content_digest(PEPPER, TENANT, each) for each in values
    )
