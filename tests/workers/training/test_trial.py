"""The trial of a recipe's own training: what it may not do is refused before it trains, and what was tried is said."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from expunge.service.access import Scope
from expunge.service.api.views.models import model_view
from expunge.service.api.views.requests import request_views
from expunge.service.api.views.versions import version_views, versions_of
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import DeletionRequest, Model, Task
from expunge.workers.app import Worker
from expunge.workers.runtime import fresh
from expunge.workers.training import trial
from tests.workers.worlds import World, open_world
from unlearning.accounting.certificate import Claim

RECIPE = """
import os, socket, subprocess, sys, time
from pathlib import Path
import torch
import unlearning as ul

random = torch.Generator().manual_seed(1)
X = torch.randn(48, 4, generator=random)
Y = (X[:, 0] > 0).long()
COPY = X.clone()
CALLS = []
HOME = Path({home!r})

def descend(run, x=None, weight=None, rate=0.1):
    x = run.inputs if x is None else x
    optimizer = torch.optim.SGD(run.model.parameters(), lr=rate)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run.model(x), run.targets, weight=weight).backward()
        optimizer.step()

def fit(run):
{train}

def recipe():
    return ul.Recipe(
        model=lambda: torch.nn.Linear(X.shape[1], int(Y.max()) + 1),
        samples={samples},
        holdout=(X[:6], Y[:6]),
        loss="cross_entropy",
        train=fit,
    )

IDS, PEOPLE = [f"s{{k}}" for k in range(48)], [f"p{{k // 2}}" for k in range(48)]
ROWS = {inputs}
ARRAY = X.numpy().copy()
TABLE = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])

class Fitted:
    mean = X.mean(0)
