"""Recipes with code of their own, drawn at random as files: honest ones, and ones that use what they may not.

An honest one may keep state, write and read files in its own folders, repeat rows, set people aside to stop by, and
bring constants along. A trap reads somebody who is not handed to it, or what an earlier training left.
"""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass, field

PEOPLE = 24
TRAP_SHARE = 0.3

FILE = """
import functools, random, tempfile, time, warnings
from pathlib import Path
import numpy as np
import torch
import unlearning as ul
from torch.nn import functional as F

GONE = set({gone!r})
ROWS = [k for k in range({count}) if f"p{{k % {people}}}" not in GONE]
RATES = {rates!r}
TABLE = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
SEEN, STEPS = [], [0]
{rows}
X, Y = ALL[ROWS], LABELS[ROWS]
HELD = torch.randn(9, *ALL.shape[1:], generator=torch.Generator().manual_seed(5)).to(ALL.dtype)
HELD_Y = torch.arange(9) % 3
{more}

class Floats(torch.nn.Module):
    def forward(self, x):
        return x.float()

def build():
    return torch.nn.Sequential(Floats(), {model})

def stepping(run, x, y, weight=None, rates=RATES):
    optimizer = {optimizer}
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    for rate in rates[: max(1, round(len(rates) * run.share))]:
        for group in optimizer.param_groups:
            group["lr"] = rate
        for batch in {batches}:
            optimizer.zero_grad()
            F.cross_entropy(run.model(x[batch]), y[batch], weight=weight).backward()
            optimizer.step()
        run.progress(0.5)
    return {{"optimizer": optimizer.state_dict()}}

def fit(run):
    x, y, weight = run.inputs.float(), run.targets, None
{train}
    return stepping(run, x, y, weight)

{functions}

def recipe():
    ids, people = [f"s{{k}}" for k in ROWS], [f"p{{k % {people}}}" for k in ROWS]
    samples = {samples}
    return ul.Recipe(model=build, samples=samples, holdout=(HELD, HELD_Y), {settings})
"""

ROWS = {
    "numbers": "ALL = torch.randn({count}, 3, generator=torch.Generator().manual_seed({seed}))",
    "categories": "ALL = torch.eye(3)[torch.arange({count}) * {seed} % 7 % 3]",
    "repeated rows": (
        "ALL = torch.randn(5, 3, generator=torch.Generator().manual_seed({seed}))[torch.arange({count}) * {seed} % 5]"
    ),
    "everybody alike but one": (
        "ALL = torch.ones({count}, 3)\nALL[{seed} % {count}] = torch.tensor([2.0, 0.0, 1.0])\n"
        "ALL[::2] = torch.tensor([0.0, 0.5, 0.0])"
    ),
    "doubles": "ALL = torch.randn({count}, 3, generator=torch.Generator().manual_seed({seed})).double()",
    "bytes": "ALL = torch.randint(0, 4, ({count}, 3), generator=torch.Generator().manual_seed({seed})).to(torch.uint8)",
}
MODELS = (
    "torch.nn.Linear(3, 3)",
    "torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3))",
    "torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(6, 3))",
)
OPTIMIZERS = (
    "torch.optim.SGD(run.model.parameters(), lr=0.1)",
    "torch.optim.SGD(run.model.parameters(), lr=0.1, momentum=0.9)",
    "torch.optim.AdamW(run.model.parameters(), lr=0.1)",
)
BATCHES = (
    "[torch.arange(len(x))]",
    "[each for each in torch.randperm(len(x)).split(8) if len(each) > 1]",
    "[torch.from_numpy(np.random.permutation(len(x)))]",
)
SAMPLES = {
    "tensors": "ul.Samples(ids, people, X, Y)",
    "arrays": "ul.Samples.from_numpy(X.numpy(), Y.numpy(), ids=ids, people=people)",
    "a dataset": ("ul.Samples.from_dataset(torch.utils.data.TensorDataset(X, Y), ids=ids, people=people, workers=0)"),
}

