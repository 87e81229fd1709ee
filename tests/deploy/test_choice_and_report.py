"""The parts of the deployment check that need no engine: choice of steps, header's commands, table, JSON and row."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.console import Console

from tests.deploy import report, tables
from tests.deploy.choice import UnknownStep, chosen
from tests.deploy.project import commands_of_header, with_passwords
from tests.deploy.receiver import Received
from tests.deploy.step import Ending, Outcome, Step
from tests.deploy.steps import STEPS, operator

ROOT = Path(__file__).parents[2]
RUN = report.Run(
    "2026-11-29",
    "0a1b2c3d",
    {"engine": "20.10.24"},
    [
        Outcome("up", Ending.KEPT, 31.4, "10 containers run"),
        Outcome("keys", Ending.FAILED, 2.0, "AssertionError: a | b\nand a log"),
        Outcome("graphs", Ending.UNVERIFIED, 0.0, "no image"),
        Outcome("deletions", Ending.LEFT_OUT, 0.0, "it needs keys"),
    ],
    ("--only", "deletions"),
)
PAGE = "# Results\n\n## Deployment\n\nWhat it is.\n\n| old |\n|---|\n| row |\n\n## Next\n\n| other |\n"


def names(*arguments: object) -> list[str]:
    return [step.name for step in chosen(*arguments)]  # type: ignore[arg-type]


def steps() -> list[Step]:
    return [
        Step(name, "A sentence.", 1, lambda check: "", needs)
        for name, needs in {"one": (), "two": ("one",), "three": ("two",), "four": ("one",)}.items()
    ]


def test_a_step_brings_what_it_needs_and_a_skipped_one_goes() -> None:
    assert names(steps(), (), ()) == ["one", "two", "three", "four"]
    assert names(steps(), ("three",), ()) == ["one", "two", "three"]
    assert names(steps(), (), ("four",)) == ["one", "two", "three"]
    with pytest.raises(UnknownStep, match="two cannot be skipped"):
        chosen(steps(), ["three"], ["two"])
    with pytest.raises(UnknownStep, match="no step 'five'"):
        chosen(steps(), ["five"], [])


def test_every_step_needs_steps_that_come_before_it() -> None:
    seen: set[str] = set()
    for step in STEPS:
        assert seen.issuperset(step.needs), step.name
        assert step.name not in seen and step.sentence.endswith(".") and step.seconds > 0
        seen.add(step.name)


def test_the_header_of_the_compose_file_is_a_script_that_stops_before_docker() -> None:
    lines = commands_of_header((ROOT / "docker-compose.yml").read_text())
    assert any("openssl rand" in line for line in lines)
    assert not any(line.startswith("docker") for line in lines)
    assert with_passwords(["export A_PASSWORD=... B=1"], {"A_PASSWORD": "xyz"}) == "export A_PASSWORD=xyz B=1"


def test_the_row_has_a_cell_for_each_heading_and_no_bar_ends_one() -> None:
    line = report.row(RUN)
    assert line.replace("\\|", "").count("|") == len(report.HEADER) + 1
    assert "up" in line and "1 of 4" in line and "keys: AssertionError: a \\| b" in line
    assert "graphs, deletions" in line and "engine 20.10.24" in line and "2026-11-29 | 0a1b2c3d" in line
    assert line.endswith("| `python -m tests.deploy --only deletions` |"), "the command that repeats this run"


def test_the_row_takes_the_place_of_the_last_and_leaves_the_rest_of_the_page() -> None:
    page = report.with_row(PAGE, RUN)
    assert page.startswith("# Results\n\n## Deployment\n\nWhat it is.\n\n| what was run |")
    assert page.endswith("\n\n## Next\n\n| other |\n")
    assert "| old |" not in page and report.row(RUN) in page
    assert report.with_row(page, RUN) == page
    added = report.with_row("# Results\n", RUN)
    assert added.count(report.HEADING) == 1 and added.endswith(f"{report.row(RUN)}\n")


def test_the_table_and_the_json_name_each_step_and_its_ending(tmp_path: Path) -> None:
    screen = Console(width=120, record=True, file=(tmp_path / "screen").open("w"))
    screen.print(report.table(RUN))
    shown = screen.export_text()
    text = report.write(RUN, tmp_path).read_text()
    for outcome in RUN.outcomes:
        assert outcome.step in shown and outcome.ending in shown and f'"{outcome.step}"' in text
    assert "and a log" in text and "and a log" not in shown


def test_the_tables_of_the_own_recipes_are_the_same_each_time(tmp_path: Path) -> None:
    tables.write_recipes(tmp_path)
    first = (tmp_path / "clinic.csv").read_text()
    assert tables.clinic() == first and first.count("\n") == tables.PEOPLE + 1
    assert tables.person(7) in first
    tables.write_lasting(tmp_path, 90)
    assert "lasting-0,0.5,90" in (tmp_path / "lasting.csv").read_text()


def test_the_commands_of_a_page_are_found_without_their_arguments() -> None:
    text = "`expunge backup FILE`\n\n    expunge models show NAME\n\n`expunge --server NAME`, `helm install x`."
    assert operator.named_commands(text) == {"backup", "models show", "--server"}


def test_the_check_runs_each_command_that_the_operators_pages_name() -> None:
    source = ast.parse(Path(operator.__file__).read_text())
    calls = [each for each in ast.walk(source) if isinstance(each, ast.Call) and "expunge" in ast.unparse(each.func)]
    words = [[arg.value for arg in each.args if isinstance(arg, ast.Constant)] for each in calls]
    run = {each[0] for each in words if each} | {" ".join(each[:2]) for each in words if len(each) > 1}
    pages = [(ROOT / "docs" / page).read_text() for page in operator.PAGES]
    named = set().union(*map(operator.named_commands, pages))
    assert len(named) > 25
    assert {each for each in named if each.split()[0] not in operator.ELSEWHERE} <= run | operator.RESTORING


def test_an_alert_rings_until_its_end_is_told() -> None:
    received = Received("http://127.0.0.1:1/")
    for name, status in (("A", "firing"), ("B", "firing"), ("A", "resolved")):
        received.take({"alerts": [{"status": status, "labels": {"alertname": name}}]})
    assert received.ringing() == {"B"}
    assert received.names("firing") == {"A", "B"} and received.names("resolved") == {"A"}
    assert received.names("firing", since=received.told[-1][0] + 1) == set()
