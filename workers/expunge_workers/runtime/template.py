"""The template, ``python -m expunge_workers.runtime.template FD``: it forks readers of sources, and worlds.

It has loaded the libraries, has a single thread, none of the service's secrets and no row, and never opens the device.
Each message of its worker brings a channel: a reader or a judge answers on it, in a process that ends with it; or a
world is made, and no other is until it has ended.
"""

from __future__ import annotations

import gc
import hashlib
import os
import select
import socket
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from expunge_workers.runtime.kernel import adopt_orphans, collapse_memory, die_with_parent
from expunge_workers.runtime.messages import receive, send
from expunge_workers.runtime.walls import draw, leave_descriptors, probe
from expunge_workers.runtime.work import children_cpu_seconds
from expunge_workers.runtime.world import FULL, Ask, Code, PartInput, Raised, WorldEnded, open_files, open_world, seal

COMPILER = ("torch._dynamo",)
"""what torch.func and torch.optim import at their first call, for a second of CPU: once here, and not in each fork"""

if TYPE_CHECKING:
    from unlearning.rows import OpenSource, Rows, RowUnits


def main(handle: int) -> None:
    """Serve until the worker ends. What recipes and libraries print is thrown away: it may name people."""
    channel = socket.socket(fileno=handle)
    dropped = os.open(os.devnull, os.O_WRONLY)
    os.dup2(dropped, 1)
    os.dup2(dropped, 2)
    adopt_orphans()
    walls = probe()
    import torch  # noqa: PLC0415

    import expunge_workers.runtime.jobs  # noqa: F401, PLC0415
    import unlearning  # noqa: F401, PLC0415

    # pyarrow imports pandas, where it is installed, for the first column that becomes an array: 0.15 s of each part.
    _load(("pandas", "pyarrow.parquet", "pyarrow.compute", "pyarrow.ipc", "pyarrow.pandas_compat"))
    torch.set_deterministic_debug_mode("warn")  # its other name, use_deterministic_algorithms, loads the compiler
    torch.manual_seed(0)  # the first call of a process takes 4 ms; every world seeds its own generators again
    serve(channel, {"standing": sorted(walls.standing), "lacking": [*walls.lacking]})


def serve(channel: socket.socket, walls: Mapping[str, Any]) -> None:
    """Carry out orders until the other end is closed."""
    send(channel, walls)
    while _carry_out_order(channel):
        _wait_for_children()  # here alone: within an order a world is open, which waits for its own


def _carry_out_order(channel: socket.socket) -> bool:
    """Carry out the next order; False where there will be none."""
    order, handles = receive(channel)
    if order is None:
        return False
    with socket.socket(fileno=handles[0]) as line:
        match order["kind"]:
            case "read":
                _fork(handles, partial(_read, line, order, handles[1:]))
            case "judge":
                _load(COMPILER)
                _fork(handles, partial(_judge, line, order["threads"]))
            case "world":
                _make_world(line, order, channel)
        for handle in handles[1:]:
            os.close(handle)
    return True


def _wait_for_children() -> None:
    """Let readers, judges and orphans of worlds that ended go."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _load(modules: Sequence[str]) -> None:
    """Import libraries once for all forks. None of them is a recipe's."""
    lacking = [module for module in modules if module not in sys.modules]
    for module in lacking:
        with suppress(Exception):
            __import__(module)
    if COMPILER[0] in lacking:
        import torch  # noqa: PLC0415

        torch.use_deterministic_algorithms(True, warn_only=True)  # for what the compiler makes, too
    if any(module in sys.modules for module in lacking):
        _settle()


def _settle() -> None:
    """Leave what is loaded out of collections of garbage, and map it by large pages: a world takes four forks or
    more, of a quarter of a gigabyte.
    """
    gc.freeze()
    collapse_memory()


def _fork(handles: Sequence[int], task: Callable[[], None]) -> None:
    """Carry out a task in a process that has these descriptors alone: a part ends when nobody holds its channel."""
    if os.fork() == 0:
        die_with_parent()
        with suppress(BaseException):
            leave_descriptors(handles)
            task()
        os._exit(0)


@dataclass(frozen=True)
class _Opened:
    """A source that was read, what leaves it as one, and the share of its people who are kept apart."""

    reading: OpenSource
    units: RowUnits
    salt: bytes
    handed: list[Rows] = field(default_factory=list)
    """the rows that were handed over last, where a function is mapped over their blocks"""


