"""Each method's page: its options, the guarantees that it may claim, and what its paper measured."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from expunge_client.cli.commands.models import METHOD_OPTIONS
from unlearning.accounting.certificate import Guarantee
from unlearning.methods import NAMES, OWN, load

ROOT = Path(__file__).parents[2]
PUBLISHED = ("mini", "newton", "recollection", "rewind", "safe")


def page(name: str) -> str:
    return (ROOT / "docs" / "methods" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_every_option(name: str) -> None:
    method = load(name)
    text = page(name)
    offered = [field.name for field in fields(method) if not field.metadata]
    assert not [name for name in offered if f"`{name}`" not in text]


def test_the_command_s_help_names_the_options_that_the_pages_show_first() -> None:
    shown = {}
    for name in OWN:
        section = page(name).partition("## Options\n")[2].partition("\n##")[0]
        shown[name] = re.findall(r"^\| `(\w+)` \|", section, re.M)
    said = dict(re.findall(r"(\w+): ([a-z_, ]+)\.", METHOD_OPTIONS))
    assert {name: ", ".join(options) for name, options in shown.items() if options} == said


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_page_says_what_the_paper_measured_and_in_which_table(name: str) -> None:
    _, heading, section = page(name).partition("## What the paper measured")
    assert heading
    assert re.search(r"\btables? \d", section.partition("\n## ")[0])


@pytest.mark.parametrize("name", [name for name in NAMES if load(name)().bound(Guarantee.ESTIMATED) is not None])
def test_a_page_says_that_the_method_may_claim_estimates(name: str) -> None:
    assert "`estimated`" in page(name) or "--guarantee estimated" in page(name)


def test_recollection_reads_the_retained_samples_where_it_is_proved() -> None:
    [line] = [line for line in page("recollection").splitlines() if line.startswith("| converged |")]
    assert "every retained sample" in line


def test_no_page_says_that_a_paper_could_not_be_read() -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "unlearning").rglob("*.py")]
    assert not [source for source in sources if "could not be read" in " ".join(source.read_text().split())]
