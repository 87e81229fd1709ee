"""Trainings in fresh processes: what a recipe's code keeps reaches no other training, and nothing outlives them."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors

import unlearning as ul
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Model
from expunge.service.models.retrain_plan import plan_new_data
from expunge.workers.runtime import confined, fresh, fresh_child, recipes
from expunge.workers.runtime.confined import Isolation
from expunge.workers.runtime.fresh import FreshProcesses
from expunge.workers.runtime.model import build
from tests.workers.worlds import World, open_world
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.accounting.policy import Policy
from unlearning.columns import Column
from unlearning.model.fit import Phase
from unlearning.model.parts import runs_own_code
from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import Fitted
from unlearning.types import Examples, silent

RECIPE = """
import os, time
from pathlib import Path
import torch
from torch.nn import functional as F
import unlearning as ul

random = torch.Generator().manual_seed(1)
X = torch.randn(60, 4, generator=random)
Y = (X[:, 0] > 0).long()
HELD_X, HELD_Y = X[48:].clone(), Y[48:].clone() if {right} else 1 - Y[48:]
KEPT = []
{before}

def recipe():
    everyone = [f"p{{k // 2}}" for k in range(60)]
    return ul.Recipe(
        samples=ul.Samples([f"s{{k}}" for k in range(48)], everyone[:48], {inputs}),
        holdout=(HELD_X, HELD_Y),
        holdout_subjects=everyone[48:],
        {how},
    )
"""
BUILT_IN = "training=ul.Training(epochs=6, learning_rate=.3, optimizer=ul.SGD(momentum=.5){more})"
LINEAR = "model=lambda: torch.nn.Linear(4, 2), "
NAMED = 'loss="cross_entropy", '
KEEPS = {
    "a counter of calls, in the loss": (
        "def loss(outputs, targets):\n"
        "    KEPT.append(1)\n"
        "    return F.cross_entropy(outputs, targets, reduction='none') / len(KEPT)",
        f"{LINEAR}loss=loss, {BUILT_IN.format(more='')}",
    ),
    "running centres of the inputs, in augment": (
        "def augment(x, draw):\n"
        "    KEPT[:] = [0.9 * KEPT[0] + 0.1 * x.mean(0) if KEPT else x.mean(0)]\n"
        "    return x - KEPT[0]",
        f"{LINEAR}{NAMED}{BUILT_IN.format(more=', augment=augment')}",
    ),
    "an attribute of a library's class, in the loss": (
        "def loss(outputs, targets):\n"
        "    torch.nn.Linear.seen_by_test_fresh = getattr(torch.nn.Linear, 'seen_by_test_fresh', 0) + 1\n"
        "    return F.cross_entropy(outputs, targets, reduction='none') / torch.nn.Linear.seen_by_test_fresh",
        f"{LINEAR}loss=loss, {BUILT_IN.format(more='')}",
    ),
    "a counter of models, in the constructor": (
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 2)\n"
        "        KEPT.append(1)\n"
        "        self.weight.data.mul_(len(KEPT))",
        f"model=Net, {NAMED}{BUILT_IN.format(more='')}",
    ),
    "the samples of all calls, in train": (
        "def fit(run):\n"
        "    KEPT.append(run.inputs.mean(0))\n"
        "    optimizer = torch.optim.SGD(run.model.parameters(), lr=.1)\n"
        "    for _ in range(3):\n"
        "        optimizer.zero_grad()\n"
        "        F.cross_entropy(run.model(run.inputs - KEPT[0]), run.targets).backward()\n"
        "        optimizer.step()",
        f"{LINEAR}{NAMED}train=fit",
    ),
    "a file in its folder, by C++": (
        "def loss(outputs, targets):\n"
        "    seen = torch.from_file('seen.bin', shared=True, size=1)\n"
        "    seen += 1\n"
        "    return F.cross_entropy(outputs, targets, reduction='none') / seen",
        f"{LINEAR}loss=loss, {BUILT_IN.format(more='')}",
    ),
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "retrain": ("retrain", {}),
    "late": ("late", {}),
    "shards": ("shards", {"shards": 2, "slices": 2}),
    "shards with a head": ("shards", {"shards": 2, "early_share": [0.6], "phase_shares": [0.8, 0.2], "stacked": 0.7}),
}
SHORT = {
    ("a counter of calls, in the loss", "retrain"),
    ("running centres of the inputs, in augment", "late"),
}
"""of the pairs of what is kept and the method, those that are no drills"""


@pytest.fixture
def written(settings: Settings, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Return a world with a recipe of these lines."""
    settings.pepper_file.write_text("5a" * 32)  # under some keys a shard of so few people is empty
    worlds: list[World] = []

    def write(
        before: str, how: str, name: str = "own", inputs: str = "X[:48], Y[:48]", right: bool = True, **changes: Any
    ) -> World:
        folder = tmp_path / "recipes"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(RECIPE.format(before=before, how=how, inputs=inputs, right=right))
        worlds.append(open_world(settings.model_copy(update={"recipes": folder, **changes})))
        return worlds[-1]

    yield write
    for world in worlds:
        world.storage.close()