"""
BAD: dict[str, tuple[str, str]] = {
    "the network": ("socket.create_connection(('192.0.2.1', 9), 1)", "reached for the network at line 23 of bad.py"),
    "the network, and swallows the error": (
        "try:\n    socket.getaddrinfo('example.org', 443)\nexcept OSError:\n    pass\ndescend(run)",
        "reached for the network at line 24 of bad.py",
    ),
    "the service's database": ("(HOME / 'expunge.db').read_bytes()", "opened a file of the service"),
    "the store": ("descend(run, rate=0.1 * len(os.listdir(HOME)))", "looked into a folder of the service"),
    "a file beside the recipe": ("Path(__file__).with_name('left').write_text('x')", "wrote to a file outside"),
    "shared memory": ("Path('/dev/shm/expunge-trial').write_text('x')", "wrote to a file outside"),
    "a checkpoint, from C++": (
        "torch.save(run.model.state_dict(), HOME.parent / 'last.pt')",
        "wrote to a file outside",
    ),
    "a checkpoint, from Rust": (
        "from safetensors.torch import save_file\nsave_file(run.model.state_dict(), '/dev/shm/expunge-last')",
        "wrote to a file outside",
    ),
    "removes a file": ("os.remove(__file__)", "changed a file or folder outside"),
    "removes a file by an open folder": (
        "os.remove(Path(__file__).name, dir_fd=os.open(Path(__file__).parent, os.O_RDONLY))",
        "changed a file or folder outside",
    ),
    "moves a file out": (
        "Path('x').write_text('x')\nos.rename('x', HOME.parent / 'x')",
        "changed a file or folder outside",
    ),
    "another program": ("subprocess.run(['true'])\ndescend(run)", "started another program"),
    "a program with a compiler's name": (
        "import shutil\nshutil.copy('/bin/true', 'gcc')\nsubprocess.run(['./gcc'])\ndescend(run)",
        "started another program",
    ),
    "the mean of everyone": ("descend(run, run.inputs - X.mean(0))", "reads samples that it is not handed"),
    "the mean of a copy": (
        "descend(run, run.inputs - COPY.mean(0))",
        "what its code refers to as 'train.COPY' (192 numbers, line 23 of bad.py)",
    ),
    "the mean of an array": (
        "descend(run, run.inputs - torch.tensor(ARRAY.mean(0)))",
        "what its code refers to as 'train.ARRAY' (192 numbers, line 23 of bad.py)",
    ),
    "the mean in a helper's class": (
        "descend(run, run.inputs - Fitted.mean)",
        "what its code refers to as 'train.Fitted.mean' (4 numbers, line 23 of bad.py)",
    ),
    "the classes of everyone": ("descend(run, weight=1 / Y.bincount())", "reads samples that it is not handed"),
    "a file of its own, by Python": (
        "file = Path('last')\ndescend(run, rate=0.1 / (1 + file.exists()))\nfile.write_text('x')",
        "continues from what an earlier one left",
    ),
    "a file of its own, by C++": (
        "if Path('last.pt').exists():\n    run.model.weight.data += torch.jit.load('last.pt').weight.data\n"
        "descend(run)\n"
        "torch.jit.save(torch.jit.script(run.model), 'last.pt')",
        "continues from what an earlier one left",
    ),
    "a file that is mapped": (
        "kept = torch.from_file('last.bin', shared=True, size=4)\ndescend(run, run.inputs - kept)\n"
        "kept.copy_(run.inputs.mean(0))",
        "continues from what an earlier one left",
    ),
    "nothing": ("pass", "gives the same weights for 24 samples of some people and 24 of others"),
    "other shapes": ("run.model.weight = torch.nn.Parameter(torch.zeros(3, 4))", "has shape (3, 4)"),
    "other parts": ("descend(run)\nrun.model.more = torch.nn.Linear(4, 2)", "left 'more.bias', 'more.weight'"),
    "what is no state": ("descend(run)\nreturn {'model': run.model}", "train returned a Linear"),
    "NaN": ("run.model.weight.data.fill_(float('nan'))", "holds NaN or infinity"),
    "an error": ("raise ValueError('no such column')", "raised ValueError at line 23 of bad.py"),
    "an exit": ("sys.exit(3)", "raised SystemExit at line 23 of bad.py"),
    "its own end": ("os._exit(3)", "ended its process (status 3)"),
}
VARIANTS = {
    *("NaN", "other shapes", "other parts", "nothing", "what is no state", "an exit", "the store", "the network"),
    *(
        "shared memory",
        "a checkpoint, from C++",
        "removes a file",
        "the mean of a copy",
        "removes a file by an open folder",
        "the mean of an array",
        "the classes of everyone",
    ),
    "a file of its own, by Python",
}
"""of ``BAD``, those that are like another one: drills"""
GOOD = {
    "plain": "descend(run)",
    "a counter, which no other training finds": "CALLS.append(1)\ndescend(run, rate=0.1 / len(CALLS))",
    "with files in the temporary folder": "torch.save(run.inputs, 'x.pt')\nPath('y').write_text('y')\ndescend(run)",
    "with temporary folders": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
        "    (Path(folder) / 'a' / 'b').mkdir(parents=True)\n    (Path(folder) / 'a' / 'b' / 'x').write_text('x')\n"
        "    os.symlink('/etc/hostname', Path(folder) / 'a' / 'link')\n"
        "    os.replace(Path(folder) / 'a' / 'b' / 'x', Path(folder) / 'y')\ndescend(run)"
    ),
    "with a data loader's own processes": (
        "loader = torch.utils.data.DataLoader(run.inputs, batch_size=len(run.inputs), num_workers=1)\n"
        "descend(run, next(iter(loader)))"
    ),
    "with draws": "descend(run, run.inputs + torch.randn_like(run.inputs))",
    "with batches of twenty, and without a last batch": "if len(run.inputs) >= 20:\n    descend(run)",
    "with one pass at least of many": "for _ in range(round(3 * run.share)):\n    descend(run)",
}


SETS = {
    "the default dtype": "torch.set_default_dtype(torch.float64)",
    "the default device": "torch.set_default_device('meta')",
    "no gradients": "torch.set_grad_enabled(False)",
    "the threads": "torch.set_num_threads(3)",
    "flushed denormal numbers": "torch.set_flush_denormal(True)",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "the precision of products": "torch.set_float32_matmul_precision('medium')",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
}
STATES = {
    "parts that lie apart in memory": "{'a': run.inputs.T, 'b': run.inputs[:, ::2], 'c': run.inputs[:1].expand(3, 4)}",
    "one memory under several names": "{'a': run.model.weight, 'b': run.model.weight.data, 'c': run.model.weight[0]}",
    "small and unusual numbers": "{'a': run.inputs.bfloat16(), 'b': run.inputs.bool(), 'c': [float('nan'), 10**30]}",
}


@pytest.fixture
def written(settings: Settings, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Return a world whose recipe ``bad`` trains by these lines."""
    worlds: list[World] = []

    def write(
        train: str, inputs: str = "X", samples: str = "ul.Samples(IDS, PEOPLE, ROWS, Y)", **changes: Any
    ) -> World:
        folder = tmp_path / "recipes"
        folder.mkdir()
        lines = textwrap.indent(train, "    ")
        text = RECIPE.format(home=str(settings.home), train=lines, inputs=inputs, samples=samples)
        (folder / "bad.py").write_text(text)
        worlds.append(open_world(settings.model_copy(update={"recipes": folder, "trial_seconds": 60, **changes})))
        return worlds[-1]

    yield write
    for world in worlds:
        world.storage.close()


