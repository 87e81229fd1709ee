"""What a model brings along, through the service's preparation: refused or declared, listed in the claim, watched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from expunge.service.infra.tables import AuditEntry
from expunge.service.queue import REPORT
from expunge.workers.storage import checkpoint_format
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

RECIPE = """
from pathlib import Path

import torch
from torch import nn

import unlearning as ul
from tests.workers import meanwhile

ids, subjects, x, y = meanwhile.people()


class Holding(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("blocked", value)

    def forward(self, x):
        return x


def trained(layer, rows, classes):
    with torch.enable_grad():
        step = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(3):
            step.zero_grad()
            nn.functional.cross_entropy(layer(rows), classes).backward()
            step.step()
    return layer


{setup}

def recipe():
    return ul.Recipe(
        model={model},
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=x, targets=y),
        holdout=(x[:10], y[:10]),
        loss={loss},
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1{training}),
        {more}
    )
"""
CONVERGED = ", converge=1e-8"
HEAD = "nn.Linear(4, 2, bias=False)"
STANDARDISED = """
def model():
    scale = nn.Linear(4, 4)
    with torch.no_grad():
        scale.weight.copy_(torch.diag(1 / x.std(dim=0)))
        scale.bias.copy_(-x.mean(dim=0) / x.std(dim=0))
    return nn.Sequential(scale.requires_grad_(False), nn.Linear(4, 2, bias=False))
"""
FITTED = """
start = torch.linalg.lstsq(x, nn.functional.one_hot(y, 2).float()).solution.T

def model():
    head = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(start)
    return head
