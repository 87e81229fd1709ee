"""Each method's section in docs/methods.md: its options, its guarantees, and its paper."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from expunge_client.cli.commands.models import METHOD_OPTIONS
from unlearning.accounting.certificate import Guarantee
from unlearning.methods import NAMES, OWN, load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text()
PUBLISHED = ("cns", "mini", "newton", "recollection", "rewind", "safe")


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


SIDE_BY_SIDE = {
    line.split("|")[1].strip(" `"): line for line in section("Side by side").splitlines() if line.startswith("| `")
}


@pytest.mark.parametrize("name", NAMES)
def test_a_section_names_every_option_of_its_method(name: str) -> None:
    offered = [field.name for field in fields(load(name)) if not field.metadata]
    assert not [option for option in offered if f"`{option}`" not in section(name)]


@pytest.mark.parametrize("name", OWN)
def test_an_option_that_the_page_lists_is_one_of_the_method(name: str) -> None:
    first_cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]+\|", section(name), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert set(listed) <= {field.name for field in fields(load(name)) if not field.metadata}


def test_the_command_s_help_names_the_options_that_the_page_shows_first() -> None:
    shown = {}
    for name in OWN:
        first = section(name).partition("### Options\n\n")[2].partition("\n\n")[0]
        shown[name] = re.findall(r"^\| `(\w+)` \|", first, re.M)
    said = dict(re.findall(r"(\w+): ([a-z_, ]+)\.", METHOD_OPTIONS))
    assert {name: ", ".join(options) for name, options in shown.items() if options} == said


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_section_says_what_the_paper_measured_and_in_which_table(name: str) -> None:
    _, measured, told = section(name).partition("**The paper measured**")
    assert measured and re.search(r"\btables? \d", told, re.I)
    assert re.search(r"\[arXiv \d{4}\.\d{5}\]\(https://arxiv.org/abs/", section(name))


@pytest.mark.parametrize("name", OWN)
def test_the_table_says_who_may_claim_estimates(name: str) -> None:
    may = load(name)().bound(Guarantee.ESTIMATED) is not None
    assert ("`estimated`" in SIDE_BY_SIDE[name]) == may


def test_recollection_reads_the_retained_samples_where_it_is_proved() -> None:
    [line] = [line for line in section("recollection").splitlines() if line.startswith("| converged |")]
    assert "every retained sample" in line


def test_no_page_says_that_a_paper_could_not_be_read() -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "unlearning").rglob("*.py")]
    assert not [source for source in sources if "could not be read" in " ".join(source.read_text().split())]