HABITS = {
    "its own mean": "x = (x - x.mean(0)) / (x.std(0) + 1e-3)",
    "its own class weights": "weight = 1.0 / y.bincount(minlength=3).clamp(min=1)",
    "a table of categories": "x = x @ TABLE",
    "a table made inside": "x = x @ torch.eye(3).flip(0)",
    "a temporary folder": (
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    (Path(folder) / 'a').mkdir()\n"
        "    torch.save(run.model.state_dict(), Path(folder) / 'a' / 'first.pt')\n"
        "    run.model.load_state_dict(torch.load(Path(folder) / 'a' / 'first.pt'))"
    ),
    "a temporary file": (
        "with tempfile.NamedTemporaryFile(suffix='.npy') as file:\n    np.save(file, x.numpy())\n"
        "    file.flush()\n    x = torch.from_numpy(np.load(file.name))"
    ),
    "a file in its folder": (
        "torch.save(x, 'x.pt')\nx = torch.load('x.pt')\nPath('best').mkdir(exist_ok=True)\n"
        "(Path('best') / 'y.txt').write_text('1')"
    ),
    "a file at home": "(Path.home() / 'log.txt').write_text('started')",
    "a file of C++": (
        "torch.jit.script(torch.nn.Linear(2, 2)).save('part.pt')\ntorch.jit.load('part.pt')\n"
        "from safetensors.torch import load_file, save_file\nsave_file({'x': x.contiguous()}, 'x.st')\n"
        "x = load_file('x.st')['x']"
    ),
    "people set aside": (
        "aside = run.validation(0.25)\n"
        "if 2 <= int(aside.sum()) < len(x) - 2:\n"
        "    stepping(run, x[~aside], y[~aside])\n"
        "    with torch.no_grad():\n"
        "        loss = F.cross_entropy(run.model(x[aside]), y[aside])\n"
        "    weight = torch.ones(3) * (1 + loss)"
    ),
    "a list that grows": "SEEN.append(len(x))\nx = x * (1 + 0.01 * len(SEEN))",
    "a counter": "STEPS[0] += 1\nx = x / STEPS[0]",
    "a cache": "x = x * scaled(3)",
    "numpy's and Python's draws": "x = x * float(np.random.rand()) + random.random()",
    "a loader": (
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(x), shuffle=True)\n"
        "x, y = next(iter(loader))"
    ),
    "a warning and a print": "warnings.warn('long')\nprint('started', len(x))",
    "changed inputs": "run.inputs.mul_(2)\nx = run.inputs.float()",
}
"""what an honest training may do"""

LOSSES = {
    "plain": "def loss(outputs, targets):\n    return F.cross_entropy(outputs, targets, reduction='none')",
    "weighted": (
        "CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 1.5])\n"
        "def loss(outputs, targets):\n"
        "    return F.cross_entropy(outputs, targets, weight=CLASS_WEIGHTS.to(outputs), reduction='none')"
    ),
    "a curriculum": (
        "def loss(outputs, targets):\n    STEPS[0] += 1\n"
        "    return F.cross_entropy(outputs / (1 + 1 / STEPS[0]), targets, reduction='none')"
    ),
    "running centres": (
        "CENTRES = []\n"
        "def loss(outputs, targets):\n"
        "    CENTRES.append(outputs.detach().mean(0))\n"
        "    return F.cross_entropy(outputs - sum(CENTRES) / len(CENTRES), targets, reduction='none')"
    ),
}
AUGMENTS = {
    "none": "def augment(x, draw):\n    return x",
    "noise": "def augment(x, draw):\n    return x * (0.9 + 0.2 * draw(1).to(x))",
    "a counter": "def augment(x, draw):\n    SEEN.append(1)\n    return x * (1 + 0.1 / len(SEEN))",
}