def own_train(body: str) -> tuple[str, str]:
    """A recipe that runs these lines before it trains."""
    steps = KEEPS["the samples of all calls, in train"][0].split("\n", 2)[2]
    steps = steps.replace("run.inputs - KEPT[0]", "run.inputs")
    return f"def fit(run):\n{textwrap.indent(body, '    ')}\n{steps}", f"{LINEAR}{NAMED}train=fit"


def published(world: World, model_id: str) -> dict[str, torch.Tensor]:
    return load_tensors(world.storage.store.read(world.head(model_id).checkpoint))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def trained(folder: str, name: str, part: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Carry a part of a training out in this process."""
    torch.set_num_threads(1)
    problem = Problem(recipes.load(Path(folder), name).recipe)
    rows = (torch.from_numpy(given[each]) for each in ("inputs", "targets"))
    people, subjects = Column.of(given["people"]), Column.of(given["subjects"])
    plain = Examples.of(torch.from_numpy(given["positions"]), *rows, people)
    examples = Examples(plain.positions, plain.rows, people, subjects)
    start = given["start"]
    if start is not None:
        tensors = {each: torch.from_numpy(value) for each, value in start[1].items()}
        start = Fitted(torch.from_numpy(start[0]), tensors, start[2])
    left = part.carried_out(problem, examples, start, silent)
    return left.weights.numpy(), {each: value.numpy() for each, value in left.tensors.items()}, left.facts


@pytest.fixture
def in_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python's own pool make a new process for each part: the slow twin of ``FreshProcesses``."""

    def call(self: FreshProcesses, part: Any, examples: Examples, start: Fitted | None, progress: Any) -> Fitted:
        names = ("positions", "inputs", "targets")
        given: dict[str, Any] = {each: getattr(examples, each).numpy().copy() for each in names}
        given |= {"people": [*examples.people], "subjects": [*examples.subjects], "start": None}
        if start is not None:
            tensors = {each: value.numpy().copy() for each, value in start.tensors.items()}
            given["start"] = (start.weights.numpy().copy(), tensors, start.facts)
        context = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            where = str(self.recipe.settings.recipes), self.recipe.name
            weights, tensors, facts = pool.submit(trained, *where, part, given).result()
        return Fitted(
            torch.from_numpy(weights), {each: torch.from_numpy(value) for each, value in tensors.items()}, facts
        )

    monkeypatch.setattr(FreshProcesses, "__call__", call)


@pytest.mark.parametrize(
    ("kept", "method"),
    [
        pytest.param(kept, method, marks=() if (kept, method) in SHORT else pytest.mark.drill)
        for kept in KEEPS
        for method in METHODS
        if "loss=loss" not in KEEPS[kept][1] or method != "shards with a head"  # a head needs a named loss
    ],
)
def test_what_a_recipe_keeps_reaches_no_later_deletion(
    written: Callable[..., World], request: pytest.FixtureRequest, kept: str, method: str
) -> None:
    """The third deletion's version is, bit for bit, that of trainings in new processes without these people."""
    world = written(*KEEPS[kept])
    name, options = METHODS[method]
    deleted, worker = world.live("own", name, name="deleted", options=options), world.worker()
    for person in ("p3", "p11", "p5"):
        world.delete(person)
        worker.work(deleted)
    claim = Claim.from_json(world.head(deleted).claim)
    assert (claim.guarantee, claim.updates, claim.deterministic) == (Guarantee.EXACT, 3, True)
    request.getfixturevalue("in_new_processes")
    never = world.live("own", name, name="never", options=options, leave_out_forgotten=True)
    assert same(published(world, deleted), published(world, never))


def test_a_retraining_under_another_method_is_exact_too(written: Callable[..., World]) -> None:
    """It is published as ``exact``; and the constructor counts every model that the worker built."""
    before, how = KEEPS["a counter of models, in the constructor"]
    world = written(before, how.replace(", optimizer=ul.SGD(momentum=.5)", ""))
    served = world.live("own", "safe", name="served")
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, served), dry_run=False)
    world.work(served)
    claim = Claim.from_json(world.head(served).claim)
    assert (claim.method, claim.guarantee, world.head(served).number) == ("retrain", Guarantee.EXACT, 2)
    plain = world.live("own", "retrain", name="plain")
    assert same(published(world, served), published(world, plain))


