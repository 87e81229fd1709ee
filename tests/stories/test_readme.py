"""What the README tells a newcomer to type, typed word for word."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from tests.harness.stack import Stack

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith(".venv/bin/expunge ")]
CURLS = [text for block in BLOCKS for text in re.findall(r"^curl .*?(?<!\\)$", block, re.DOTALL | re.MULTILINE)]


@pytest.mark.usefixtures("suppressed_for_this_test")
def test_the_commands_of_the_readme_work_in_their_order(stack: Stack, tmp_path: Path) -> None:
    """In a folder with the recipes, as a clone is."""
    (tmp_path / "recipes").symlink_to(stack.settings.recipes)
    environment = stack.environment | {"EXPUNGE_URL": stack.account.url, "EXPUNGE_API_KEY": stack.account.api_key}
    assert len(COMMANDS) >= 5
    for line in COMMANDS:
        command = [sys.executable, "-m", "expunge_client.cli.main", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip()


@pytest.mark.usefixtures("suppressed_for_this_test")
def test_the_curl_lines_of_the_readme_work_in_their_order(stack: Stack) -> None:
    values = {"URL": stack.account.url, "KEY": stack.account.api_key}
    codes = [code_of(line, **values) for line in CURLS]
    assert codes[:2] == [202, 202]
    preparation = stack.prepared("digits")
    assert preparation["status"] == "live", preparation
    assert code_of(CURLS[2], **values) == 200


def code_of(line: str, **values: str) -> int:
    """Do what the curl line says: its headers, its data, its address. ``values`` are those of its variables."""
    plain = line.replace("\\\n", " ").replace("$(uuidgen)", os.urandom(8).hex())
    for name, value in values.items():
        plain = plain.replace(f"${name}", value)
    curl, *words = shlex.split(plain)
    assert curl == "curl"
    headers, data, address = {}, None, ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            data = words.pop(0)
        elif word != "-s":
            address = word
    return httpx.request("POST" if data else "GET", address, content=data, headers=headers).status_code


def test_the_readme_names_the_two_commands_first() -> None:
    first = BLOCKS[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]


def test_the_readmes_first_link_leads_to_what_you_can_have() -> None:
    assert re.findall(r"(?<!!)\[[^]]*\]\(([^)]+)\)", README)[0] == "docs/what-you-can-have.md"


@pytest.mark.parametrize("name", ["idea", "how-it-works", "request", "five"])
def test_each_drawn_picture_is_shown_and_says_in_words_what_it_shows(name: str) -> None:
    folder = Path(__file__).parents[2] / "docs"
    drawn = ElementTree.parse(folder / f"{name}.svg").getroot()
    assert len(drawn.get("aria-label", "")) > 50
    shown = [page for page in folder.glob("*.md") if re.search(rf"!\[[^]]{{50,}}\]\({name}\.svg\)", page.read_text())]
    assert shown


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_what_the_readme_links_to_exists(target: str) -> None:
    assert (Path(__file__).parents[2] / target).exists()
