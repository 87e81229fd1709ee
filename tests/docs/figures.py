"""Print the figures by which a reader can tell how large the house is and how it is written, for any working tree.

``python -m tests.docs.figures [TREE]``. They are for looking: nothing fails by them but a reason without a page.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.docs import plain_english

PACKAGES = ("service", "workers", "unlearning")
PROGRAMS = ("client", "connect", "lab")
MOST_FILES, MOST_LINES = 14, 400
COMMANDS = """
import click, typer
try:
    from service.cli.main import app
except ModuleNotFoundError:
    from expunge_client.cli.main import app
def count(command):
    context = click.Context(command)
    parts = command.list_commands(context) if hasattr(command, "list_commands") else []
    return sum(count(command.get_command(context, name)) for name in parts) if parts else 1
print(count(typer.main.get_command(app)))
"""
"""the module of the command line was another one before the smaller house"""
UNNAMED = re.compile(
    r"\b(?:who|whom|whose|whoever|nobody|somebody|anybody|everybody|everyone|nothing)\b", re.IGNORECASE
)
"""words in place of a noun: a newcomer asks which person, request, version or caller is meant"""
BUILT_IN = {name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)}


def figures(tree: Path) -> dict[str, object]:
    """Return each figure by its name, in the order of the table."""
    return counted(tree) | {f"{name} that one update runs through": value for name, value in reach(tree).items()}


def counted(tree: Path) -> dict[str, object]:
    """Return the figures that reading the source gives, without running an update."""
    sources = [path for package in PACKAGES for path in sorted((tree / package).rglob("*.py"))]
    lines = {path: len(path.read_text().splitlines()) for path in sources}
    classes = [
        each for path in sources for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ClassDef)
    ]
    folders = [path for package in PACKAGES for path in [tree / package, *(tree / package).rglob("*/")]]
    every, documented, verbs = plain_english.share(sources)
    return {
        f"lines of {', '.join(PACKAGES)}": sum(lines.values()),
        "files": len(sources),
        "classes, underscored ones included": len(classes),
        "exceptions": len(exceptions(classes)),
        f"folders with more than {MOST_FILES} files": sum(len([*path.glob("*.py")]) > MOST_FILES for path in folders),
        f"files over {MOST_LINES} lines": sum(count > MOST_LINES for count in lines.values()),
        "functions": every,
        "functions with a docstring": f"{documented / every:.0%}",
        "docstrings that open with a verb": f"{verbs / documented:.0%}",
        "terms in the glossary": len(re.findall(r"^\*\*.+?\*\*", (tree / "docs" / "glossary.md").read_text(), re.M)),
        "reasons": len(codes := reasons(sources)),
        "reasons without a page": len(codes - named(tree)),
        "lines of tests": sum(len(path.read_text().splitlines()) for path in (tree / "tests").rglob("*.py")),
        "lines of client, connect and lab": sum(
            len(path.read_text().splitlines())
            for package in PROGRAMS
            for path in (tree / package).rglob("*.py")
            if "tests" not in path.parts
        ),
        **{f"arrows between the rooms of {package}": len(arrows(tree / package)) for package in ("service", "workers")},
        "commands": commands(tree),
        "modules that import the tables": sum("infra.tables" in path.read_text() for path in sources),
        "options of methods that a policy may set": sum(
            options(each)
            for path in (tree / "unlearning" / "methods").rglob("*.py")
            for each in ast.walk(ast.parse(path.read_text()))
            if isinstance(each, ast.ClassDef) and "Method" in {ast.unparse(base) for base in each.bases}
        ),
        "fields of a policy": fields(tree / "unlearning" / "accounting" / "policy.py", "Policy"),
        "settings": fields(tree / "service" / "infra" / "settings.py", "Settings"),
        **texts(tree, sources),
    }


def texts(tree: Path, sources: Sequence[Path]) -> dict[str, object]:
    """Return how much there is to read, and how often a text does not name its subject."""
    pages, decisions = sorted((tree / "docs").glob("*.md")), sorted((tree / "docs" / "decisions").glob("[0-9]*.md"))
    readme = (tree / "README.md").read_text()
    docstrings = [text for path in sources for _, text in docstrings_of(path)]
    read = [path.read_text() for path in pages]
    return {
        "words of README, docs, decisions and root files": sum(
            len(path.read_text().split()) for path in [*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]
        ),
        "words of pages": sum(len(text.split()) for text in read),
        "pages": len(pages),
        "decisions": len(decisions),
        "links of README": len(re.findall(r"\]\((?!http)", readme)),
        "unnamed subjects per 1,000 words of docstrings": unnamed(docstrings),
        "unnamed subjects per 1,000 words of pages": unnamed(read),
    }


def unnamed(told: Sequence[str]) -> float:
    """Return how many of 1,000 words stand in place of a noun."""
    return round(1000 * sum(len(UNNAMED.findall(text)) for text in told) / sum(len(text.split()) for text in told), 1)


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring of a file, and of each string that stands below an assignment."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def arrows(package: Path) -> set[tuple[str, str]]:
    """Return which room of a package imports which other; a room is a folder or a file directly below the package."""
    found = set()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for name in imported(path):
            parts = name.removeprefix("expunge.").split(".")
            if parts[0] == package.name and len(parts) > 1 and parts[1] != room:
                found.add((room, parts[1]))
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted name of all that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def commands(tree: Path) -> int:
    """Return how many commands ``expunge`` has in this tree, those of the packages beside the product too."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", COMMANDS]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def options(kind: ast.ClassDef) -> int:
    """Return how many fields of a method's class are options of a policy, not only arguments of Python."""
    return sum(
        isinstance(each, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(each.annotation)
        and not re.search("secret|internal|of_policy", ast.unparse(each.value) if each.value else "", re.I)
        for each in kind.body
    )


def fields(path: Path, name: str) -> int:
    """Return how many annotated fields the class of that name has."""
    kinds = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.ClassDef) and each.name == name]
    return sum(isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each) for each in kinds[0].body)


