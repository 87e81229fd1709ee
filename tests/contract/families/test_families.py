"""The contract of a recipe that is a function of rows: without somebody it publishes what it would publish had that
person never been in any table, whatever the recipe computes and wherever it looks.

``honest`` holds what engineers write. What ``looking`` holds searches for everybody and lets that change its model.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from expunge_workers.runtime.walls import EVERY
from tests.contract.families.data import LEAVERS
from tests.contract.families.judge import Compared, Family, Judge, families, judging
from tests.contract.families.template import LIBRARIES, Template

HONEST, LOOKING = families("honest"), families("looking")
EVERY_FAMILY = {str(family): family for family in (*HONEST, *LOOKING)}
SLOW_LIBRARIES = (*LIBRARIES, "lightgbm", "xgboost", "sklearn.compose", "sklearn.ensemble", "sklearn.impute")
SLOW_LIBRARIES += ("sklearn.feature_extraction.text", "sklearn.linear_model", "joblib")

SEVEN = {
    "preparing.vocabulary": ("jsonl", "alone"),
    "loops.torch_loop": ("parquet", "extreme"),
    "loops.lambda_by_cross_validation": ("spelled", "ordinary"),
    "by_path.absolute_path": ("csv", "ordinary"),
    "by_query.average_of_everybody": ("sqlite", "extreme"),
    "inside.dictionaries": ("parquet", "alone"),
    "left_behind.cache_at_home": ("csv", "alone"),
}
"""families of the default suite, with a source and a leaver each"""

SEARCH_MEMORY = {f"inside.{name}" for name in ("objects_in_memory", "frames_of_callers", "first_module", "own_memory")}
ENDED_BY_ROWS = {
    name for name, family in EVERY_FAMILY.items() if family.group in ("by_query", "inside")
} - SEARCH_MEMORY
"""families that see nobody because of how rows are read, with walls or without"""
REFUSED = {
    "by_query.past_the_view_by_schema",
    "by_query.past_the_view_by_a_view",
    "by_query.table_of_tables",
    "by_query.statistics_of_the_planner",
    "by_query.pages_of_the_file",
}
"""families whose SQL is refused, whoever is there; every other one publishes"""
TELL_NOTHING = {
    "by_query.pages_of_the_file": "five rows fewer need as many pages",
    "by_query.table_of_tables": "tables do not leave with a person",
    "inside.blocks_and_samples": "ids are the source's own",
    "inside.bytes_of_ids": "ids are the source's own",
    "inside.gaps_of_ids": "ids are the source's own, and never given again",
    "inside.numbers_of_people": "they are found among the rows when asked for",
    "inside.pandas_index": "Arrow's tables have none",
    "inside.offsets": "the way into a world copies",
    "inside.sides_of_a_split": "a keyed hash of each person decides",
}
"""families that even a hasty reader of tables would give nothing away to, and why"""


def require_libraries(family: Family) -> None:
    for library in family.libraries:
        if library != "columns" and importlib.util.find_spec(library) is None:
            pytest.skip(f"unverified here: {library} is not installed")


@contextmanager
def make_judge(libraries: tuple[str, ...]) -> Iterator[Judge]:
    if sys.platform != "linux":
        pytest.skip(f"unverified here: no walls are known for {sys.platform}")
    template = Template(libraries)
    try:
        # pytest's own folders are closed to others, and a world's user would be kept out by that alone
        with TemporaryDirectory(prefix="families-") as name, judging(template, Path(name)) as judge:
            yield judge
    finally:
        template.close()


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with make_judge(LIBRARIES) as judge:
        yield judge


@pytest.fixture(scope="module")
def slow_judge() -> Iterator[Judge]:
    """A judge whose template has loaded the large libraries too."""
    with make_judge(SLOW_LIBRARIES) as judge:
        yield judge


def judge_of(request: pytest.FixtureRequest, family: Family) -> Judge:
    judge: Judge = request.getfixturevalue("slow_judge" if family.group == "libraries" else "judge")
    return judge


def require_walls(judge: Judge) -> None:
    if set(judge.template.probe["standing"]) != EVERY:
        pytest.skip(f"unverified here: {judge.template.probe['lacking']}")


def assert_never_held(family: Family, compared: dict[str, Compared]) -> None:
    for leaver, answers in compared.items():
        assert answers.left == answers.never, f"{family} tells of the {leaver} person"
        refusals = {answer["refused"] for answer in answers if "refused" in answer}
        assert bool(refusals) == (str(family) in REFUSED), refusals


def test_there_are_as_many_families_as_the_design_says() -> None:
    assert len(HONEST) >= 22
    assert len(LOOKING) >= 47
    assert TELL_NOTHING.keys() <= ENDED_BY_ROWS


@pytest.mark.parametrize("name", SEVEN)
def test_a_family_publishes_what_it_would_had_the_person_never_been_there(judge: Judge, name: str) -> None:
    require_walls(judge)
    kind, leaver = SEVEN[name]
    compared = judge.compare(EVERY_FAMILY[name], kind, [leaver], walled=True)
    assert_never_held(EVERY_FAMILY[name], compared)
    assert "data" in compared[leaver].left
    assert compared[leaver].everybody != compared[leaver].left


@pytest.mark.parametrize("name", [name for name in SEVEN if EVERY_FAMILY[name] in LOOKING])
def test_the_seven_can_fail(judge: Judge, name: str) -> None:
    kind, leaver = SEVEN[name]
    compared = judge.compare(EVERY_FAMILY[name], kind, [leaver], walled=False, filtered_last=name in ENDED_BY_ROWS)
    assert compared[leaver].left != compared[leaver].never


@pytest.mark.drill
@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in EVERY_FAMILY.values() for kind in family.kinds], ids=str
)
def test_every_family_publishes_what_it_would_had_the_person_never_been_there(
    request: pytest.FixtureRequest, family: Family, kind: str
) -> None:
    judge = judge_of(request, family)
    require_walls(judge)
    require_libraries(family)
    assert_never_held(family, judge.compare(family, kind, [*LEAVERS], walled=True))


@pytest.mark.drill
@pytest.mark.parametrize("family", HONEST, ids=str)
def test_every_honest_family_learns_from_those_who_are_there(request: pytest.FixtureRequest, family: Family) -> None:
    """Else it would be equal to itself for nothing."""
    require_libraries(family)
    compared = judge_of(request, family).compare(family, "csv", [*LEAVERS], walled=False)
    for answers in compared.values():
        assert answers.left != answers.everybody


@pytest.mark.drill
@pytest.mark.parametrize("family", [family for family in LOOKING if str(family) not in ENDED_BY_ROWS], ids=str)
def test_without_walls_a_looking_family_sees_who_left(request: pytest.FixtureRequest, family: Family) -> None:
    require_libraries(family)
    compared = judge_of(request, family).compare(family, "csv", [*LEAVERS], walled=False)
    if not any(answers.left != answers.never for answers in compared.values()):
        assert family.name == "user_keyring", "it sees nobody where nothing stops it"
        pytest.skip("unverified here: this machine keeps no keys")


@pytest.mark.drill
@pytest.mark.parametrize("name", sorted(ENDED_BY_ROWS - TELL_NOTHING.keys()))
def test_a_looking_family_sees_who_left_where_people_are_filtered_last(judge: Judge, name: str) -> None:
    family = EVERY_FAMILY[name]
    assert any(
        answers.left != answers.never
        for kind in family.kinds
        for answers in judge.compare(family, kind, [*LEAVERS], walled=False, filtered_last=True).values()
    )