@pytest.mark.parametrize(
    ("body", "deterministic"),
    [
        ("", True),
        ("torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))", False),
        ("torch.use_deterministic_algorithms(False)", False),
    ],
)
def test_a_claim_says_whether_every_operator_was_deterministic(
    written: Callable[..., World], body: str, deterministic: bool
) -> None:
    world = written(*own_train(body))
    assert Claim.from_json(world.head(world.live("own", "retrain")).claim).deterministic is deterministic


def test_the_holdout_reaches_no_exact_training_and_is_measured(written: Callable[..., World]) -> None:
    """Early stopping on the holdout, on a copy of it and on the table behind it: no label of it changes the model."""
    body = (
        "for x, y in ((HELD_X, HELD_Y), (HELD_X.clone(), HELD_Y), (X[48:], Y[48:])):\n"
        "    if (run.model(x).argmax(1) == y).float().mean() > .5:\n"
        "        run.inputs.mul_(2)\n"
        "run.inputs.add_(X[48:].mean())"
    )
    one = written(*own_train(body), name="one")
    other = written(*own_train(body), name="other", right=False)
    first, second = one.live("one", "late", name="first"), other.live("other", "late", name="second")
    assert same(published(one, first), published(other, second))
    accuracies = one.head(first).holdout_accuracy, other.head(second).holdout_accuracy
    assert accuracies[0] is not None and accuracies[1] == pytest.approx(1 - accuracies[0])
    assert one.request(one.delete("p25")).reason == "in_holdout"


def test_a_holdout_in_a_dataset_could_be_read_and_its_people_are_told_so(written: Callable[..., World]) -> None:
    before, how = own_train("")
    rows = "class Rows:\n    def __len__(self): return 48\n    def __getitem__(self, row): return X[row], Y[row]\n"
    world = written(rows + before, how, inputs="Rows()")
    world.live("own", "retrain")
    held_out = world.request(world.delete("p25"))
    assert (held_out.reason, held_out.facts or {}) == ("in_holdout", {}), "it does not say that no model is trained"


