"""What a recipe's C code reaches from a training: the ways out of a process that no audit event shows."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from expunge.service.infra.settings import Settings
from expunge.workers.runtime import fresh
from expunge.workers.runtime.fresh import FreshProcesses, temporary_folder
from expunge.workers.runtime.model import build
from expunge.workers.training.trial import NO_NETWORK
from tests.workers.worlds import World, open_world
from unlearning.accounting.certificate import Claim
from unlearning.accounting.policy import Policy
from unlearning.model.fit import Phase
from unlearning.types import silent

FOLDERS = ("/run", "/tmp", "/var/tmp", "/dev/shm", str(Path.home()))
RECIPE = """
import ctypes, os
from pathlib import Path
import torch
from torch.nn import functional as F
import unlearning as ul

LEAK = ctypes.CDLL(str(Path(__file__).with_name("leak.so")))
X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
{before}

def fit(run):
    rows, size = run.inputs.numpy().tobytes(), run.inputs.numel() * 4
{body}
    F.cross_entropy(run.model(run.inputs), run.targets).backward()
    torch.optim.SGD(run.model.parameters(), lr=0.1).step()

def recipe():
    return ul.Recipe(
        samples=ul.Samples([f"s{{k}}" for k in range(48)], [f"p{{k // 2}}" for k in range(48)], X, Y),
        holdout=(X[:12].clone(), Y[:12].clone()),
        model=lambda: torch.nn.Linear(4, 2),
        loss="cross_entropy",
        train=fit,
    )
"""


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("unverified here: there is no gcc")
    library = tmp_path_factory.mktemp("leak") / "leak.so"
    source = Path(__file__).with_name("leak.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def written(settings: Settings, tmp_path: Path, leak: Path) -> Iterator[Callable[..., World]]:
    """Return a world with a recipe whose ``train`` runs these lines, with ``LEAK`` beside it."""
    worlds: list[World] = []

    def write(body: str, before: str = "", **changes: Any) -> World:
        recipes = tmp_path / "recipes"
        recipes.mkdir(exist_ok=True)
        if not (recipes / "leak.so").exists():  # the first is mapped into this process by now
            shutil.copy(leak, recipes / "leak.so")
        (recipes / "own.py").write_text(RECIPE.format(body=textwrap.indent(body, "    "), before=before))
        worlds.append(open_world(settings.model_copy(update={"recipes": recipes, **changes})))
        return worlds[-1]

    yield write
    for world in worlds:
        world.storage.close()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a server in the folder of the test."""
    monkeypatch.setattr(fresh, "_servers", [])
    yield
    fresh.kill_server()


class Listener:
    """Listens at a Unix socket, and keeps what comes."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(name.replace("@", "\0") if name.startswith("@") else name)
        self._socket.listen()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                with self._socket.accept()[0] as other:
                    self.rows += other.recv(4096)

    def close(self) -> None:
        self._socket.close()
        if not self.name.startswith("@"):
            Path(self.name).unlink()


@pytest.fixture
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    """A socket in the folder of this name, of the data, or in none (abstract)."""
    name = f"expunge-{secrets.token_hex(4)}"
    places = {"abstract": f"@{name}", "data": str(tmp_path / name), "recipes": str(tmp_path / "recipes" / name)}
    (tmp_path / "recipes").mkdir(exist_ok=True)
    place = places.get(request.param) or f"{request.param}/{name}"
    if not (place.startswith("@") or os.access(Path(place).parent, os.W_OK)):
        pytest.skip(f"unverified here: this user may not write to {request.param}")
    found = Listener(place)
    yield found
    found.close()


def verdict_of(world: World) -> dict[str, Any]:
    """Train once in a fresh process; return what it says of itself."""
    bench = build(world.settings, "default", "own", Policy.from_json({"method": "retrain"}))
    assert isinstance(bench.fresh, FreshProcesses)
    with temporary_folder() as folder:
        _, verdict = bench.fresh.carried_out(Phase("all"), bench.recipe.samples.examples(), None, silent, folder)
    return verdict


def attempt(world: World, received: Callable[[], bool]) -> dict[str, Any]:
    """Train, and hold it against what came out: with no network nothing did."""
    verdict = verdict_of(world)
    if not verdict["no_network"]:
        pytest.skip("unverified here: the kernel gives no namespaces, and the claim does not say that it did")
    assert not received(), "the rows came out, and the claim would say that there was no network"
    return verdict


@pytest.mark.parametrize("listener", [*FOLDERS, "data", "recipes", "abstract"], indirect=True)
def test_no_row_leaves_through_a_socket(written: Callable[..., World], listener: Listener) -> None:
    world = written(f"LEAK.through_socket({listener.name.encode()!r}, rows, size)")
    attempt(world, lambda: bool(listener.rows))


@pytest.mark.parametrize("listener", ["/run", "/tmp", "data"], indirect=True)
def test_no_row_leaves_through_what_is_uncovered_again(written: Callable[..., World], listener: Listener) -> None:
    """While the recipe is loaded, Landlock does not forbid it yet. The process is then the first of its namespace."""
    folders = ("/run", "/tmp", "/dev/shm", listener.name)
    before = f"for folder in {folders} if os.getpid() == 1 else ():\n    LEAK.uncover(folder.encode())"
    send = f"LEAK.through_socket({listener.name.encode()!r}, rows, size)"
    attempt(
        written(f"for folder in {folders}:\n    LEAK.uncover(folder.encode())\n{send}", before),
        lambda: bool(listener.rows),
    )


@pytest.mark.usefixtures("own_server")
@pytest.mark.parametrize("listener", ["/run"], indirect=True)
def test_no_row_leaves_through_a_folder_that_was_open_before(
    written: Callable[..., World], listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was started in the folder that is hidden, and the recipe opens it while it is loaded."""
    monkeypatch.chdir("/run")
    name = Path(listener.name).name
    body = f"LEAK.through_socket(f'/proc/self/fd/{{HERE}}/{name}'.encode(), rows, size)"
    attempt(written(body, "HERE = os.open('.', os.O_PATH)"), lambda: bool(listener.rows))


