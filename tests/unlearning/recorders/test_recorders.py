"""Trainings by Lightning and by transformers' Trainer, recorded: the trajectory is the training, step for step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from unlearning.model.problem import Problem
from unlearning.model.training import learn, retrace
from unlearning.recorders.steps import StepLog, rate_of
from unlearning.types import RecipeError, Trajectory

COUNT, EPOCHS, BATCH, RATE, DECAY = 40, 3, 8, 0.2, 0.01


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(1))
    return x, x[:, :3].argmax(dim=1)


def recipe(decay: float, **given: Any) -> ul.Recipe:
    x, y = data()
    return ul.Recipe(
        model=build,
        samples=ul.Samples([f"s{k}" for k in range(COUNT)], [f"p{k % 8}" for k in range(COUNT)], x, y),
        holdout=(x, y),
        loss="cross_entropy",
        training=ul.Training(epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE, weight_decay=decay),
        **given,
    )


def require_recorded(model: nn.Module, trajectory: Trajectory | None, steps: int, decay: float = DECAY) -> None:
    """The recipe accepts it, each sample is in each pass once, and replaying it ends in the model's weights."""
    assert trajectory is not None and len(trajectory) == steps
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    given = recipe(decay, weights=weights, trajectory=trajectory)
    problem, examples = Problem(given), given.samples.examples()
    learned = learn(given, problem, examples)
    assert learned.trajectory is trajectory
    again = retrace(problem, examples, trajectory, ())
    assert torch.allclose(again, learned.weights, atol=1e-5)
    assert not torch.allclose(trajectory.checkpoints[0], learned.weights, atol=1e-2)
    everyone = torch.arange(COUNT)
    for epoch in range(EPOCHS):
        seen = torch.cat(trajectory.batches[epoch * steps // EPOCHS : (epoch + 1) * steps // EPOCHS])
        assert torch.equal(seen.sort().values, everyone)


def loop(optimizer: torch.optim.Optimizer, model: nn.Module, steps: StepLog) -> Trajectory:
    """A loop of one's own, by the same calls as the callbacks make."""
    x, y = data()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            steps.saw(batch)
            steps.before_step(model, optimizer)
            optimizer.step()
    return steps.finish(model)


@pytest.mark.parametrize("every", [1, 4])
def test_a_loop_of_plain_steps_is_recorded(every: int) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=DECAY)
    trajectory = loop(optimizer, model, StepLog(every))
    require_recorded(model, trajectory, EPOCHS * COUNT // BATCH)
    assert trajectory.starts[:2] == (0, every)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda p: torch.optim.Adam(p), "Adam"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum=0.9"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "maximize=True"),
        (lambda p: torch.optim.SGD([{"params": [each], "lr": 0.1 * k} for k, each in enumerate(p)]), "4 step sizes"),
    ],
)
def test_other_steps_than_plain_ones_are_refused(made: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        rate_of(made(list(build().parameters())))


def test_a_step_has_one_batch() -> None:
    model, steps = build(), StepLog()
    with pytest.raises(RecipeError, match="without a batch"):
        steps.before_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps.saw(torch.arange(3))
    with pytest.raises(RecipeError, match="two batches"):
        steps.saw(torch.arange(3))


class Indexed(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Samples with their position, as both libraries are given them."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index], "position": torch.tensor(index)}


def fitted_by_lightning(tmp_path: Path, optimizer: Any = None, **settings: Any) -> tuple[nn.Module, Trajectory | None]:
    reason = "unverified here: lightning is not installed"
    lightning = pytest.importorskip("lightning.pytorch", reason=reason)
    from unlearning.recorders.lightning import LightningRecorder  # noqa: PLC0415 (imports the library)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.model(batch["x"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            made = optimizer or (lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=DECAY))
            return made(self.parameters())

    module, recorder = Module(), LightningRecorder(lambda batch: batch["position"])
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **settings,
    )
    trainer.fit(module, torch.utils.data.DataLoader(Indexed(), batch_size=BATCH, shuffle=True))
    return module.model, recorder.trajectory


def test_lightning_is_recorded(tmp_path: Path) -> None:
    model, trajectory = fitted_by_lightning(tmp_path)
    require_recorded(model, trajectory, EPOCHS * COUNT // BATCH)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gradient_clip_val": 1.0}, "gradient_clip_val is 1.0"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches is 2"),
        ({"optimizer": torch.optim.AdamW}, "AdamW"),
    ],
)
def test_lightning_with_other_steps_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        fitted_by_lightning(tmp_path, **settings)


class Answering(nn.Module):
    """A model as ``Trainer`` wants it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.model(x)
        return {"loss": F.cross_entropy(outputs, labels), "logits": outputs}


def fitted_by_transformers(tmp_path: Path, **settings: Any) -> tuple[nn.Module, Trajectory | None]:
    transformers = pytest.importorskip("transformers", reason="unverified here: transformers is not installed")
    pytest.importorskip("accelerate", reason="unverified here: accelerate is not installed")
    from unlearning.recorders.transformers import TrainerRecorder  # noqa: PLC0415 (imports the library)

    plain: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0, "remove_unused_columns": False}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        weight_decay=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **plain | settings,
    )
    model, recorder = Answering(), TrainerRecorder()
    trainer = transformers.Trainer(model, arguments, train_dataset=Indexed(), callbacks=[recorder])
    trainer.train()
    return model.model, recorder.trajectory


def test_transformers_is_recorded_with_its_schedule(tmp_path: Path) -> None:
    model, trajectory = fitted_by_transformers(tmp_path)
    require_recorded(model, trajectory, EPOCHS * COUNT // BATCH, decay=0.0)
    assert trajectory is not None and trajectory.rates[0] > trajectory.rates[-1] > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_grad_norm": 1.0}, "max_grad_norm is 1.0"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2"),
        ({"optim": "adamw_torch"}, "AdamW"),
    ],
)
def test_transformers_with_other_steps_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        fitted_by_transformers(tmp_path, **settings)


def test_transformers_without_the_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no column 'position'"):
        fitted_by_transformers(tmp_path, remove_unused_columns=True)
