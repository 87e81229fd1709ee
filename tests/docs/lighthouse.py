"""``python -m tests.docs.lighthouse LIGHTHOUSE`` has Google's Lighthouse judge every page that has an address.

LIGHTHOUSE is its command (``npm install lighthouse``, then node_modules/.bin/lighthouse); it needs Chromium. It prints
a table of scores (0 to 100) and every audit that a page failed. Speed is not judged: the machine is shared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from expunge_service.access.api_keys import Scope
from tests.docs.commands import ROOT
from tests.harness.furnished import furnish
from tests.harness.stack import Stack, running

CATEGORIES = ("accessibility", "best-practices")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, recipes = Path(folder) / "home", Path(folder) / "recipes"
        shutil.copytree(ROOT / "tests" / "stories" / "recipes", recipes)
        with running(home, recipes, GRACE="0.5") as stack:
            pages = {"login": "/", **furnish(stack)}
            cookie = session(stack)
            print("| page |", " | ".join(CATEGORIES), "|")
            for name, path in pages.items():
                report = judge(stack.account.url + path, "" if name == "login" else cookie, Path(folder))
                show(name, report)


def session(stack: Stack) -> str:
    """Log in as a person would; return the cookie."""
    url = stack.account.url
    with httpx.Client(base_url=url, trust_env=False) as http:
        http.post("/console/login", data={"key": stack.key(*Scope)}, headers={"Origin": url})
        return "; ".join(f"{name}={value}" for name, value in http.cookies.items())


def judge(url: str, cookie: str, folder: Path) -> dict[str, Any]:
    """Run Lighthouse on one page; return its report."""
    report = folder / "report.json"
    flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage"
    command = [sys.argv[1], url, "--quiet", "--output=json", f"--output-path={report}", f"--chrome-flags={flags}"]
    command += [f"--only-categories={','.join(CATEGORIES)}"]
    command += ["--ignore-status-code"]  # who has not logged in gets the form with a 401, and one page is an error
    command += [f"--extra-headers={json.dumps({'Cookie': cookie})}"] if cookie else []
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    subprocess.run(command, check=True, env=os.environ | {"CHROME_PATH": chromium}, timeout=300)
    made: dict[str, Any] = json.loads(report.read_text())
    return made


def show(name: str, report: dict[str, Any]) -> None:
    scores = [round(100 * report["categories"][each]["score"]) for each in CATEGORIES]
    print(f"| {name} |", " | ".join(map(str, scores)), "|", report["finalDisplayedUrl"].rpartition("/")[2], flush=True)
    for category in CATEGORIES:
        for reference in report["categories"][category]["auditRefs"]:
            audit = report["audits"][reference["id"]]
            if reference["weight"] and audit["score"] is not None and audit["score"] < 1:
                items = audit.get("details", {}).get("items", [])
                print(f"    {audit['id']}: {audit['title']}: {json.dumps(items)[:600]}", flush=True)


if __name__ == "__main__":
    main()