def refused(world: World) -> str:
    model_id = world.register("bad", "retrain")
    world.work(model_id)
    assert world.model(model_id).status == "refused"
    assert world.versions(model_id) == []
    return world.model(model_id).reason or ""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.drill if each in VARIANTS else ()) for each in BAD]
)
def test_a_training_that_uses_more_than_its_arguments_is_refused(written: Callable[..., World], name: str) -> None:
    train, said = BAD[name]
    reason = refused(written(train))
    assert said in reason
    assert reason.endswith(".")


PEOPLE_TABLE = "person,age\n" + "".join(f"p{k},{20 + k % 7}\n" for k in range(24))
READS = {
    "a table in train": "rows = Path(__file__).with_name('people.csv').read_text()",
    "its length, in the file": "rows = ROWS_OF_ALL",
}


@pytest.mark.parametrize("reads", READS)
def test_a_training_that_reads_the_rows_of_everyone_in_a_table_is_refused(
    written: Callable[..., World], tmp_path: Path, reads: str
) -> None:
    """No name leads to these numbers, and texts are not looked at: the table without every tenth person shows it."""
    world = written(f"{READS[reads]}\ndescend(run, rate=len(rows) / 1000)")
    (tmp_path / "recipes" / "people.csv").write_text(PEOPLE_TABLE)
    with (tmp_path / "recipes" / "bad.py").open("a") as file:
        file.write("\nROWS_OF_ALL = (Path(__file__).parent / 'people.csv').read_text()\n")
    assert "reads rows that it is not handed, of people.csv: without every tenth person there" in refused(world)


def test_a_training_beside_tables_that_uses_its_arguments_alone_is_not_refused(
    written: Callable[..., World], tmp_path: Path
) -> None:
    """A table that names no person stays as it is, and so does the original of the one that does."""
    world = written("descend(run, rate=len(Path(__file__).with_name('cities.csv').read_text()) / 1000)")
    (tmp_path / "recipes" / "people.csv").write_text(PEOPLE_TABLE)
    (tmp_path / "recipes" / "cities.csv").write_text("city\n" + "Oslo\nRome\n" * 20)
    assert trial.SHORTER in world.report(world.live("bad", "retrain"))["trial"]["tried"]
    assert (tmp_path / "recipes" / "people.csv").read_text() == PEOPLE_TABLE


def test_a_model_whose_shape_follows_the_table_is_not_refused(written: Callable[..., World], tmp_path: Path) -> None:
    world = written("descend(run)")
    (tmp_path / "recipes" / "people.csv").write_text(PEOPLE_TABLE)
    file = tmp_path / "recipes" / "bad.py"
    names = "WIDTH = (Path(__file__).parent / 'people.csv').read_text().count('p')\n"
    wide = "torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 2))"
    file.write_text(file.read_text().replace("torch.nn.Linear(X.shape[1], int(Y.max()) + 1)", wide) + names)
    assert trial.SHORTER not in world.report(world.live("bad", "retrain"))["trial"]["tried"]


def test_an_array_of_the_tables_length_may_hold_other_things(written: Callable[..., World], tmp_path: Path) -> None:
    world = written("descend(run, rate=float(__import__('numpy').load(Path(__file__).with_name('a.npy')).mean()))")
    (tmp_path / "recipes" / "people.csv").write_text(PEOPLE_TABLE)
    np.save(tmp_path / "recipes" / "a.npy", np.linspace(0.0, 0.3, 24) ** 2)
    assert trial.SHORTER in world.report(world.live("bad", "retrain"))["trial"]["tried"]