@pytest.fixture(params=["namespaces", "none"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train by a server of this test: as the kernel allows it, or as if it allowed no namespaces and no Landlock."""
    if request.param == "namespaces":
        monkeypatch.setattr(fresh, "_servers", [])
        yield
        return
    channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        channel.close()
        fresh_child.isolate = lambda *_, **__: Isolation(False, False)  # type: ignore[assignment]
        confined.write_only_below = lambda _: False  # type: ignore[assignment]
        try:
            confined.adopt_orphans()
            fresh_child.serve(other)
        finally:
            os._exit(0)
    other.close()
    process: Any = SimpleNamespace(poll=lambda: None, pid=child)
    monkeypatch.setattr(fresh, "_servers", [fresh.Server(process, channel)])
    yield
    channel.close()
    os.waitpid(child, 0)


@pytest.mark.usefixtures("server")
def test_no_process_outlives_a_training(
    written: Callable[..., World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two leave their session and their parent, with everyone's samples: they are gone when the version is there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = (
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600)\n"
        "        os._exit(0)"
    )
    world = written(*own_train(body))
    world.live("own", "retrain")
    assert not [each for each in Path("/proc").glob("[0-9]*/cwd") if str(tmp_path / fresh.FOLDER) in _target(each)]
    assert not list(tmp_path.glob(f"{fresh.FOLDER}*"))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_no_secret_is_found_in_the_environment_of_any_process(
    written: Callable[..., World], server: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A process of the same user with the pepper in its environment stands for the worker."""
    monkeypatch.setenv("EXPUNGE_PEPPER", "secret-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-2")
    body = (
        "for each in Path('/proc').glob('[0-9]*/environ'):\n"
        "    try:\n"
        "        if b'secret' in each.read_bytes():\n"
        "            os._exit(42)\n"
        "    except OSError:\n"
        "        pass\n"
        "assert 'secret' not in str(os.environ)"
    )
    world = written(*own_train(body))
    with subprocess.Popen(["sleep", "60"], env={**os.environ}) as decoy:
        try:
            model_id = world.register("own", "retrain")
            world.work(model_id)
        finally:
            decoy.kill()
    model = world.model(model_id)
    if "none" in request.node.callspec.id:  # the worker's is shown there, and not given
        assert "opened a file of the service" in (model.reason or "")
    else:
        assert model.status == "live", model.reason
        assert b"secret" not in Path(f"/proc/{fresh.server().process.pid}/environ").read_bytes()


def test_a_variable_that_the_recipe_sets_is_there_when_it_trains(
    written: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own name, or in place of one that the operator lists; a folder of the confinement's stays that."""
    for name in ("TF_DETERMINISTIC_OPS", "HOME", "SIZE_OF_PEOPLE", "LISTED"):
        monkeypatch.setenv(name, "9")  # put back: this process loads the recipe too
    before, how = own_train(
        "assert os.environ['TF_DETERMINISTIC_OPS'] == '1'\n"
        "assert os.environ['SIZE_OF_PEOPLE'] == '9' and 'LISTED' not in os.environ\n"
        "assert os.environ['HOME'] == os.environ['TMPDIR'] == os.getcwd()"
    )
    top = "import os\nos.environ['TF_DETERMINISTIC_OPS'] = '1'\nos.environ['SIZE_OF_PEOPLE'] = '9'\n"
    world = written(f"{top}os.environ['HOME'] = '/nowhere'\n{before}", how)
    world.configured(recipe_variables="SIZE_OF_PEOPLE LISTED").live("own", "retrain")


def test_a_recipe_is_loaded_with_the_variables_that_the_operator_lists(
    written: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIZE_OF_PEOPLE", "2")
    before, how = own_train("assert 'SIZE_OF_PEOPLE' not in os.environ")
    world = written(f"SIZE = int(os.environ['SIZE_OF_PEOPLE'])\n{before}", how)
    model_id = world.register("own", "retrain")
    world.work(model_id)
    assert "EXPUNGE_RECIPE_VARIABLES" in (world.model(model_id).reason or "")
    world.configured(recipe_variables="SIZE_OF_PEOPLE").live("own", "retrain", name="listed")


def test_a_file_that_cpp_writes_elsewhere_is_refused_by_the_kernel_or_nothing_is_claimed_of_it(
    written: Callable[..., World], tmp_path: Path
) -> None:
    file = tmp_path / "state.pt"
    body = (
        f"if Path({str(file)!r}).exists():\n"
        f"    run.model.weight.data += torch.jit.load({str(file)!r}).weight.data\n"
        f"torch.jit.script(run.model)._c.save({str(file)!r}, {{}})"
    )
    world = written(*own_train(body), trial_seconds=60)
    model_id = world.register("own", "retrain")
    world.work(model_id)
    if file.exists():  # where it may be written, it is hidden, and what was written is gone with the training
        assert Claim.from_json(world.head(model_id).claim).operators_word


def test_a_training_ends_with_the_lease_and_the_server_trains_the_next(written: Callable[..., World]) -> None:
    world = written(*own_train("while len(run.inputs) > 40:\n    run.progress(.1)\n    time.sleep(.05)"))
    bench = build(world.settings, "default", "own", Policy.from_json({"method": "retrain"}))
    everyone = bench.recipe.samples.examples()

    def lost(share: float) -> None:
        raise TimeoutError(str(share))

    assert bench.fresh is not None
    with pytest.raises(TimeoutError):
        bench.fresh(Phase("all"), everyone, None, lost)
    few = everyone.only(torch.arange(40))
    assert bench.fresh(Phase("all"), few, None, silent).weights.shape == (10,)


@pytest.mark.parametrize(
    ("model", "own"),
    [
        (
            "torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.GELU(), torch.nn.Dropout())",
            False,
        ),
        ("torch.nn.TransformerEncoderLayer(4, 2, activation=torch.nn.functional.gelu)", False),
        ("torch.nn.TransformerEncoderLayer(4, 2, activation=lambda x: x)", True),
        ("torch.jit.script(torch.nn.Linear(4, 2))", True),
        ("torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 2))", True),
        ("type('Own', (torch.nn.Linear,), {})(4, 2)", True),
    ],
)
def test_which_models_run_code_of_the_recipe(model: str, own: bool) -> None:
    samples = ul.Samples(["a"], ["a"], torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
    holdout = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    plain: Any = {"samples": samples, "holdout": holdout, "loss": "cross_entropy", "training": ul.Training(epochs=1)}
    recipe = ul.Recipe(model=lambda: eval(model), **plain)
    assert runs_own_code(recipe) is own
