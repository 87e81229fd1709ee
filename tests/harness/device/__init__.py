"""The pretend device: built once with torch's own headers, kept by torch's version and the source's digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

HERE = Path(__file__).parent
KEPT = Path.home() / ".cache" / "expunge-tests"
MODULE, LIBRARY = "pretend_device", "pretend.so"
NAME = "pretend"
ENTRY_POINT = f"[torch.backends]\n{NAME} = {MODULE}:open_library\n"
"""torch loads it by itself in every process that finds it on its path"""


@cache
def folder() -> Path | None:
    """Return the folder to put on a process's path, built where it is not there; None without a compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    source = (HERE / "pretend.cpp").read_bytes() + (HERE / f"{MODULE}.py").read_bytes()
    whole = KEPT / f"device-{torch.__version__}-{hashlib.sha256(source).hexdigest()[:16]}"
    if not whole.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=KEPT))
        _build(compiler, made)
        try:
            made.rename(whole)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return whole


def on_device(**variables: str) -> Mapping[str, str]:
    """Return the environment of a process that has the device."""
    path = os.pathsep.join(filter(None, (str(folder()), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def _build(compiler: str, into: Path) -> None:
    abi = int(torch.compiled_with_cxx11_abi())
    libraries = Path(torch.__file__).parent / "lib"
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-std=c++20", "-O1", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
            *(f"-I{each}" for each in include_paths()),
            *(str(HERE / "pretend.cpp"), "-o", str(into / LIBRARY)),
            *(f"-L{libraries}", "-lc10", "-ltorch_cpu"),
        ],
        check=True,
    )
    shutil.copy(HERE / f"{MODULE}.py", into)
    about = into / f"{MODULE}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRY_POINT)
