"""The fenced blocks of commands in README and docs, and which test runs each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
RUNNERS = {
    "README.md": "tests/stories/test_readme.py",
    "docs/tutorial.md": "tests/stories/test_docs.py",
    "docs/recipes.md": "tests/stories/test_docs.py",
}
"""the test that runs every block of a page, make targets aside"""


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    @property
    def runner(self) -> str | None:
        return RUNNERS.get(str(self.page.relative_to(ROOT)))

    def commands(self) -> list[str]:
        """Its commands: lines joined where they go on, here-documents whole, remarks left out."""
        found, end = [], ""
        for line in self.text.splitlines():
            if end or (found and found[-1].endswith("\\")):
                found[-1] += "\n" + line
                end = "" if line == end else end
                continue
            if line.strip() and not line.startswith("#"):
                found.append(line)
                here = re.search(r"<<'?(\w+)'?", line)
                end = here[1] if here else ""
        return found


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's fenced blocks of these languages, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(page, language, text) for language, text in found if language in languages]


BLOCKS = [block for page in PAGES for block in blocks(page, "sh", "bash", "console", "shell")]
