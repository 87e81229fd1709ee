"""``python -m tests.docs.screenshots`` takes build/screens: every page, on a laptop and a phone, light and dark.

The pictures that the documents show are copied to docs/screens.

``--keep FOLDER`` writes PNGs there as well, for a closer look.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from expunge_service.access.api_keys import Scope
from tests.docs.commands import ROOT
from tests.harness.browser import ENTER, Browser, chromium
from tests.harness.furnished import PRESSED, furnish, show
from tests.harness.stack import Stack, running

PLACE, SHOWN = ROOT / "build" / "screens", ROOT / "docs" / "screens"
FRAMES = {"laptop": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="*", help="names of pages")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, recipes = Path(folder) / "home", Path(folder) / "recipes"
        shutil.copytree(ROOT / "tests" / "stories" / "recipes", recipes)
        shutil.copytree(ROOT / "examples" / "digits", recipes / "digits")
        with running(home, recipes, GRACE="0.5") as stack:
            pages = {"login": "/", **furnish(stack, "digits", "person-{:03d}")}
            names = [name for name in (*pages, *PRESSED) if not arguments.only or name in arguments.only]
            with chromium(Path(folder) / "profile") as browser:
                take(stack, browser, pages, names, arguments.keep)


def take(stack: Stack, browser: Browser, pages: dict[str, str], names: list[str], keep: Path | None) -> None:
    """Write a picture of each page, in each frame and scheme; that of the log-in comes first."""
    PLACE.mkdir(parents=True, exist_ok=True)
    entered = False
    for name in names:
        if name != "login" and not entered:
            log_in(stack, browser)
            entered = True
        if name in PRESSED:  # once: what it does cannot be done again
            show(browser, stack, pages, name)
        for frame, (width, height) in FRAMES.items():
            for scheme in SCHEMES:
                browser.prefers(scheme)
                browser.frame(width, height)
                if name not in PRESSED:
                    show(browser, stack, pages, name)
                full = browser.script("return document.documentElement.scrollHeight")
                file = f"{name}-{frame}-{scheme}"
                browser.picture(PLACE / f"{file}.webp", width, min(full, 3 * height // 2))
                if (shown := SHOWN / f"{file}.webp").exists():
                    shown.write_bytes((PLACE / shown.name).read_bytes())
                if keep is not None:
                    browser.frame(width, min(full, 3 * height))
                    browser.screenshot(keep / f"{file}.png")
        print(name)


def log_in(stack: Stack, browser: Browser) -> None:
    browser.go(stack.account.url + "/")
    browser.click("#key")
    browser.type(stack.key(*Scope) + ENTER)
    browser.shows("Models", "#models")


if __name__ == "__main__":
    main()