def exceptions(classes: Sequence[ast.ClassDef]) -> set[str]:
    """Return the names of the classes that are exceptions, directly or through one another."""
    bases = [
        (each.name, {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in each.bases})
        for each in classes
    ]
    known: set[str] = set()
    while more := {name for name, above in bases if above & (BUILT_IN | known)} - known:
        known |= more
    return known


def reasons(sources: Sequence[Path]) -> set[str]:
    """Return the codes of the reasons: the members of the enum ``Reason``, or the keys of the table ``REASONS``."""
    codes: set[str] = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name == "Reason":
                values = [each.value for each in node.body if isinstance(each, ast.Assign)]
                firsts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in values]
                codes |= {
                    each.value for each in firsts if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
            elif (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "REASONS"
                and isinstance(node.value, ast.Dict)
            ):
                codes |= {ast.literal_eval(key) for key in node.value.keys if key is not None}
    return codes


def named(tree: Path) -> set[str]:
    """Return every word that a page of docs shows as code; a decision record is not a page for users."""
    pages = [path for path in (tree / "docs").rglob("*.md") if path.parent.name != "decisions"]
    return {word for path in pages for word in re.findall(r"`(\w+)(?::[A-Z]+)?`", path.read_text())}


def reach(tree: Path) -> Mapping[str, str]:
    """Return how many modules and functions one update runs through in this tree, and how deep, by its own script."""
    command = [sys.executable, "-P", "-W", "ignore", str(tree / "benchmarks" / "path_of_an_update.py")]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True
    )
    return dict(re.findall(r"(modules|functions|depth) (\d+)", done.stdout))


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.figures", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "tree", nargs="?", type=Path, default=plain_english.ROOT, help="a working tree; default: this one"
    )
    for name, value in figures(parser.parse_args().tree.resolve()).items():
        print(f"{value!s:>8}  {name}")


if __name__ == "__main__":
    main()
