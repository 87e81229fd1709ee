"""A training of several processes: they find each other as under torchrun, train, and forget, equal in bits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import unlearning as ul
from expunge_service.infra.tables import TrainedPart
from expunge_workers.runtime import ranks
from expunge_workers.runtime.walls import WITHOUT_NAMESPACES, Probe
from expunge_workers.runtime.worlds import template
from tests.harness.servers import free_port
from tests.workers.rows.conftest import Stop
from tests.workers.rows.data import EVERYBODY, forget, lay_out, published, trained_on
from tests.workers.worlds import World, fork, open_world
from unlearning.types import RecipeError

HEAD = """
import os
import time
import torch
import torch.distributed as dist
import unlearning as ul
from safetensors.torch import save

STEPS, BATCH = 6, 8


def data(rows):
    frame = rows.pandas()
    x = torch.tensor(frame[["x", "y"]].to_numpy(), dtype=torch.float32)
    return x, (x.sum(dim=1, keepdim=True) > 4).float()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batch(x, y, step, run):
    drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:BATCH]
    mine = drawn[run.rank :: run.world]
    return x[mine], y[mine]


def published(module, run):
    assert dist.get_world_size() == run.world == 2
    weights = {name: value.detach().contiguous() for name, value in module.state_dict().items()}
    return ul.Published({"weights.safetensors": save(weights)})


def recipe(rows: ul.Rows = ul.table("people.csv", person="person"), run: ul.TrainingRun = ul.run(processes=2)):
"""
LOOP = """
    for step in range(STEPS):
        inputs, targets = batch(x, y, step, run)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(inputs), targets).backward()
        optimizer.step()
"""
DDP = f"""{HEAD}
    x, y = data(rows)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{LOOP}
    return published(model.module, run)
"""
FSDP = f"""{HEAD}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    x, y = data(rows)
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (run.world,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{LOOP}
    assert dist.get_world_size() == run.world == 2
    whole = {{name: value.full_tensor() for name, value in model.state_dict().items()}}
    return ul.Published({{"weights.safetensors": save(whole)}})
"""
ACCELERATE = f"""{HEAD}
    from accelerate import Accelerator

    x, y = data(rows)
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
{LOOP}
    return published(accelerator.unwrap_model(model), run)
"""
LIGHTNING = f"""{HEAD}
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, number):
            inputs, targets = batch
            return torch.nn.functional.binary_cross_entropy_with_logits(self.network(inputs), targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(rows)), batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=run.world, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return published(module.network, run)
"""
TRANSFORMERS = f"""{HEAD}
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, inputs, labels):
            scores = self.network(inputs)
            return {{"loss": torch.nn.functional.binary_cross_entropy_with_logits(scores, labels), "logits": scores}}

    x, y = data(rows)
    model = Model()
    samples = [{{"inputs": inputs, "labels": targets}} for inputs, targets in zip(x, y)]
    arguments = TrainingArguments(
        "out", use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH // run.world, report_to=[], seed=1,
        save_strategy="no", disable_tqdm=True, learning_rate=0.1, optim="sgd",
    )
    Trainer(model, arguments, train_dataset=samples).train()
    return published(model.network, run)
"""
ALONE = f"""{HEAD}
    if run.rank == 1:
        {{fault}}
    dist.init_process_group("gloo")
    return published(network(), run)
"""
LEFT_TO_US = f"""{HEAD}
    x, y = data(rows)
    return ul.Recipe(
        model=network,
        samples=rows.samples(x, y, at=rows["__row"]),
        holdout=(x[:5], y[:5]),
        loss="binary_logistic",
        training=ul.Training(epochs=1, learning_rate=0.1),
    )