"""


def write(folder: Path, name: str = "r", **parts: str) -> None:
    given = {"setup": "", "model": "model", "loss": "'cross_entropy'", "training": CONVERGED, "more": ""} | parts
    (folder / f"{name}.py").write_text(RECIPE.format(**given))


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    place = tmp_path / "own"
    place.mkdir()
    world.process = world.configured(recipes=place).process
    return place


def refused(world: World, method: str, **policy: object) -> str:
    model_id = world.register("r", method, name=f"m{world.count(AuditEntry)}", **policy)
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, model.current_id) == ("refused", None)
    return str(model.reason)


def claim_of(world: World, model_id: str) -> Claim:
    return Claim.from_json(world.head(model_id).claim)


TRAPS = {
    "a buffer of training rows": {"model": f"lambda: nn.Sequential(Holding(x.clone()), {HEAD})"},
    "standardised on everyone": {"setup": STANDARDISED},
    "a layer trained on everyone": {
        "model": f"lambda: nn.Sequential(trained(nn.Linear(4, 4), x, y).requires_grad_(False), {HEAD})"
    },
    "a start fitted on everyone": {"setup": FITTED},
}


@pytest.mark.parametrize("method", ["newton", "retrain"])
@pytest.mark.parametrize("trap", TRAPS)
def test_numbers_that_may_come_from_people_are_refused(world: World, folder: Path, trap: str, method: str) -> None:
    write(folder, **TRAPS[trap])
    reason = refused(world, method)
    assert "does not declare public" in reason and "public={" in reason


def test_a_model_that_trains_itself_is_refused(world: World, folder: Path) -> None:
    training = RECIPE.replace("with torch.enable_grad():", "if True:")
    parts = {"setup": "", "model": f"lambda: trained({HEAD}, x, y)", "loss": "'cross_entropy'", "training": CONVERGED}
    (folder / "r.py").write_text(training.format(**parts, more=""))
    assert "it trains something itself" in refused(world, "retrain")


def test_what_is_declared_is_listed_apart_from_what_is_checked(world: World, folder: Path) -> None:
    write(folder, setup=STANDARDISED)
    line = re.search(r"public=\{[^}]*\}", refused(world, "newton"))
    assert line is not None
    write(folder, setup=STANDARDISED, more=line[0])
    model_id = world.live("r", "newton", guarantee="proved")
    claim = claim_of(world, model_id)
    assert [(part.name, part.kind, part.size, part.public) for part in claim.parts] == [
        ("0.bias", "frozen", 4, True),
        ("0.weight", "frozen", 16, True),
    ]
    assert any("operator's word" in line for line in claim.declared)
    assert any("two seeds" in line for line in claim.checked)
    assert not set(claim.declared) & set(claim.checked)
    world.delete("p3")
    world.work(model_id)
    assert (world.head(model_id).number, claim_of(world, model_id).parts) == (2, claim.parts)


def test_without_a_claim_the_parts_are_listed_and_not_refused(world: World, folder: Path) -> None:
    write(folder, setup=STANDARDISED, training="")
    claim = claim_of(world, world.live("r", "recollection", threshold=1e3))
    assert claim.guarantee is Guarantee.NONE and not any(part.public for part in claim.parts)
    assert [part.name for part in claim.parts] == ["0.bias", "0.weight"]


def test_a_retrain_that_would_be_exact_needs_the_declaration_at_registration(world: World, folder: Path) -> None:
    write(folder, setup=FITTED, training="")
    assert "does not declare public" in refused(world, "recollection", threshold=1e3, fallback="retrain")


def test_a_part_that_changes_after_registration_holds_the_update(world: World, folder: Path) -> None:
    setup = "value = torch.tensor([float(Path(__file__).with_name('value').read_text()), 1.0])"
    (folder / "value").write_text("1.5")
    write(folder, setup=setup, model=f"lambda: nn.Sequential(Holding(value), {HEAD})", training="")
    model_id = world.live("r", "recollection", threshold=1e3)
    (folder / "value").write_text("1.25")
    request = world.delete("p3")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "recipe_changed")


def published(world: World, model_id: str) -> dict[str, torch.Tensor]:
    return checkpoint_format.decode(world.storage.store.read(world.head(model_id).checkpoint))[0]


def secret(world: World, model_id: str) -> torch.Tensor:
    return world.state(world.head(model_id)).weights


def test_exact_is_published_without_noise(world: World, folder: Path) -> None:
    write(folder, model=f"lambda: {HEAD}", training="")
    model_id = world.live("r", "retrain", noise_std=0.5)
    assert [row["noise_std"] for row in world.report(model_id)["dry_run"]] == [0.0]
    world.delete("p3")
    world.work(model_id)
    weight = published(world, model_id)["weight"]
    assert torch.equal(weight.reshape(-1), secret(world, model_id).to(weight))
    claim = claim_of(world, model_id)
    assert (claim.guarantee, claim.noise_std, world.generation(model_id).noise_std) == (Guarantee.EXACT, 0.0, 0.0)


def test_a_retrain_beside_the_served_generation_is_published_without_noise_too(world: World, folder: Path) -> None:
    write(folder, model=f"lambda: {HEAD}")
    model_id = world.live("r", "newton", guarantee="proved", epsilon=0.002, noise_std=0.01, fallback="retrain")
    for person in range(12):
        if claim_of(world, model_id).guarantee is Guarantee.EXACT:
            break
        world.delete(f"p{person}")
        world.work(model_id)
        world.work(model_id)
    claim = claim_of(world, model_id)
    assert (claim.guarantee, claim.noise_std) == (Guarantee.EXACT, 0.0)
    weight = published(world, model_id)["weight"]
    assert torch.equal(weight.reshape(-1), secret(world, model_id).to(weight))


NORMALISED = """
torch.manual_seed(3)
normal = nn.BatchNorm1d(4)
for _ in range(50):
    normal(3.0 * x + 2.0)
outside = nn.Sequential(normal, nn.Linear(4, 2)).eval()
weights = {name: value.clone() for name, value in outside.state_dict().items()}

def model():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
"""


def test_an_import_carries_running_statistics_into_the_checkpoint(world: World, folder: Path) -> None:
    write(folder, setup=NORMALISED, more="weights=weights,", training="")
    model_id = world.live("r", "safe", noise_std=1e-6, max_distance=1e-9, threshold=1e3)
    found = published(world, model_id)
    made: dict[str, object] = {}
    exec((folder / "r.py").read_text(), made)
    weights = made["weights"]
    assert isinstance(weights, dict) and found.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.allclose(found[name].double(), value.double(), atol=1e-4), name
    assert float(found["0.running_mean"].abs().max()) > 0.1
    assert "0.running_mean" in [part.name for part in claim_of(world, model_id).parts]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("del weights['0.running_var']", "lack '0.running_var'"),
        ("weights['2.weight'] = torch.zeros(3)", "name '2.weight'"),
        ("weights['0.running_mean'] = torch.zeros(3)", "has shape (3,); the model's has (4,)"),
    ],
)
def test_an_import_that_is_not_the_whole_model_is_refused(world: World, folder: Path, change: str, says: str) -> None:
    write(folder, setup=NORMALISED + change, more="weights=weights,", training="")
    assert says in refused(world, "safe")


def test_an_import_that_runs_differently_is_refused_with_both_accuracies(world: World, folder: Path) -> None:
    setup = """
