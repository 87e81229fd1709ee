"""What a recipe's identity is: code as Python reads it, local imports included, and settings; not layout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from expunge_workers.runtime import recipes
from expunge_workers.runtime.recipes import digest_of

RECIPE = '''"""A recipe of two people."""

import functools

import torch

import unlearning as ul
from parts.layers import width


@functools.lru_cache(maxsize=None)
def model():
    """Build the head."""
    return torch.nn.Linear(width(), 2, bias=False)  # a head


def recipe():
    import tables

    x, y = tables.rows()
    return ul.Recipe(
        model=model,
        samples=ul.Samples(["a", "b"], ["ada", "bob"], x, y),
        holdout=(x, y),
        loss="cross_entropy",
        training=ul.Training(epochs=1, learning_rate=0.5, weight_decay=0.1),
    )
'''
LAYERS = '''"""Widths."""

from . import sizes


def width():
    """Return the width."""
    return sizes.WIDTH
'''
TABLES = "import torch\n\n\ndef rows():\n    return torch.eye(2), torch.tensor([0, 1])\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe with a local package, a local module that a function imports, and a module that nobody imports."""
    (tmp_path / "parts").mkdir()
    files = {
        "mine.py": RECIPE,
        "parts/__init__.py": "",
        "parts/layers.py": LAYERS,
        "parts/sizes.py": "WIDTH = 2\n",
        "tables.py": TABLES,
        "other.py": "NUMBER = 1\n",
        "people.csv": "id,person\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def change(folder: Path, name: str, old: str, new: str) -> str:
    """Return the digest after an edit of a file."""
    file = folder / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return digest_of(folder / "mine.py")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine.py", "  # a head", "  # the head of the model, as agreed in May"),
        ("mine.py", '    """Build the head."""\n', ""),
        ("mine.py", '"""A recipe of two people."""', '"""Another text."""'),
        ("mine.py", "Linear(width(), 2, bias=False)", "Linear(\n        width(),\n        2,\n        bias=(False))"),
        ("mine.py", "epochs=1", "epochs=0x1"),
        ("mine.py", '["a", "b"]', "['a', 'b',]"),
        ("parts/layers.py", '    """Return the width."""\n', '    """Return it."""\n    # as it is\n'),
        ("parts/sizes.py", "WIDTH = 2\n", "\n\nWIDTH = 2  # features\n"),
        ("other.py", "NUMBER = 1", "NUMBER = 2"),
        ("people.csv", "id", "name"),
    ],
    ids=["comment", "no docstring", "docstring", "line breaks", "spelling", "quotes", "import's docstring",
         "import's comment", "nobody's module", "data"],
)  # fmt: skip
def test_what_changes_nothing_keeps_the_digest(folder: Path, name: str, old: str, new: str) -> None:
    before = digest_of(folder / "mine.py")
    assert change(folder, name, old, new) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine.py", "epochs=1", "epochs=2"),
        ("mine.py", "bias=False", "bias=None"),
        ("mine.py", "epochs=1", "epochs=1.0"),
        ("mine.py", "epochs=1", "epochs=True"),
        ("mine.py", "@functools.lru_cache(maxsize=None)\n", ""),
        ("mine.py", "import functools\n", "import functools\nimport math\n"),
        ("mine.py", '["a", "b"]', '["b", "a"]'),
        ("mine.py", '"ada"', 'b"ada"'),
        ("parts/layers.py", "sizes.WIDTH", "-sizes.WIDTH"),
        ("parts/sizes.py", "WIDTH = 2", "WIDTH = 3"),
        ("parts/__init__.py", "", "import torch\n"),
        ("tables.py", "torch.eye(2)", "torch.ones(2, 2)"),
    ],
    ids=["constant", "None", "float", "bool", "decorator", "import", "order", "bytes", "import's code",
         "import of an import", "its package", "import in a function"],
)  # fmt: skip
def test_what_changes_the_code_changes_the_digest(folder: Path, name: str, old: str, new: str) -> None:
    before = digest_of(folder / "mine.py")
    assert change(folder, name, old, new) != before


def test_the_digest_is_that_of_every_supported_python(folder: Path) -> None:
    """Fails where this Python parses into another tree: then no model of an older one could be updated."""
    text = "def f[T](x: T) -> T:\n    return x\n"
    (folder / "golden.py").write_text(
        "import math\n\n\nclass A(dict):\n    def f(self, *a: int, k=None, **b):\n        match a:\n"
        "            case [1, *rest] if rest:\n                return f'{k!r:>{len(a)}} of {{}} {math.pi:.3f}'\n"
        "        try:\n            x = {**b, 'y': -1.5e3j}\n"
        "        except* ValueError as error:\n            raise error\n"
        "        return [z for z in a[1:, ...] if (y := z)] or (lambda: x)\n"
    )
    assert digest_of(folder / "golden.py") == GOLDEN
    (folder / "newer.py").write_text(text)  # valid from Python 3.12 on; counted by its bytes before
    assert digest_of(folder / "newer.py") != digest_of(folder / "golden.py")


GOLDEN = "a1b6a3471f6ecea536baf9c92e3074691f360679145359bfd0f201e10f088db5"


def test_modules_that_import_each_other_end(folder: Path) -> None:
    (folder / "mine.py").write_text("import one\n")
    (folder / "one.py").write_text("import two\n")
    (folder / "two.py").write_text("import one, mine\nN = 1\n")
    before = digest_of(folder / "mine.py")
    assert change(folder, "two.py", "N = 1", "N = 2") != before


def test_a_file_that_is_not_python_counts_by_its_bytes(folder: Path) -> None:
    before = digest_of(folder / "mine.py")
    broken = change(folder, "tables.py", "import torch", "import torch(")
    assert broken != before
    assert change(folder, "tables.py", "import torch(", "import torch((") != broken


def test_a_local_package_is_read_again_when_it_changes(folder: Path) -> None:
    """The digest says that the code changed, so the code that runs must be the changed one."""
    first = recipes.load(folder, "mine", lambda recipe: recipe())
    assert first.model().in_features == 2
    change(folder, "parts/sizes.py", "WIDTH = 2", "WIDTH = 3")
    second = recipes.load(folder, "mine", lambda recipe: recipe())
    assert second.model().in_features == 3


def test_what_was_imported_before_stays(folder: Path) -> None:
    """A recipe beside an installed package of the same folder must not tear it out of the process."""
    before = set(sys.modules)
    recipes.load(folder, "mine", lambda recipe: recipe())
    assert before <= set(sys.modules)
    assert not {"tables", "parts", "parts.layers", "parts.sizes"} & set(sys.modules)
