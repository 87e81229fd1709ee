"""The lint for plain English: the first word of docstrings, banned words, and the length of sentences.

``python -m tests.docs.plain_english service/requests`` checks a folder or a file; without a path it checks the folders
that are listed as clean. ``--count`` prints the share of docstrings that open with a verb.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LONGEST_SENTENCE = 35
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule. A warning does not fail the lint."""

    path: Path
    line: int
    what: str
    warning: bool = False

    def __str__(self) -> str:
        where = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{where}:{self.line}: {'warning: ' if self.warning else ''}{self.what}"


def _lists() -> tuple[frozenset[str], frozenset[str], list[tuple[re.Pattern[str], str]]]:
    """Read the two text files: the verbs, those of them that are nouns as well, and the banned words."""
    verbs, nouns = (HERE / "verbs.txt").read_text().split("# noun\n")
    words = [frozenset(re.sub(r"#.*", "", part).split()) for part in (verbs, nouns)]
    lines = re.findall(r"^([^#\n]+?) = (.+)$", (HERE / "banned.txt").read_text(), re.M)
    return words[0], words[1], [(re.compile(rf"(?<![\w.-])(?:{word})(?![\w-])", re.I), use) for word, use in lines]


VERBS, ALSO_NOUNS, BANNED = _lists()
OBJECT = re.compile(
    r"(?:an?|the|this|these|those|it|them|itself|each|every|all|any|both|no|one|two|three|its|their|our|your|what|whether"
    r"|how|why|if|not|nothing|everything|everyone|anything|another|more|some|several|up|out|off|down|``.*|`.*|[(A-Z].*)$"
)
"""the word that may follow a verb that is also a noun: it opens an object or belongs to the verb ("Look up")"""
WITHOUT_OBJECT = re.compile(r"(?:back|call|check|fall|go|look|process|read|run|search|start|stop|try|wait)$")
PREPOSITION = re.compile(r"(?:after|at|back|before|for|from|in|into|on|over|through|to|until|with|without)$")
WITH_CLAUSE = re.compile(r"(?:check|claim|note|record|report|show)$")
CLAUSE = re.compile(r"(?:that|which|who|where|when)$")


def opens_with_a_verb(docstring: str) -> bool:
    """Return whether the first word is a verb in the imperative.

    A word that is a noun as well needs an object after it: "Count the rows" has one, "Count of rows" has none.
    """
    first, _, rest = docstring.strip().partition(" ")
    verb, following = first.rstrip(".,:;").lower(), rest.split(maxsplit=1)
    if verb not in VERBS or not first[0].isupper():
        return False
    if verb not in ALSO_NOUNS:
        return True
    if not following or not first.isalpha():
        return False
    if following[0] in {"and", "or"}:
        return opens_with_a_verb(following[-1].capitalize())
    if PREPOSITION.match(following[0]):
        return WITHOUT_OBJECT.match(verb) is not None
    if CLAUSE.match(following[0]):
        return WITH_CLAUSE.match(verb) is not None
    return OBJECT.match(following[0].rstrip(".,:;")) is not None


def functions(tree: ast.AST) -> Iterator[tuple[Function, str | None]]:
    """Yield every function and method with its docstring; a test and an overload are left out."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("test_"):
            yield node, ast.get_docstring(node)


def texts(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each string with a space in it (docstrings are such strings) and of each comment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned(path: Path, line: int, text: str) -> Iterator[Finding]:
    """Yield a finding for each banned word of a text that begins at this line."""
    prose = re.sub(r"``.*?``", lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.DOTALL)
    for pattern, use in BANNED:
        for found in pattern.finditer(prose):
            at = line + prose.count("\n", 0, found.start())
            yield Finding(path, at, f'"{found[0]}": write {use}')


def long_sentences(path: Path, line: int, text: str) -> Iterator[Finding]:
    """Yield a warning for each sentence of a docstring with more than ``LONGEST_SENTENCE`` words."""
    for sentence in re.split(r"(?<=[.:;?!])\s+|\n\s*\n|\n\s+(?=[-*|\w]+:)", text):
        count = len(sentence.split())
        if count > LONGEST_SENTENCE:
            yield Finding(path, line, f'{count} words in one sentence: "{" ".join(sentence.split()[:6])} ..."', True)


def check_python(path: Path) -> Iterator[Finding]:
    """Yield what is wrong in a Python file."""
    source = path.read_text()
    tree = ast.parse(source)
    for function, docstring in functions(tree):
        if docstring and not opens_with_a_verb(docstring):
            first = " ".join(docstring.split()[:4])
            yield Finding(path, function.body[0].lineno, f'{function.name}: "{first} ..." does not open with a verb')
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and (docstring := ast.get_docstring(node)):
            yield from long_sentences(path, node.body[0].lineno, docstring)
    for line, text in texts(source, tree):
        yield from banned(path, line, text)


def check_template(path: Path) -> Iterator[Finding]:
    """Yield the banned words that a page shows: markup, scripts and expressions are left out."""
    blank = re.compile(r"\{[{%#].*?[}%#]\}|<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
    shown = blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), path.read_text())
    yield from banned(path, 1, shown)


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the Python files and templates at or below these paths, sorted."""
    found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))}
    return sorted(file for file in found if file.suffix in {".py", ".html"})


def check(paths: Sequence[Path]) -> list[Finding]:
    """Return what is wrong in these files and folders, in their order."""
    rules = {".py": check_python, ".html": check_template}
    return [
        finding for file in files(paths) for finding in sorted(rules[file.suffix](file), key=lambda each: each.line)
    ]


def share(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Count the functions of these files, those with a docstring, and those whose docstring opens with a verb."""
    every = [
        docstring
        for file in files(paths)
        if file.suffix == ".py"
        for _, docstring in functions(ast.parse(file.read_text()))
    ]
    documented = [docstring for docstring in every if docstring]
    return len(every), len(documented), sum(map(opens_with_a_verb, documented))


def clean_rooms() -> list[Path]:
    """Return the folders and files that are listed as clean."""
    return [ROOT / line for line in (HERE / "clean_rooms.txt").read_text().split("\n") if line and line[0] != "#"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong and return the exit status: 1 where something other than a warning was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.plain_english", description=__doc__.split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; default: those in clean_rooms.txt")
    parser.add_argument("--count", action="store_true", help="print how many docstrings open with a verb, and no more")
    chosen = parser.parse_args(arguments)
    paths = [path.resolve() for path in chosen.paths] or clean_rooms()
    if chosen.count:
        every, documented, verbs = share(paths)
        print(f"{every} functions, {documented} with a docstring, {verbs} of them open with a verb")
        return 0
    found = check(paths)
    print(*found, sep="\n", end="\n" if found else "")
    return int(any(not finding.warning for finding in found))


if __name__ == "__main__":
    sys.exit(main())