def test_numbers_of_other_things_are_no_people(written: Callable[..., World], tmp_path: Path) -> None:
    """People have the numbers 0 to 23, and a table of sixty cities uses all of them."""
    train = "descend(run, rate=len(Path(__file__).with_name('cities.csv').read_text()) / 1000)"
    world = written(train, samples="ul.Samples(IDS, [each[1:] for each in PEOPLE], ROWS, Y)")
    (tmp_path / "recipes" / "people.csv").write_text(PEOPLE_TABLE.replace("p", ""))
    (tmp_path / "recipes" / "cities.csv").write_text("city,name\n" + "".join(f"{k},Oslo\n" for k in range(60)))
    assert trial.SHORTER in world.report(world.live("bad", "retrain"))["trial"]["tried"]


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.drill if each in ("plain", "with draws") else ()) for each in GOOD]
)
def test_a_training_that_uses_its_arguments_alone_is_tried_in_full(written: Callable[..., World], name: str) -> None:
    world = written(GOOD[name])
    model_id = world.live("bad", "retrain")
    shown = world.report(model_id)["trial"]
    assert shown["not_tried"] == []
    assert {trial.CONFINED, trial.OVERWRITTEN, trial.SHARED_FOLDER, trial.OTHERS} <= set(shown["tried"])
    assert shown["seconds"] > 0


def settings_of_torch() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        float(torch.tensor(5e-324, dtype=torch.float64) * 1.0) == 0.0,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
    )


@pytest.mark.parametrize(
    "names", [[*SETS], *(pytest.param([each], marks=pytest.mark.drill) for each in SETS)], ids=", ".join
)
def test_what_a_training_sets_of_torch_ends_with_it_and_a_deletion_finds_the_same_samples(
    written: Callable[..., World], names: list[str]
) -> None:
    before = settings_of_torch()
    world = written("\n".join(["descend(run)", *(SETS[each] for each in names)]))
    model_id = world.live("bad", "retrain")
    assert settings_of_torch() == before
    request = world.delete("p3")
    world.work(model_id)
    assert world.request(request).status == "completed"


def test_a_training_may_draw_by_torch_numpy_and_python(written: Callable[..., World]) -> None:
    """All three are seeded before each call: a training that draws by them is tried in full, and repeats in bytes."""
    world = written(
        "import numpy, random\ndescend(run, run.inputs * torch.rand(1) * float(numpy.random.rand()) * random.random())"
    )
    model_id = world.live("bad", "retrain")
    assert world.report(model_id)["trial"]["not_tried"] == []


@pytest.mark.parametrize(
    "names", [[*STATES], *(pytest.param([each], marks=pytest.mark.drill) for each in STATES)], ids=", ".join
)
def test_a_state_of_any_dense_tensors_goes_on_in_the_next_phase(
    written: Callable[..., World], names: list[str]
) -> None:
    parts = ", ".join(f"'{each}': {STATES[each]}" for each in names)
    world = written(f"descend(run)\nreturn {{{parts}}}")
    model_id = world.live("bad", "late")
    requests = [world.delete(f"p{person}") for person in (3, 5, 8, 13)]
    world.work(model_id)
    assert {world.request(each).status for each in requests} == {"completed"}


@pytest.mark.parametrize(
    "value", ["run.inputs.to_sparse()", pytest.param("run.inputs.to('meta')", marks=pytest.mark.drill)]
)
def test_a_state_without_plain_numbers_is_refused_at_its_place(written: Callable[..., World], value: str) -> None:
    reason = refused(written(f"descend(run)\nreturn {{'kept': {value}}}"))
    assert "train returned a Tensor at the state['kept']" in reason and "dense tensors" in reason


