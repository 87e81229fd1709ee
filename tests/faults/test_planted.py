"""The planted bugs still fit the source and their tests exist; ``python -m tests.faults planted_bugs`` runs them."""

from __future__ import annotations

import ast
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.faults import planted_bugs
from tests.faults.bugs import Bug, DoesNotApply, Edit, every_bug

ROOT = Path(__file__).parents[2]
BUGS = every_bug()


DRILL = "pytest.mark.drill"


@cache
def defined_in(file: Path) -> frozenset[str]:
    """Return the names of the file's functions that the default suite runs, as far as marks on the whole say."""
    tree = ast.parse(file.read_text())
    whole = [
        each for each in tree.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    if any(DRILL in ast.unparse(each) for each in whole):
        return frozenset()
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    return frozenset(each.name for each in functions if DRILL not in map(ast.unparse, each.decorator_list))


def test_there_are_at_least_twenty() -> None:
    assert len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_still_applies_and_the_default_suite_has_its_tests(bug: Bug, tmp_path: Path) -> None:
    for edit in bug.edits:
        target = tmp_path / edit.file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / edit.file, target)
    bug.plant(tmp_path)
    for test in bug.suite:
        file, _, name = test.partition("::")
        assert defined_in(ROOT / file) and (not name or name.partition("[")[0] in defined_in(ROOT / file))


def test_this_run_has_the_variants_that_a_bug_names(request: pytest.FixtureRequest) -> None:
    """As far as it collected their files; where -k or --deselect chose among them, nothing can be said."""
    options = request.config.option
    if options.keyword or options.deselect:
        pytest.skip("this run chose among the tests of a file")
    here = {item.nodeid for item in request.session.items}
    files = {each.partition("::")[0] for each in here}
    named = {test for bug in BUGS for test in bug.suite if "[" in test and test.partition("::")[0] in files}
    assert named <= here


def test_a_bug_whose_place_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(DoesNotApply, match="2 times"):
        Edit("a.py", "x = 1\n", "x = 2\n").apply(tmp_path)


FROM_HERE = """
from pathlib import Path

import expunge_migrations, expunge_service, expunge_workers
import expunge_client, expunge_connect, expunge_lab, unlearning

HERE = Path(__file__).resolve().parents[1]


def test_every_package_is_the_copys():
    for package in (
        expunge_migrations, expunge_service, expunge_workers, expunge_client, expunge_connect, expunge_lab, unlearning
    ):
        assert Path(package.__file__ or package.__path__[0]).resolve().is_relative_to(HERE), package
"""


def test_the_copy_that_bugs_are_planted_in_runs_its_own_source(tmp_path: Path) -> None:
    """A folder that the copy lacks, or a package found elsewhere, would judge the source without the bug."""
    copy = planted_bugs.copy_tree(tmp_path / "copy")
    (copy / "tests" / "test_here.py").write_text(FROM_HERE)
    done = planted_bugs.suite(copy, ["tests/test_here.py"])
    assert done.returncode == 0, done.stdout