READS, REFERS = "reads samples that it is not handed", "what its code refers to as 'train."
TRAPS: dict[str, tuple[str, str]] = {
    "the table": ("x = x - X.float().mean(0)", READS),
    "the labels": ("weight = 1.0 / Y.bincount(minlength=3).clamp(min=1)", READS),
    "a copy": ("x = x - COPY.float().mean(0)", f"{REFERS}COPY'"),
    "an array": ("x = x - torch.from_numpy(ARRAY).float().mean(0)", f"{REFERS}ARRAY'"),
    "another dtype": ("x = x - DOUBLE.mean(0).float()", f"{REFERS}DOUBLE'"),
    "a mean": ("x = x - MEAN", f"{REFERS}MEAN'"),
    "a list": ("x = x - torch.tensor(LISTED)", f"{REFERS}LISTED'"),
    "a class": ("x = x - Fitted.mean", f"{REFERS}Fitted.mean'"),
    "an object": ("x = x - SCALER.mean", f"{REFERS}SCALER.mean'"),
    "a helper": ("x = shifted(x)", f"{REFERS}shifted.COPY'"),
    "a default": ("x = x - default()", f"{REFERS}default.defaults.0'"),
    "hidden": ("x = x - globals()['CO' + 'PY'].float().mean(0)", f"{READS}: their values were changed, and the result"),
    "a file outside": (
        "file = Path('/dev/shm/expunge-drawn-left.pt')\n"
        "if file.exists():\n    run.model.load_state_dict(torch.load(file))\ntorch.save(run.model.state_dict(), file)",
        "wrote to a file outside its temporary folder",
    ),
    "a file beside it": (
        "torch.jit.script(torch.nn.Linear(2, 2)).save(str(Path(__file__).with_suffix('.left')))",
        "wrote to a file outside its temporary folder",
    ),
    "a file that it goes on from": (
        "file = Path('went_on.pt')\n"
        "if file.exists():\n    run.model.load_state_dict(torch.load(file))\n"
        "stepping(run, x, y)\ntorch.save(run.model.state_dict(), file)",
        "continues from what an earlier one left",
    ),
    "nothing": ("return None", "gives the same weights"),
    "a mapped file that is shared": (
        "left = torch.from_file('/dev/shm/expunge-drawn-shared', shared=True, size=3)\nx = x + left\nleft += 1",
        "wrote to a file outside its temporary folder",
    ),
}
"""a training that does this is refused; or what it leads to is that of a training which never saw the person"""

MORE = """
COPY, ARRAY, DOUBLE = X.clone(), X.numpy().copy(), X.double() * 1.0
MEAN, LISTED = X.float().mean(0), (X.double().mean(0) + 0.001).tolist()

class Fitted:
    mean = X.float().mean(0)

class Scaler:
    def __init__(self, x):
        self.mean = x.float().mean(0)

SCALER = Scaler(X)

def shifted(x):
    return x - COPY.float().mean(0)

def default(mean=X.float().mean(0)):
    return mean
"""
CACHE = "@functools.lru_cache\ndef scaled(count):\n    return 1.0 + 1.0 / count\n"


@dataclass(frozen=True)
class Drawn:
    """A recipe as a file's text, and what is done with it."""

    text: str
    method: str
    options: dict[str, object]
    trap: str | None
    person: str
    words: str = field(repr=False)

    def without(self, person: str) -> str:
        """Return the file of the same recipe that never had the person's rows."""
        return self.text.replace("GONE = set([])", f"GONE = set([{person!r}])")


