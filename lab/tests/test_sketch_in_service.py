"""Recollection by sketch through a real worker: what it needs, what it keeps, and what nobody gets to see."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from sqlalchemy import select

from expunge_lab.methods.recollection_sketch import RecollectionSketch
from expunge_service.infra.tables import StoredVector
from expunge_workers.storage import private_state
from tests.workers.rows.data import write_csv
from tests.workers.worlds import World, database_text
from unlearning.types import Need

EDGE = """
import torch
import unlearning as ul

PIXELS = [f"pixel{number}" for number in range(64)]


def recipe(rows: ul.Rows = ul.table("edge.csv", person="person")) -> ul.Recipe:
    x = rows.tensor(*PIXELS).double() / 16
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10)),
        samples=rows.samples(x, rows["digit"], at=rows["__row"]),
        holdout=(torch.zeros(1, 64), torch.tensor([0])),
        loss="cross_entropy",
        training=ul.Training(epochs=40, learning_rate=1.0),
    )
"""
"""a small network on digits, trained at the edge of stability: the norm ratio looks harmless there"""
SKETCH = {"rank": 10, "probes": 8, "tolerance": 1.0}


def test_a_sketched_model_is_prepared_once_and_forgets_from_the_persons_own_samples(world: World) -> None:
    model_id = world.live("steps", "recollection_sketch", options=SKETCH)
    assert RecollectionSketch.needs == {Need.FORGOTTEN}
    assert world.count(StoredVector) == 12
    request = world.delete("p3")
    world.work(model_id)
    assert world.task(request).status == "completed"
    assert len(world.versions(model_id)) == 2
    assert world.count(StoredVector) == 11
    assert world.generation(model_id).report["form"] == "sketch"


def test_its_rows_are_a_few_numbers_each(world: World) -> None:
    world.live("steps", "recollection_sketch", options=SKETCH)
    with world.database.read() as session:
        rows = list(session.scalars(select(StoredVector)))
        vectors = private_state.read_vectors(
            session, world.storage.keys, rows[0].generation_id, [row.holder for row in rows], torch.device("cpu")
        )
    samples_each = 3
    assert {vector.numel() for vector in vectors.values()} == {10 + 8 + 2 * samples_each}


def test_neither_receipt_nor_seed_reaches_the_database_or_the_log(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model_id = world.live("steps", "recollection_sketch", options=SKETCH)
    world.delete("p3")
    world.work(model_id)
    kept = world.state(world.head(model_id))
    assert int(kept.facts["seed"]) > 2**32, "the sealed state holds it"
    written = database_text(world) + "".join(capfd.readouterr())
    assert "steps" in written
    for secret in ("receipt", "probed", str(kept.facts["seed"])):
        assert secret not in written
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"receipt" not in on_disk
    assert kept.tensors["probed"].numpy().tobytes() not in on_disk


@pytest.mark.parametrize(("fallback", "outcome"), [("retrain", "awaiting_retrain"), ("hold", "needs_retrain")])
def test_a_release_that_the_sketch_cannot_vouch_for_takes_the_fallback(
    world: World, fallback: str, outcome: str
) -> None:
    """Its confidence is shared out over ``releases``; the second release is one too many here."""
    model_id = world.live("steps", "recollection_sketch", fallback=fallback, options={**SKETCH, "updates": 1})
    world.delete("p3")
    world.work(model_id)
    again = world.delete("p4")
    world.work(model_id)
    assert len(world.versions(model_id)) == 2
    assert world.task(again).reason == outcome


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_at_the_edge_of_stability_the_receipt_alone_tells_and_the_fallback_is_taken(world: World) -> None:
    digits = load_digits()
    pixels, labels = digits.data[:120].astype(int).tolist(), digits.target[:120].tolist()
    rows = [
        {"person": f"p{place}", "digit": labels[place], **{f"pixel{k}": value for k, value in enumerate(values)}}
        for place, values in enumerate(pixels)
    ]
    (world.settings.recipes / "edge.py").write_text(EDGE)
    write_csv(world.settings.recipes / "edge.csv", rows)
    options = {"rank": 16}
    plain = world.register("edge", "recollection_sketch", name="plain", options=options)
    world.work(plain)
    reason = world.model(plain).reason or ""
    assert world.model(plain).status == "refused" and "beyond its tolerance" in reason
    model_id = world.live("edge", "recollection_sketch", fallback="retrain", options=options)
    generation = world.generation(model_id)
    assert (generation.method, generation.report["switched"]["from"]) == ("retrain", "recollection_sketch")
    assert "beyond its tolerance" in generation.report["switched"]["why"]
    assert "receipt" not in database_text(world)


def test_a_converged_recipe_is_refused_with_the_way_out(world: World) -> None:
    model_id = world.register("convex", "recollection_sketch", options=SKETCH)
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert "Use recollection." in (model.reason or "")


def test_a_seed_in_the_policy_is_refused_because_policies_are_not_secret(world: World) -> None:
    model_id = world.register("steps", "recollection_sketch", options={**SKETCH, "probe_seed": 7})
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert "has no option 'probe_seed'" in (model.reason or "")


def test_two_preparations_draw_their_probes_anew(world: World) -> None:
    heads = [
        world.head(world.live("steps", "recollection_sketch", name=name, options=SKETCH)) for name in ("one", "two")
    ]
    states = [world.state(head) for head in heads]
    assert states[0].facts["seed"] != states[1].facts["seed"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_its_package_stands_in_the_manifest_and_in_the_claim(world: World) -> None:
    model_id = world.live("steps", "recollection_sketch", options=SKETCH)
    package = f"expunge-lab {version('expunge-lab')}"
    assert (world.generation(model_id).manifest or {})["package"] == package
    claim = world.head(model_id).claim
    assert claim["guarantee"] == "none"
    assert any(said.endswith(f"the word of its package, {package}.") for said in claim["assumptions"])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_option_that_moved_here_is_refused_by_recollection_with_the_way(world: World) -> None:
    model_id = world.register("steps", "recollection", options={"rank": 4})
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert "recollection has no option 'rank'. It is one of the method recollection_sketch" in reason
