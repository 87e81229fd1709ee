"""The library that is preloaded into processes whose clock or disk is to be wrong: tests/faults/shim.c."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
THREE_DAYS = 3 * 86_400


@cache
def built() -> Path | None:
    """Return the compiled library, or None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="expunge-shim-")) / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, SOURCE, "-ldl"], check=True)
    return target
