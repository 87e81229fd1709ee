"""A new method is one new file, or an entry point of another package: no other file of the source is changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.source import path_of
from tests.service.certificates.test_verifiers import statement_of

ROOT = Path(__file__).parents[2]
PARTS = ("expunge", "unlearning", "service", "workers", "migrations", "client", "connect", "lab", "engines", "tests")
TOY = '''
"""A few steps of gradient descent on those who are left, from the weights of the last update."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from unlearning.model.method import Method
from unlearning.types import Forgotten, Need, State, retained, silent


@dataclass(frozen=True)
class Toy(Method):
    name: ClassVar[str] = "toy"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    steps: int = 20

    def prepare(self, problem, examples, learned, progress=silent):
        progress(1.0)
        return State(learned.weights)

    def forget(self, problem, state, forget, retain, generator):
        if not forget:
            return Forgotten(state)
        left, w = retained(forget, retain), state.weights
        work = problem.cast(w.dtype)
        for _ in range(self.steps):
            gradient = work.gradient(w, left.inputs, left.targets) + work.decay * w
            w = w - problem.training.learning_rate * gradient
        return Forgotten(replace(state, weights=w), {"steps": self.steps})


METHOD = Toy
'''
SERVED = """
import json, sys
from pathlib import Path
from tests.harness.stack import running

home, recipes = (Path(each) for each in sys.argv[1:])
with running(home, recipes, GRACE="0.5") as stack:
    wrong = stack.register("tiny", "toy", options={"stride": 2})
    refused = stack.prepared(wrong)
    name = stack.live("tiny", "toy", options={"steps": 30})
    request = stack.forgotten(name, subject_id="tiny-person-3")
    head = stack.head(name)
    print(json.dumps({"refused": refused, "request": request, "head": head}))
"""


ENTRY = "[expunge.methods]\nstranger = stranger:Stranger\nretrain = stranger:Stranger\n"
ASKED = """
import json, sys
from pathlib import Path
from expunge_service.infra.tables import Generation
from tests.harness.stack import running
from tests.releases.folder import certified
from unlearning.methods import load

home, recipes = (Path(each) for each in sys.argv[1:])
with running(home, recipes, GRACE="0.5") as stack:
    plain = stack.live("tiny", "stranger")
    named = stack.live("tiny", "stranger", guarantee="proved")
    ours = stack.live("tiny", "newton")
    certificate, _ = certified(stack, stack.forgotten(subject_id="tiny-person-3"))
    database = stack.database()
    with database.read() as session:
        packages = [each.manifest.get("package") for each in session.query(Generation).order_by(Generation.id)]
    database.close()
    print(json.dumps({"names": [plain, named, ours], "certificate": json.loads(certificate), "packages": packages,
                      "retrain": load("retrain").__name__}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another package in it, as an installer leaves it: worlds see those that are named so alone."""
    folder = tmp_path_factory.mktemp("another") / "site-packages"
    folder.mkdir()
    (folder / "stranger.py").write_text(TOY.replace("Toy", "Stranger").replace('"toy"', '"stranger"'))
    facts = folder / "stranger-1.5.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.5\n")
    (facts / "entry_points.txt").write_text(ENTRY)
    return folder


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with one more file in it."""
    folder = tmp_path_factory.mktemp("copy")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "unlearning" / "methods" / "toy.py").write_text(TOY)
    return folder


def python(copy: Path, *arguments: str, beside: str = "lab") -> str:
    """Run Python in the copy; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{path_of(copy)}:{copy / beside}", "OMP_NUM_THREADS": "1"}
    environment["PYTEST_ADDOPTS"] = ""  # whose further -q would hide the lines that are counted
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_method_in_one_file_passes_the_contract_suite(copy: Path) -> None:
    found = python(
        copy,
        "-m",
        "pytest",
        "tests/contract/test_contract.py",
        "-v",
        "-k",
        "toy or names_itself",
        "-p",
        "no:cacheprovider",
    )
    assert found.count("[toy-quadratic] PASSED") > 10 and "names_itself PASSED" in found


@pytest.mark.drill
def test_a_method_in_one_file_is_measured_by_check(copy: Path) -> None:
    recipe = ROOT / "tests" / "workers" / "recipes" / "convex.py"
    arguments = (str(recipe), "--measure", "--methods", "toy", "--seconds", "60", "--device", "cpu", "--json")
    (row,) = json.loads(python(copy, "-m", "expunge_workers.check", *arguments))["measured"]["methods"]
    assert (row["method"], row["guarantee"], row["refused"]) == ("toy", "proved", None)
    assert row["update"] > 0.0 and row["state_bytes"] > 0


def test_a_method_in_one_file_is_registered_over_http_and_publishes_an_update(copy: Path, tmp_path: Path) -> None:
    """Its option comes from its field. The recipe converges, so that what it publishes is proved at the weights."""
    recipes = ROOT / "tests" / "stories" / "recipes"
    found = json.loads(python(copy, "-c", SERVED, str(tmp_path), str(recipes)).splitlines()[-1])
    assert found["refused"]["status"] == "refused"
    assert "toy has no option 'stride'. Its options are: steps." in found["refused"]["reason"]
    head, request = found["head"], found["request"]
    assert (request["status"], head["number"], head["method"]) == ("completed", 2, "toy")
    assert head["samples"] == request["models"][0]["samples"] > 0
    assert (head["claim"]["method"], head["claim"]["guarantee"]) == ("toy", "proved")
    assert "The method's own state depends on the deleted people." in head["claim"]["secret_state"]


def test_a_method_of_another_package_is_served_and_claims_nothing_that_was_not_named(
    installed: Path, tmp_path: Path
) -> None:
    """Its package stands in manifest and certificate, by name and version. It takes no name of ours."""
    recipes = ROOT / "tests" / "stories" / "recipes"
    arguments = ("-c", ASKED, str(tmp_path), str(recipes))
    found = json.loads(python(ROOT, *arguments, beside=str(installed)).splitlines()[-1])
    assert found["packages"] == ["stranger 1.5", "stranger 1.5", None]
    parts = {each["model"]: each for each in statement_of(found["certificate"])["predicate"]["models"]}
    plain, named, ours = (parts[name]["claim"] for name in found["names"])
    assert [each["guarantee"] for each in (plain, named, ours)] == ["none", "proved", "proved"]
    said = "What this claim says of it is the word of its package, stranger 1.5."
    assert [any(said in line for line in each["assumptions"]) for each in (plain, named, ours)] == [True, True, False]
    assert found["retrain"] == "Retrain"