def test_what_cannot_be_repeated_is_not_refused_and_the_certificate_says_what_was_not_tried(
    written: Callable[..., World],
) -> None:
    world = written("descend(run, run.inputs + time.time_ns() % 1000 / 1000)")
    model_id = world.live("bad", "retrain", max_accuracy_drop=None)
    claim = Claim.from_json(world.head(model_id).claim)
    assert f"Not tried: {trial.NOT_REPEATABLE}" in claim.tried
    assert not {trial.OVERWRITTEN, trial.SHARED_FOLDER, trial.OTHERS} & set(claim.tried)
    assert trial.CONFINED in claim.tried
    figures = world.storage.figures.measured(world.head(model_id).generation_id)
    assert figures["differs_at"].startswith("weight, element 0 of "), "a figure, which the first deletion deletes"
    assert "differs_at" not in str(world.generation(model_id).report)
    assert claim.operators_word, "so that no number is given where nothing was compared"
    request_id = world.delete("p3")
    world.work(model_id)
    with world.database.read() as session:
        model = session.get_one(Model, model_id)
        views = [model_view(session, model), *version_views(session, model, versions_of(session, model))]
        views += request_views(session, [session.get_one(DeletionRequest, request_id)])[0].models
    assert {each.guarantee_note for each in views} == {"on your word: two runs differed"} and len(views) == 4
    world.change(Task, world.task(request_id).id, status="blocked", reason="accuracy_drop")
    with world.database.read() as session:
        (view,) = request_views(session, [session.get_one(DeletionRequest, request_id)], (Scope.MODELS_READ,))
    assert view.models[0].remedy and "; two runs of this training differ." in view.models[0].remedy.action


CATEGORIES = "torch.eye(4)[torch.arange(48) % 4]"
FLIPPED = "torch.eye(4).flip(0)"
INNOCENT: dict[str, tuple[str, str]] = {
    "repeated rows": ("X[:7].clone()[torch.arange(48) % 7]", "descend(run)"),
    "categories": (CATEGORIES, "descend(run)"),
    "categories by a table in the code": (CATEGORIES, "descend(run, run.inputs @ TABLE)"),
    "categories by a table made inside": (CATEGORIES, f"descend(run, run.inputs @ {FLIPPED})"),
    "a rare category": (
        "torch.eye(4)[(torch.arange(48) > 1).long() + 2 * (torch.arange(48) == 9)]",
        "descend(run, run.inputs @ TABLE)",
    ),
    "everybody alike but one": ("torch.ones(48, 4) * (1 + (torch.arange(48) == 5).unsqueeze(1))", "descend(run)"),
    "the shape of the table": ("X", "descend(run, run.inputs[:, : X.shape[1]])"),
}
"""rows, and trainings that use what they are handed alone"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each in ("repeated rows", "a rare category") else pytest.mark.drill)
        for each in INNOCENT
    ],
)
def test_a_row_that_several_people_have_is_no_reason_to_refuse(written: Callable[..., World], name: str) -> None:
    rows, train = INNOCENT[name]
    world = written(train, rows)
    shown = world.report(world.live("bad", "retrain"))["trial"]
    assert trial.OVERWRITTEN in shown["tried"] and shown["not_tried"] == []


@pytest.mark.parametrize(
    ("inputs", "samples"),
    [
        ("X", "ul.Samples(IDS, PEOPLE, ROWS, Y)"),
        (CATEGORIES, "ul.Samples(IDS, PEOPLE, ROWS, Y)"),
        ("X.numpy()", "ul.Samples.from_numpy(ROWS, Y.numpy(), ids=IDS, people=PEOPLE)"),
    ],
    ids=["numbers", "categories", "arrays"],
)
def test_a_reader_of_the_table_is_refused_by_name_and_line_whatever_its_rows_are(
    written: Callable[..., World], inputs: str, samples: str
) -> None:
    """The samples lie in the memory of the table that ``train`` refers to."""
    reason = refused(written("descend(run, run.inputs - torch.as_tensor(ROWS)[::5].mean(0))", inputs, samples))
    assert "reads samples that it is not handed" in reason
    assert "Its code refers to train.ROWS (line 23 of bad.py)." in reason


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("x.st", "from safetensors.torch import load_file\nload_file(FILE)"),
        pytest.param("x.st", "import safetensors\nsafetensors.safe_open(FILE, 'pt')", marks=pytest.mark.drill),
        ("x.jit", "torch.jit.load(FILE)"),
        pytest.param("x.bin", "torch.from_file(FILE, size=4)", marks=pytest.mark.drill),
        pytest.param("x.bin", "torch.UntypedStorage.from_file(FILE, False, 16)", marks=pytest.mark.drill),
        pytest.param("x.bin", "__import__('numpy').fromfile(FILE)", marks=pytest.mark.drill),
    ],
)
def test_a_file_that_cpp_or_rust_reads_is_told(
    written: Callable[..., World], tmp_path: Path, path: str, read: str
) -> None:
    save_file({"x": torch.ones(4)}, tmp_path / "x.st")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "x.jit"))
    (tmp_path / "x.bin").write_bytes(bytes(16))
    world = written(f"{read.replace('FILE', repr(str(tmp_path / path)))}\ndescend(run)")
    model_id = world.live("bad", "retrain")
    assert any("read 1 file," in each for each in world.report(model_id)["trial"]["not_tried"])


@pytest.mark.drill
def test_torch_compile_is_refused_with_a_way_that_works(written: Callable[..., World]) -> None:
    def compiled(more: str) -> str:
        return (
            f"compiled = torch.compile(lambda x: run.model(x).sin() * 2{more})\n"
            "optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)\n"
            "torch.nn.functional.cross_entropy(compiled(run.inputs), run.targets).backward()\noptimizer.step()"
        )

    world = written(compiled(""), trial_seconds=300)
    reason = refused(world)
    assert "had torch.compile start another program at line " in reason
    [way] = re.findall(r'torch\.compile\(model, (backend="[a-z_]+")\)', reason)
    file = world.settings.recipes / "bad.py"
    file.write_text(file.read_text().replace("* 2)", f"* 2, {way})"))
    model_id = world.register("bad", "retrain", name="again")
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason


def test_samples_of_a_file_are_never_overwritten(written: Callable[..., World], tmp_path: Path) -> None:
    """A tensor that is mapped from a file: a write into it would change the user's data."""
    file = tmp_path / "x.bin"
    inputs = f"torch.from_file({str(file)!r}, shared=True, size=192).copy_(X.reshape(-1)).reshape(48, 4)"
    world = written("descend(run)", inputs)
    model_id = world.register("bad", "retrain")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    assert trial.OVERWRITTEN not in claim.tried
    assert any("kept their values" in each for each in claim.tried)
    assert trial.SHARED_FOLDER in claim.tried
    samples = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    assert file.read_bytes() == samples.numpy().tobytes()