class Flips(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (-1 if self.training else 1)

head = nn.Linear(4, 2)
weights = {"weight": torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]), "bias": torch.zeros(2)}
"""
    write(folder, setup=setup, model="lambda: Flips(4, 2)", more="weights=weights,", training="")
    reason = refused(world, "safe", threshold=1e3)
    assert re.search(r"accuracy on the holdout is 0\.\d+; with its weights imported, it is 0\.\d+", reason)


@pytest.mark.parametrize("policy", [{"method": "retrain"}, {"method": "newton", "fallback": "retrain"}])
def test_a_model_trained_elsewhere_is_never_replaced_by_a_training_here(
    world: World, folder: Path, policy: dict[str, str]
) -> None:
    write(folder, model=f"lambda: {HEAD}", more="weights={'weight': torch.ones(2, 4)},")
    assert "trained elsewhere, so it cannot be trained again here" in refused(world, **policy)  # type: ignore[arg-type]


RAISES = {
    "in training": ("lambda: Raising(4, 2)", "'cross_entropy'"),
    "in the loss": (f"lambda: {HEAD}", "loss"),
    "in model()": ("model", "'cross_entropy'"),
}
RAISING = """
class Raising(nn.Linear):
    def forward(self, x):
        raise KeyError("the bad row is 7")

def loss(outputs, targets):
    raise KeyError("the bad row is 7")

def model():
    raise KeyError("the bad row is 7")
"""


@pytest.mark.parametrize("place", RAISES)
def test_an_error_of_the_recipe_is_refused_once_with_type_message_file_and_line(
    world: World, folder: Path, place: str
) -> None:
    model, loss = RAISES[place]
    write(folder, setup=RAISING, model=model, loss=loss, training="")
    expected = (folder / "r.py").read_text().splitlines()
    reason = refused(world, "retrain")
    found = re.search(r"raised KeyError at line (\d+) of r.py", reason)
    assert found is not None and "raise KeyError" in expected[int(found[1]) - 1]
    assert "the bad row is 7" in reason
    recorded = json.dumps([entry.body for entry in world.rows_of(AuditEntry)])
    assert "KeyError" in recorded and "bad row" not in recorded
    assert world.kinds().count("preparation.claimed") == 1


def test_shapes_that_do_not_fit_are_refused_once(world: World, folder: Path) -> None:
    write(folder, model="lambda: nn.Sequential(nn.Linear(5, 2))", training="")
    assert re.search(
        r"raised RuntimeError at line \d+ of \w+\.py.*shapes cannot be multiplied", refused(world, "retrain")
    )


def test_a_class_without_an_output_is_refused_before_a_training(world: World, folder: Path) -> None:
    write(folder, setup="y[20] = 5", model=f"lambda: {HEAD}", training="")
    assert re.search(r"1 targets are no class of the model, such as 5; it has \d outputs", refused(world, "retrain"))


def test_an_error_in_a_line_of_ours_is_reported_and_corrects_no_recipe(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library raises, called by the maths: with model and loss nothing is wrong."""
    monkeypatch.setattr(torch, "sub", lambda *_, **__: torch.zeros(3) @ torch.zeros(4))
    write(folder, model=f"lambda: {HEAD}", training="")
    reason = refused(world, "retrain")
    assert re.search(r"^Expunge raised RuntimeError at line \d+ of unlearning/model/training\.py\.", reason)
    assert reason.endswith(REPORT) and "orrect" not in reason
    recorded = json.dumps([entry.body for entry in world.rows_of(AuditEntry)])
    assert "unlearning/model/training.py" in recorded and "inconsistent" not in recorded


def test_a_message_is_cut(world: World, folder: Path) -> None:
    (folder / "r.py").write_text("def recipe():\n    raise ValueError('x' * 5000)\n")
    assert len(refused(world, "retrain")) < 600


def test_want_of_memory_is_no_error_of_the_recipe(world: World, folder: Path) -> None:
    setup = "class Hungry(nn.Linear):\n    def forward(self, x):\n        raise MemoryError\n"
    write(folder, setup=setup, model="lambda: Hungry(4, 2)", training="")
    model_id = world.register("r", "retrain")
    world.work(model_id)
    assert world.model(model_id).status == "preparing"