def test_no_row_leaves_through_memory_that_system_v_keeps(written: Callable[..., World]) -> None:
    key, libc = secrets.randbelow(2**30) + 1, ctypes.CDLL(None)
    world = written(f"LEAK.through_shared_memory({key}, rows, size)")
    try:
        attempt(world, lambda: libc.shmget(key, 0, 0) >= 0)
    finally:
        libc.shmctl(libc.shmget(key, 0, 0), 0, None)


def test_no_row_leaves_through_a_queue_of_messages(written: Callable[..., World]) -> None:
    name, rt = f"expunge-{secrets.token_hex(4)}".encode(), ctypes.CDLL(None)
    world = written(f"LEAK.through_queue({name!r}, rows, size)")
    try:
        attempt(world, lambda: rt.mq_open(b"/" + name, os.O_RDONLY | os.O_NONBLOCK) >= 0)
    finally:
        rt.mq_unlink(b"/" + name)


def test_no_row_stays_in_shared_memory(written: Callable[..., World]) -> None:
    file = Path("/dev/shm") / f"expunge-{secrets.token_hex(4)}"
    try:
        attempt(written(f"LEAK.through_file({str(file).encode()!r}, rows, size)"), file.exists)
    finally:
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("folder", ["/var/tmp", "/tmp"])
def test_data_in_a_folder_that_is_hidden_are_read_and_the_claim_names_no_network(
    written: Callable[..., World], folder: str
) -> None:
    """The recipe is loaded once more with all folders, and says no more than is so."""
    file = Path(folder) / f"expunge-{secrets.token_hex(4)}"
    file.write_text("1")
    reads = f"float(Path({str(file)!r}).read_text())"
    try:
        for body, before in ((f"run.inputs[0, 0] = {reads}", ""), ("", f"X[0, 0] = {reads}")):
            assert not verdict_of(written(body, before))["no_network"]
    finally:
        file.unlink()


def test_data_that_the_recipes_folder_links_to_are_read(written: Callable[..., World], tmp_path: Path) -> None:
    file = Path("/var/tmp") / f"expunge-{secrets.token_hex(4)}"
    file.write_text("1")
    world = written("", before="X[0, 0] = float(Path(__file__).with_name('data').read_text())")
    try:
        (tmp_path / "recipes" / "data").symlink_to(file)
        attempt(world, lambda: False)
    finally:
        file.unlink()


@pytest.mark.parametrize("listener", ["/run"], indirect=True)
def test_the_certificate_says_what_was_hidden_where_it_was(written: Callable[..., World], listener: Listener) -> None:
    world = written(f"LEAK.through_socket({listener.name.encode()!r}, rows, size)", trial_seconds=120)
    model_id = world.register("own", "retrain")
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    said = " ".join(Claim.from_json(world.head(model_id).claim).tried)
    assert (NO_NETWORK in said) == (listener.rows == b""), said