"""
CHECKPOINTS = f"""{HEAD}
    x, y = data(rows)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begin = 0
    torch.manual_seed(run.rank)
    if last := run.resumed:
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        begin = last["step"]
    for step in range(begin, 60):
        inputs, targets = batch(x, y, step, run)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(inputs), targets).backward()
        optimizer.step()
        time.sleep(SLEEP)
        run.checkpoint(
            lambda: {{"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}
        )
    return published(model.module, run)
"""
"""each process draws its own dropout, and each goes on from a point of its own"""
BY_HAND = """

if __name__ == "__main__":
    with open(os.environ["RANK"], "wb") as file:
        file.write(bytes(recipe()))
"""
FRAMEWORKS = {"DDP": DDP, "FSDP": FSDP, "Accelerate": ACCELERATE, "Lightning": LIGHTNING, "Transformers": TRANSFORMERS}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_processes_train_and_forget(world: World, folder: Path, framework: str) -> None:
    """A version after a deletion has the bytes of a registration on a file without the person."""
    library = framework.lower()
    if library in ("accelerate", "lightning", "transformers") and importlib.util.find_spec(library) is None:
        pytest.skip(f"unverified here: {library} is not installed")
    lay_out(folder, recipe=FRAMEWORKS[framework])
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    first, gone = published(world, held), trained_on(world)[0]
    forget(world, held, gone)
    after = published(world, held)
    assert after != first
    lay_out(folder, (person for person in EVERYBODY if person != gone), FRAMEWORKS[framework])
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_two_processes_go_on_where_both_were_interrupted(world: World, folder: Path, stop: Stop) -> None:
    lay_out(folder, recipe=CHECKPOINTS.replace("SLEEP", "0.05"))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    for _ in range(2):
        stop(world, held)
        assert world.count(TrainedPart) == 1, "a point"
    open_world(world.settings).work(held)
    assert world.model(held).status == "live", world.model(held).reason
    lay_out(folder, recipe=CHECKPOINTS.replace("SLEEP", "0.0"))
    assert published(world, world.live("rows", "retrain", name="never")) == published(world, held)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ValueError('a secret')", "The recipe raised ValueError in process 1 of 2 at line "),
        ("raise SystemExit(3)", "The recipe raised SystemExit in process 1 of 2 at line "),
        ("os._exit(3)", "3 attempts ended without a result"),
    ],
)
def test_a_process_that_fails_is_named_and_the_others_do_not_wait(
    world: World, folder: Path, fault: str, said: str
) -> None:
    """The first one waits for it at a meeting that torch would give up after half an hour."""
    lay_out(folder, recipe=ALONE.replace("{fault}", fault))
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    for _ in range(4):
        world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused" and said in (model.reason or ""), model.reason
    line = 1 + ALONE.splitlines().index("        {fault}")
    assert not said.endswith("line ") or f"line {line} of rows.py." in (model.reason or "")


def test_a_recipe_that_leaves_its_training_to_the_service_is_one_process(world: World, folder: Path) -> None:
    lay_out(folder, recipe=LEFT_TO_US)
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert "ul.run(processes=2) is of a recipe that trains by itself" in reason, reason


def test_without_walls_around_network_and_processes_there_is_one_process(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template(), "probe", Probe(WITHOUT_NAMESPACES, ("unshare: EPERM",)))
    lay_out(folder, recipe=DDP)
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert "by 2 processes, and this worker cannot wall off: network, processes. Run `expunge doctor`" in reason, reason


@pytest.mark.parametrize("processes", [0, -1, 65, 1.5, "2"])
def test_a_number_of_processes_is_a_whole_one(processes: Any) -> None:
    with pytest.raises(RecipeError, match="out of range"):
        ul.run(processes=processes)


def test_a_process_that_trains_on_after_the_first_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LAST_SECONDS", 0.2)

    def first_ends() -> None:
        mine = ranks.fork_ranks(2, failed=lambda _: os._exit(4))
        if mine.rank:
            time.sleep(60)
        with pytest.raises(RecipeError, match="One of 2 processes trains on"):
            mine.await_others()

    assert fork(first_ends) == 0


def test_by_hand_it_runs_under_torchrun(folder: Path) -> None:
    """Rank and world of ``run`` are torchrun's there."""
    by_hand = DDP + BY_HAND
    lay_out(folder, recipe=by_hand)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    subprocess.run([*torchrun, "rows.py"], cwd=folder, check=True, capture_output=True, timeout=90)
    first, second = ((folder / rank).read_bytes() for rank in "01")
    assert first == second and len(first) > 100