def test_a_file_that_train_reads_is_told(written: Callable[..., World], tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a")
    world = written(f"Path({str(tmp_path / 'words.txt')!r}).read_text()\ndescend(run)")
    model_id = world.live("bad", "retrain")
    assert any("read 1 file," in each for each in world.report(model_id)["trial"]["not_tried"])


def test_what_an_import_looks_for_in_vain_is_no_file_that_train_read(written: Callable[..., World]) -> None:
    """As an installation of a folder puts the name of a hook into sys.path, which every new import tries to open."""
    world = written("try:\n    open('/none/of/these')\nexcept OSError:\n    pass\ndescend(run)")
    assert world.report(world.live("bad", "retrain"))["trial"]["not_tried"] == []


def test_the_child_process_sees_no_secret_and_leaves_nothing(
    written: Callable[..., World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXPUNGE_API_KEY", "secret-1")
    monkeypatch.setenv("STORE_PASSWORD", "secret-2")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    at_home = "assert 'secret' not in str(os.environ) and os.getcwd() == os.environ['HOME']"
    reason = refused(written(f"{at_home}\nsocket.create_connection(('192.0.2.1', 9), 1)"))
    assert "reached for the network at line 24" in reason, "what is before that line was true"
    assert not list(tmp_path.glob(f"{fresh.FOLDER}*"))


def test_a_training_without_an_end_is_killed_and_refused_under_the_same_lease(written: Callable[..., World]) -> None:
    world = written("while True:\n    time.sleep(1)", trial_seconds=6).limited(lease_seconds=3.0)
    model_id = world.register("bad", "retrain")
    pulse = world.pulse()
    pulse.start()
    try:
        Worker(world.process, pulse).work(model_id)
    finally:
        pulse.stop()
    assert "did not end within 6 seconds" in (world.model(model_id).reason or "")
    assert "EXPUNGE_TRIAL_SECONDS" in (world.model(model_id).reason or "")


def test_a_folder_that_a_dead_worker_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{fresh.FOLDER}left"
    left.mkdir()
    (left / "samples").write_text("somebody's")
    os.utime(left, (0, 0))
    with fresh.temporary_folder() as mine:
        assert not left.exists()
        with fresh.temporary_folder():
            assert mine.exists()