def _read(line: socket.socket, order: Mapping[str, Any], handles: Sequence[int]) -> None:
    """Tell who is in the sources, and hand over rows of those who are named, until the other end is closed.

    ``handles``: what functions of the recipe gave of their sources.
    """
    from unlearning.types import RecipeError  # noqa: PLC0415

    tables = open_files(order["tables"], handles)
    opened: dict[str, _Opened] = {}
    words: Mapping[str, Any] | None = {"kind": "survey"}
    while words is not None:
        try:
            if words["kind"] == "survey":
                opened = _open_sources(order, tables)
                reply = {name: source.units.people.values for name, source in opened.items()}
                files = [seal(_survey(source)) for source in opened.values()]
            elif words["kind"] == "rows":
                reply, files = _hand_over(opened, words, order["most"], Path(order["spool"]))
            else:
                reply, files = _hand_over_blocks(opened[words["source"]], words["numbers"])
            send(line, reply, files)
            for file in files:
                os.close(file)
        except RecipeError as error:
            send(line, {"refused": [error.what, error.hint]})
        except MemoryError:
            send(line, {"passing": "there is too little memory to read the sources"})
        except Exception as error:  # its text may name a person
            full = FULL.get(getattr(error, "errno", 0))
            broken = {"broken": f"{type(error).__name__} while the sources were read"}
            send(line, broken if full is None else {"raised": [full, None, None, None, None]})
        words, _ = receive(line)


def _open_sources(order: Mapping[str, Any], tables: Mapping[str, memoryview]) -> dict[str, _Opened]:
    from unlearning.rows import read_source, source_from_json  # noqa: PLC0415

    until = None if order["until"] is None else datetime.fromisoformat(order["until"])
    opened = {}
    for name, record in order["sources"].items():
        source, root = source_from_json(record), Path(order["roots"][name])
        reading = read_source(source, root, databases=order["databases"], until=until, table=tables.get(name))
        opened[name] = _Opened(reading, reading.units(name), bytes.fromhex(order["salt"]))
    return opened


def _survey(opened: _Opened) -> bytes:
    """Return, as tensors, of each unit of a source its people, id, digest, count of rows, and whether it is kept apart.

    People are numbers here.
    """
    from safetensors.numpy import save  # noqa: PLC0415

    from unlearning.rows import is_aside  # noqa: PLC0415

    units, share = opened.units, opened.reading.source.aside
    apart = units.people.where(lambda people: is_aside(people, share, opened.salt, "aside"))
    return save(
        {
            "people": units.people.codes.numpy(),
            "ids": units.ids.data,
            "ends": units.ids.ends,
            "digests": units.digests,
            "counts": units.counts,
            "aside": apart.numpy(),
        }
    )