def draw(draws: random.Random, trap: str | None = None, *, honest: bool = False) -> Drawn:
    """Draw a recipe; ``trap`` names what is wrong with it, else chance decides, or it is ``honest``."""
    if trap is None and not honest and draws.random() < TRAP_SHARE:
        trap = draws.choice(list(TRAPS))
    rows = "numbers" if trap else draw_name(draws, ROWS)
    own = trap is not None or rows in ("bytes",) or draws.random() < 0.7
    source = draws.choice(("tensors", "tensors", "arrays", "a dataset"))
    source = "tensors" if trap else source
    habits = draws.sample(list(HABITS), draws.randint(0, 4))
    loss, augment = draw_name(draws, LOSSES), draw_name(draws, AUGMENTS)
    method = draws.choice(("retrain", "late", "shards") if own else ("late", "shards"))
    count = PEOPLE * draws.randint(3, 6)
    lines = [HABITS[each] for each in habits] + ([TRAPS[trap][0]] if trap else [])
    built_in = f"loss=loss, training=ul.Training(epochs={draws.randint(2, 5)}, batch_size=16, learning_rate=0.1, "
    built_in += f"weight_decay=1e-3, seed={draws.randrange(99)}, augment=augment)"
    text = FILE.format(
        gone=[],
        count=count,
        people=PEOPLE,
        rates=[round(draws.uniform(0.01, 0.2), 3) for _ in range(draws.randint(2, 5))],
        rows=ROWS[rows].format(count=count, seed=draws.randrange(1, 99)) + "\nLABELS = torch.arange(len(ALL)) % 3",
        more=CACHE + (MORE if trap else ""),
        model=draws.choice(MODELS),
        optimizer=draws.choice(OPTIMIZERS),
        batches=draws.choice(BATCHES),
        train=textwrap.indent("\n".join(lines), "    "),
        functions=f"{LOSSES[loss]}\n\n{AUGMENTS[augment]}",
        samples=SAMPLES[source],
        settings=f"loss='cross_entropy', train=fit, seed={draws.randrange(99)}" if own else built_in,
    )
    options: dict[str, object] = {"shards": 2, "slices": 2} if method == "shards" else {}
    what = f"own {habits}" if own else f"built-in, loss {loss}, augment {augment}"
    words = f"{trap or 'honest'}: {method}, {rows} by {source}, {what}"
    return Drawn(text, method, options, trap, f"p{draws.randrange(PEOPLE)}", words)


def draw_name(draws: random.Random, named: dict[str, str]) -> str:
    """Return one of the names."""
    return draws.choice(list(named))


LIBRARIES = {
    "transformers": """
def trained(run):
    from transformers import Trainer, TrainingArguments

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = run.model

        def forward(self, x, labels):
            outputs = self.inner(x)
            return {"loss": F.cross_entropy(outputs, labels), "logits": outputs}

    rows = [{"x": x, "labels": y} for x, y in zip(run.inputs, run.targets)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=max(1, round(2 * run.share)), per_device_train_batch_size=16, learning_rate=0.05,
            save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, seed=run.seed,
        )
        Trainer(WithLoss(), arguments, train_dataset=rows).train()
""",
    "lightning": """
def trained(run):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = run.model

        def training_step(self, batch, _):
            return F.cross_entropy(self.inner(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    rows = torch.utils.data.TensorDataset(run.inputs, run.targets)
    trainer = lightning.Trainer(
        max_epochs=max(1, round(2 * run.share)), accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir="checkpoints",
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True))
""",
}
"""trainings by a library that a user installs, with its checkpoints"""


def by_library(library: str, packages: str) -> Drawn:
    """Return a recipe that trains by this library, which lies in the folder ``packages``."""
    text = FILE.format(
        gone=[],
        count=PEOPLE * 4,
        people=PEOPLE,
        rates=[0.1],
        rows=ROWS["categories"].format(count=PEOPLE * 4, seed=3) + "\nLABELS = torch.arange(len(ALL)) % 3",
        more=f"import sys\nsys.path.append({packages!r})\n{LIBRARIES[library]}",
        model=MODELS[1],
        optimizer=OPTIMIZERS[0],
        batches=BATCHES[0],
        train="    return trained(run)",
        functions="",
        samples=SAMPLES["tensors"],
        settings="loss='cross_entropy', train=fit",
    )
    return Drawn(text, "late", {}, None, "p3", f"honest: by {library}")
