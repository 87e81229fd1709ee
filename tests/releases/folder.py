"""The folder of an installation that one release leaves to all later ones: a model, a deletion, certificate and log.

It lies in ``tests/releases/VERSION``. ``installation.tar.gz`` holds what ``expunge up`` works with, its throwaway
secrets among it, and the recipe. It is packed because git keeps no permissions. The rest can be read as it is.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from expunge_client import NotAuthentic, verify_certificate
from tests.harness.stack import Stack, running

RECIPES = Path(__file__).parents[1] / "stories" / "recipes"
DELETED, NEXT = "tiny-person-3", "tiny-person-4"
"""who was deleted when the folder was written, and who is still in it"""
PACKED = "installation.tar.gz"
WITH_ROWS = """
import json
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("FILE", person="person", id="id")) -> ul.Published:
    model = {"mean": float(rows["a"].mean()), "rows": len(rows)}
    return ul.Published({"model.json": json.dumps(model)})
"""
"""the recipe of an older folder, rewritten"""


def write(folder: Path) -> None:
    """Run this release on a new home, delete one person, and leave the folder."""
    with TemporaryDirectory() as temporary:
        home, recipes = Path(temporary, "home"), Path(temporary, "recipes")
        recipes.mkdir()
        copy_recipe(recipes)
        with running(home, recipes) as stack:
            stack.live("tiny", "newton")
            certificate, log = certified(stack, stack.forgotten(subject_id=DELETED))
            key = (home / "log.vkey").read_text()
        folder.mkdir()
        for name, text in {"certificate.json": certificate, "log.jsonl": log, "log.vkey": key}.items():
            (folder / name).write_text(text)
        pack(home, recipes, folder / PACKED)


def copy_recipe(recipes: Path) -> None:
    """Put the recipe ``tiny`` and its table into the folder."""
    for name in ("tiny.py", "tiny.csv"):
        shutil.copy(RECIPES / name, recipes)


def rewrite(recipes: Path) -> None:
    """Rewrite the recipe of an older folder with rows, on a table of the samples that it computed."""
    (recipes / "tiny.py").write_text(WITH_ROWS.replace("FILE", "tiny.csv"))
    write_table(recipes / "tiny.csv")


def write_table(path: Path, *without: str) -> None:
    """Write the table of the samples that 0.2.0's recipe computed, without those of some people."""
    header, *rows = (RECIPES / "tiny.csv").read_text().splitlines()
    path.write_text("\n".join([header, *(row for row in rows if row.split(",")[1] not in without)]) + "\n")


def certified(stack: Stack, request: dict[str, Any]) -> tuple[str, str]:
    """Wait for the request's certificate, and for the log that it is compared with; return both."""
    path = f"/v1/deletion-requests/{request['id']}/certificate"
    found = stack.eventually(lambda: stack.http.get(path, headers=_authorised(stack)), lambda each: each.is_success)
    key = (stack.home / "log.vkey").read_text()
    return found.text, stack.eventually(lambda: exported(stack), lambda log: _fits(found.text, key, log))


def exported(stack: Stack) -> str:
    """Return the log as ``expunge audit export`` writes it."""
    head = stack.client.text("/v1/audit-log/checkpoint")
    entries = [each for each in stack.client.pages("/v1/audit-log") if each["index"] < int(head.splitlines()[1])]
    return "".join(json.dumps(each) + "\n" for each in [*entries, {"checkpoint": head}])


def pack(home: Path, recipes: Path, file: Path) -> None:
    """Pack an installation that was stopped, without its logs and messages."""
    for database in home.glob("*.db"):
        connection = sqlite3.connect(database)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    with tarfile.open(file, "w:gz") as packed:
        packed.add(home, "home", filter=_without("home/logs", "home/tmp", "home/broker"))
        packed.add(recipes, "recipes", filter=_without("recipes/__pycache__"))


def unpack(folder: Path, where: Path) -> tuple[Path, Path]:
    """Return the home and the recipes of the installation."""
    with tarfile.open(folder / PACKED) as packed:
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)  # None before Python 3.11.4
        packed.extractall(where)
    return where / "home", where / "recipes"


def _without(*names: str) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    return lambda info: None if info.name in names else info


def _authorised(stack: Stack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.account.api_key}"}


def _fits(certificate: str, key: str, log: str) -> bool:
    try:
        return verify_certificate(certificate, key, log=log).claim_in_log
    except NotAuthentic:  # it is in the log a moment later
        return False


if __name__ == "__main__":
    write(Path(sys.argv[1]))
