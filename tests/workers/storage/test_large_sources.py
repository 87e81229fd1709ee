"""A model whose samples do not fit into memory registers, forgets and proves it as one whose samples do."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.workers.storage import manifest
from tests.workers.worlds import World

TABLE = """
from pathlib import Path

import pyarrow as pa
import torch
import unlearning as ul
from pyarrow import parquet

FILE = Path(__file__).with_name("table.parquet")
random = torch.Generator().manual_seed(0)
x = torch.randn(240, 5, generator=random)
y = (x[:, 0] + torch.randn(240, generator=random) > 0).long()


def recipe():
    if not FILE.exists():
        columns = {f"f{place}": x[:, place].numpy() for place in range(5)}
        names = {"id": [f"s{row}" for row in range(240)], "person": [f"p{row % 24}" for row in range(240)]}
        parquet.write_table(pa.table(names | {"y": y.numpy()} | columns), FILE, row_group_size=70)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(5, 1, bias=False),
        samples=ul.Samples.from_parquet(
            FILE, id="id", person="person", target="y", features=[f"f{place}" for place in range(5)]
        ),
        holdout=(x[:20], y[:20]),
        loss="binary_logistic",
        TRAINING,
    )
"""
CONVERGED = "training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-10, seed=0)"


@pytest.fixture
def table(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose recipe reads a Parquet file, and whose worker holds no more than a few samples."""
    monkeypatch.setattr("unlearning.types.BLOCK_BYTES", 28 * 33)
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "table.py").write_text(TABLE.replace("TRAINING", CONVERGED))
    return world.configured(recipes=folder, sample_bytes=2000)


@pytest.mark.both_engines
def test_a_source_read_by_blocks_is_registered_and_forgets_as_one_in_memory(table: World) -> None:
    whole = table.configured(sample_bytes=2**30)
    versions = {}
    for name, world in (("blocks", table), ("whole", whole)):
        model_id = world.live("table", "newton", name, guarantee="proved")
        report = world.report(model_id)
        assert ("seconds" in report["expected"]) == (name == "blocks") and report["expected"]["bytes"] > 240 * 28
        request = world.delete("p3", models=(name,))
        world.work(model_id)
        assert world.task(request).status == "completed", world.task(request).reason
        assert world.task(request).samples == 10
        versions[name] = world.head(model_id)
        assert world.generation(model_id).manifest["samples"] == 240  # type: ignore[index]
    assert versions["blocks"].claim["guarantee"] == versions["whole"].claim["guarantee"] == "proved"
    assert versions["blocks"].claim["epsilon"] == versions["whole"].claim["epsilon"]


def test_a_changed_row_of_a_parquet_file_blocks_the_update(table: World) -> None:
    model_id = table.live("table", "newton", guarantee="proved")
    (table.settings.recipes / "table.parquet").unlink()
    text = (table.settings.recipes / "table.py").read_text()
    request = table.delete("p3")
    changed = text.replace("+ torch.randn", "- torch.randn")
    assert changed != text
    namespace: dict[str, object] = {"__file__": str(table.settings.recipes / "table.py")}
    exec(changed, namespace)
    namespace["recipe"]()  # type: ignore[operator]
    table.work(model_id)
    assert table.task(request).reason == "samples_changed"


@pytest.mark.parametrize(
    ("training", "method", "message"),
    [
        (CONVERGED, "recollection", "recollection is handed all samples at once; the 240 samples take 0.0 GB"),
        ("train=lambda run: None", "retrain", "The recipe's own train is handed all samples at once"),
        (CONVERGED.replace("converge=1e-10, ", "").replace("epochs=0", "epochs=1"), "rewind", "rewind is handed"),
    ],
)
def test_what_needs_all_samples_at_once_is_refused_before_they_are_read(
    table: World, monkeypatch: pytest.MonkeyPatch, training: str, method: str, message: str
) -> None:
    monkeypatch.setattr(manifest, "entries", lambda *_: pytest.fail("the samples were read"))
    (table.settings.recipes / "table.py").write_text(TABLE.replace("TRAINING", training))
    model_id = table.register("table", method)
    table.work(model_id)
    assert table.model(model_id).status == "refused"
    assert message in str(table.model(model_id).reason)


def test_what_does_not_fit_into_the_free_memory_is_refused_with_both_figures(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearning.methods.recollection.room.available_bytes", lambda _: 1000)
    model_id = table.register("table", "newton")
    table.work(model_id)
    reason = str(table.model(model_id).reason)
    assert "The preparation's arrays for 240 samples take" in reason and "1,000 are free" in reason