def _hand_over(
    opened: Mapping[str, _Opened], words: Mapping[str, Any], most: int, spool: Path
) -> tuple[dict[str, Any], list[int]]:
    """Return a sealed file with the rows of the named units of each source, and the SHA-256 of each.

    Of the sources under ``mapped`` also a digest of each block. Arrays of the sources under ``spooled`` are in files on
    disk, which follow.
    """
    import numpy as np  # noqa: PLC0415

    from unlearning.rows import is_larger  # noqa: PLC0415

    digests, handles, blocks, spooled = {}, [], {}, dict[str, int]()
    for name, numbers in words["units"].items():
        source, staying = opened[name], np.array(numbers, dtype=np.int64)
        if name in words["mapped"]:
            rows, blocks[name] = source.reading.rows_and_blocks(source.units, staying, source.salt)
            source.handed[:] = [rows]
        else:
            rows = source.reading.rows(source.units, staying, source.salt)
        with _on_disk(spool) if is_larger(rows, most) else nullcontext() as disk:
            handle, digests[name] = _sealed(rows, most, disk)
            if disk is not None:  # for reading alone
                spooled[name] = os.open(f"/proc/self/fd/{disk.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        handles.append(handle)
    return {"sha256": digests, "blocks": blocks, "spooled": [*spooled]}, [*handles, *spooled.values()]


def _on_disk(folder: Path) -> IO[bytes]:
    """Return a new file without a name in this folder, which is made. Raises RecipeError where it cannot be."""
    from unlearning.types import RecipeError  # noqa: PLC0415

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        what = f"The rows take more than EXPUNGE_SAMPLE_BYTES, and {folder} cannot be written: {error.strerror}."
        raise RecipeError(what, "Let the worker write there, on a disk with the space, or raise it.") from None


def _hand_over_blocks(opened: _Opened, numbers: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Return a sealed file with each of these blocks of the rows that were handed over last."""
    (rows,) = opened.handed
    blocks = [*rows.blocks_at(numbers)]
    sealed = [_sealed(block) for block in blocks]
    return {"sha256": [sha256 for _, sha256 in sealed]}, [handle for handle, _ in sealed]


def _sealed(rows: Rows, most: int | None = None, disk: IO[bytes] | None = None) -> tuple[int, str]:
    """Return a sealed file of the rows and its SHA-256, but for the key of arrays that are on ``disk``.

    ``most``: bytes that they may take, with files of a folder.
    """
    from unlearning.rows import write_rows  # noqa: PLC0415

    handle = os.memfd_create("rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(handle), "w+b") as file:
        end = write_rows(rows, file, most, disk)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(end)
    return seal(handle), digest


def _judge(line: socket.socket, threads: int) -> None:
    """Compute with linear heads as each order asks, until the other end is closed. No code of a recipe is here."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save  # noqa: PLC0415

    from expunge_workers.runtime.model_tasks import Judge  # noqa: PLC0415
    from unlearning.types import RecipeError  # noqa: PLC0415

    torch.set_num_threads(threads)
    judge = Judge()
    words, handles = receive(line)
    while words is not None:
        before, reply, answer = time.process_time(), dict[str, Any](), list[int]()
        try:
            torch.manual_seed(words["seed"])
            facts, tensors = judge(open_files(words["files"], handles), words["order"])
            answer = [seal(save(tensors))]
            reply = {"facts": facts, "score": None}
        except RecipeError as error:
            reply = {"refused": [error.what, error.hint]}
        except MemoryError:
            reply = {"passing": "there is too little memory to compute"}
        except Exception as error:  # its text may repeat what a recipe answered
            reply = {"broken": f"{type(error).__name__} while a linear head was computed with"}
        send(line, reply | {"cpu": time.process_time() - before}, answer)
        for handle in answer:
            os.close(handle)
        words, handles = receive(line)


def _make_world(line: socket.socket, order: Mapping[str, Any], channel: socket.socket) -> None:
    """Make a world, and have its parts carried out as they are asked for; tell the other end what became of each."""
    from expunge_workers.runtime.jobs import JOBS  # noqa: PLC0415

    before = children_cpu_seconds()
    _load(order["libraries"])
    files = {name: b64decode(text) for name, text in order["files"].items()}
    walls = draw(frozenset(order["standing"]), more=order["opened"], closed=order["closed"])
    limits = {"seconds": order["seconds"], "threads": order["threads"], "caller": channel}
    reply: dict[str, Any] = {}
    try:
        with open_world(Code(order["module"], files), JOBS[order["job"]], order["count"], walls, **limits) as ask:
            while _carry_out_part(line, ask, channel):
                pass
    except Raised as error:
        reply = {"raised": [error.error, error.path, error.file, error.line, error.advice]}
    except TimeoutError:
        reply = {"late": True}
    except (WorldEnded, OSError) as error:
        reply = {"ended": str(error)}
    except Exception as error:  # the template goes on; its text may repeat what a recipe answered
        reply = {"broken": f"{type(error).__name__} while a world was asked"}
    with suppress(BrokenPipeError):
        send(line, reply | {"cpu": children_cpu_seconds() - before})


def _carry_out_part(line: socket.socket, ask: Ask, channel: socket.socket) -> bool:
    """Have one part carried out; False where no further one is asked for.

    A reader or a judge may be ordered on ``channel`` before.
    """
    while line not in select.select([line, channel], [], [])[0]:
        if not _carry_out_order(channel):
            return False
    words, handles = receive(line)
    if words is None or "order" not in words:
        return False
    given = dict(zip([*words["files"], *words["aside"]], handles, strict=True))
    files, aside = ({name: given[name] for name in words[kind]} for kind in ("files", "aside"))
    answer = ask(PartInput(files, words["order"], aside if words["scored"] else None, words["seed"]))
    data = seal(answer.data)
    send(line, {"facts": answer.facts, "score": answer.score, "cpu": answer.cpu_seconds}, [data])
    for handle in (data, *handles):
        os.close(handle)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
