"""The drills themselves: small, so that one that does not run, or overlooks a fault, shows here."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

import unlearning as ul
from tests.faults import crowd, load, power_cut
from tests.faults.__main__ import every_drill, main, options
from tests.faults.deaths import DEATHS, OF_A_BUCKET
from tests.faults.report import BEGIN, END, last_seconds, parts, write_into
from tests.faults.result import Result
from tests.harness.databases import sqlite_databases, sqlite_template
from tests.harness.seams import DIE_AT, SEAMS, at, die
from tests.workers.worlds import fork
from unlearning.bounds.minimiser import Minimiser
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Refused, State

ROOT = Path(__file__).parents[2]


def test_every_seam_is_died_at() -> None:
    assert {point for point, _ in DEATHS} | set(OF_A_BUCKET) == SEAMS.keys()
    assert len(SEAMS) >= 51


@pytest.mark.parametrize("point", sorted(SEAMS))
def test_a_seam_is_in_the_source_and_leaves_it_as_it_was(point: str) -> None:
    """Naming a function that is gone raises."""
    with at(point, lambda: None):
        pass
    with at(point, lambda: None):  # what was put around it the first time would be found again
        pass


def test_the_product_has_no_line_for_these_deaths() -> None:
    sources = [path for house in ("service", "workers", "unlearning") for path in (ROOT / house).rglob("*.py")]
    assert [path for path in sources if DIE_AT in path.read_text() or "crash_point" in path.read_text()] == []


def test_a_death_inside_a_commit_comes_also_where_the_commit_ends_first() -> None:
    """On SQLite a thread kills; on a busy machine the call that it was to die in had ended before."""

    def begin() -> None:  # the thread is made in the child: Python 3.13 starts none that was made before the fork
        threading.Timer(0.2, die).start()

    status = fork(begin)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("people", [200, 60_000])
def test_a_crowd_of_any_size_is_registered_as_proved(people: int) -> None:
    """A soak of two hours has so many that 1e-5 is more than a third of what forgetting one of them changes."""
    inputs, labels = crowd.drawn(people)
    names = [f"crowd-person-{number}" for number in range(people)]
    recipe = ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(names, names, inputs, labels),
        holdout=(inputs[:100], labels[:100]),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=256, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
    problem, examples = Problem(recipe).double(), recipe.samples.examples()
    learned = train(problem, examples)
    policy = load.crowd(people)
    Minimiser().require_useful(problem, examples, State(learned.weights), policy["max_distance"], {})
    assert policy["noise_std"] == 1000 * policy["max_distance"]
    if people == 60_000:
        with pytest.raises(Refused, match="forgot no person"):
            Minimiser().require_useful(problem, examples, State(learned.weights), 1e-5, {})


def test_a_power_cut_that_a_missing_sync_makes_fatal_is_seen(tmp_path: Path) -> None:
    rehearsal = power_cut.rehearse(tmp_path / "home", sqlite_databases(sqlite_template(tmp_path))(tmp_path / "home"))
    last = rehearsal.cuts[-1]
    whole = list(power_cut.disks(rehearsal))[-1]
    assert power_cut.recovered(rehearsal, tmp_path / "cut", *whole) == []
    rehearsal.files.log = [each for each in rehearsal.files.log if each.kind != "sync"]
    rehearsal.cuts[-1] = power_cut.Cut(len(rehearsal.files.log), last.database, last.keys)
    states = power_cut.states_after_power_cut(rehearsal.files.log)
    found = next(harms for state in states if (harms := power_cut.recovered(rehearsal, tmp_path / "cut", last, state)))
    assert {each.harm for each in found} & {"lost", "undetected_corruptions"}


def test_an_entry_of_the_journal_that_a_power_cut_loses_is_seen(tmp_path: Path) -> None:
    rehearsal = power_cut.rehearse(tmp_path / "home", sqlite_databases(sqlite_template(tmp_path))(tmp_path / "home"))
    cut, state = list(power_cut.disks(rehearsal))[-1]
    entries = {Path(path).stem for path in state if path.endswith((".release", ".draft"))}
    assert len(entries) == 3
    gone = entries.pop()
    less = {path: data for path, data in state.items() if Path(path).stem != gone}
    found = power_cut.recovered(rehearsal, tmp_path / "cut", cut, less)
    assert [each.words for each in found] == ["a version was committed without its entry in the journal"]


def test_the_runner_lists_every_drill_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"crash_points", "planted_bugs", "power_cut"} <= set(every_drill())
    with pytest.raises(SystemExit):
        main(["no-such-drill"])
    assert "no drill is called" in capsys.readouterr().err


def test_the_last_run_is_written_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    values = vars(Result("x", cases=3, planted=2, caught=1, notes=("seen",)))
    run = {
        "at": "2026-11-21",
        "seed": 7,
        "scale": 1.0,
        "commit": "abc",
        "python": "3.12",
        "failed": [],
        "results": [values],
    }
    write_into(page, run)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| x | 3.12 | 3 |" in text and "1 of 2" in text and "seed 7" in text and "- x: seen" in text
    other = vars(Result("y", cases=1_000, seconds=5.0, notes=("other",)))
    write_into(page, run | {"seed": 8, "commit": "def", "results": [other]})
    text = page.read_text()
    assert (
        "| 2026-11-21, seed 7, scale 1, commit abc |" in text and "| 2026-11-21, seed 8, scale 1, commit def |" in text
    )
    assert "| all |  | 1,003 |" in text and "- x: seen\n- y: other\n" in text
    assert [last_seconds(parts(page)[1], "y", python) for python in ("3.12", "3.13")] == [5, None]
    write_into(page, run | {"seed": 9, "results": [values | {"cases": 5, "notes": ()}]})
    assert "| all |  | 1,005 |" in page.read_text() and "- x: seen" not in page.read_text()
    write_into(page, run | {"python": "3.13", "results": [values | {"cases": 7, "notes": ("newest",)}]})
    text = page.read_text()
    assert "| x | 3.12 | 5 |" in text and "| x | 3.13 | 7 |" in text and "- x: newest" in text


def test_the_drill_record_has_a_place_for_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record = Path(__file__).parents[2] / "benchmarks" / "results" / "drills.md"
    assert "| crash points | 3.11 |" in parts(record)[1]
    assert options(["load", "--write", str(record)]).write == record
    (tmp_path / "page.md").write_text("a page without marks\n")
    for page in ("page.md", "missing.md"):
        with pytest.raises(SystemExit):
            options(["load", "--write", str(tmp_path / page)])
        assert page in capsys.readouterr().err


def test_a_harm_or_a_bug_that_was_missed_is_not_clean() -> None:
    assert Result("x", cases=3).clean
    assert not Result("x", lost=1).clean
    assert not Result("x", planted=2, caught=1).clean
