"""The template, ``python -m expunge.workers.runtime.template FD``: it forks readers of sources, and worlds.

It has loaded the libraries, has a single thread, none of the service's secrets and no row, and never opens the device.
Each message of its worker brings a channel: a reader answers on it, in a process that ends with it; or a world is made,
and nothing else is done meanwhile.
"""

from __future__ import annotations

import gc
import hashlib
import os
import socket
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expunge.workers.runtime.confined import adopt_orphans
from expunge.workers.runtime.kernel import die_with_parent
from expunge.workers.runtime.messages import receive, send
from expunge.workers.runtime.walls import draw, probe
from expunge.workers.runtime.work import children_cpu_seconds
from expunge.workers.runtime.world import Ask, Code, PartInput, Raised, WorldEnded, open_world, seal

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
    # Loaded once, before the forks; torch.optim loads torch._dynamo at its first step, which takes two seconds.
    import torch._dynamo  # noqa: PLC0415

    import expunge.workers.runtime.jobs  # noqa: F401, PLC0415
    import unlearning  # noqa: F401, PLC0415

    # pyarrow imports pandas, where it is installed, for the first column that becomes an array: 0.15 s of each part.
    for module in ("pandas", "pyarrow.parquet", "pyarrow.compute", "pyarrow.ipc", "pyarrow.pandas_compat"):
        with suppress(ImportError):
            __import__(module)
    torch.use_deterministic_algorithms(True, warn_only=True)
    gc.freeze()
    serve(channel, {"standing": sorted(walls.standing), "lacking": [*walls.lacking]})


def serve(channel: socket.socket, walls: Mapping[str, Any]) -> None:
    """Carry out orders until the other end is closed."""
    send(channel, walls)
    while True:
        order, handles = receive(channel)
        _wait_for_readers()
        if order is None:
            return
        with socket.socket(fileno=handles[0]) as line:
            if order["kind"] == "read":
                if os.fork() == 0:
                    _end_in(partial(_read, line, order))
            elif order["kind"] == "world":
                _make_world(line, order)


def _wait_for_readers() -> None:
    """Let readers that ended go."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _load(modules: Sequence[str]) -> None:
    """Import libraries once for all worlds. None of them is a recipe's."""
    for module in modules:
        with suppress(Exception):
            __import__(module)


def _end_in(task: Any) -> None:
    die_with_parent()
    with suppress(BaseException):
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


def _read(line: socket.socket, order: Mapping[str, Any]) -> None:
    """Tell who is in the sources, and hand over rows of those who are named, until the other end is closed."""
    from unlearning.types import RecipeError  # noqa: PLC0415

    opened: dict[str, _Opened] = {}
    words: Mapping[str, Any] | None = {"kind": "survey"}
    while words is not None:
        try:
            if words["kind"] == "survey":
                opened = _open_sources(order)
                handles: list[int] = []
                reply = {name: _survey(source) for name, source in opened.items()}
            elif words["kind"] == "rows":
                reply, handles = _hand_over(opened, words, order["most"])
            else:
                reply, handles = _hand_over_blocks(opened[words["source"]], words["numbers"])
            send(line, reply, handles)
            for handle in handles:
                os.close(handle)
        except RecipeError as error:
            send(line, {"refused": [error.what, error.hint]})
        except MemoryError:
            send(line, {"passing": "there is too little memory to read the sources"})
        except Exception as error:  # its text may name a person
            send(line, {"broken": f"{type(error).__name__} while the sources were read"})
        words, _ = receive(line)


def _open_sources(order: Mapping[str, Any]) -> dict[str, _Opened]:
    from unlearning.rows import read_source, source_from_json  # noqa: PLC0415

    until = None if order["until"] is None else datetime.fromisoformat(order["until"])
    opened = {}
    for name, record in order["sources"].items():
        source, root = source_from_json(record), Path(order["roots"][name])
        reading = read_source(source, root, databases=order["databases"], until=until)
        opened[name] = _Opened(reading, reading.units(name), bytes.fromhex(order["salt"]))
    return opened


def _survey(opened: _Opened) -> dict[str, Any]:
    """Return who is in a source: for each unit its people, id, digest, count of rows, and whether it is kept apart."""
    from unlearning.rows import is_aside  # noqa: PLC0415

    units, share = opened.units, opened.reading.source.aside
    apart = units.people.where(lambda people: is_aside(people, share, opened.salt, "aside"))
    return {
        "people": units.people.values,
        "codes": units.people.codes.tolist(),
        "ids": [*units.ids],
        "digests": units.digests.tobytes().hex(),
        "counts": units.counts.tolist(),
        "aside": apart.tolist(),
    }


def _hand_over(opened: Mapping[str, _Opened], words: Mapping[str, Any], most: int) -> tuple[dict[str, Any], list[int]]:
    """Return a sealed file with the rows of the named units of each source, and the SHA-256 of each.

    Of the sources under ``mapped`` also a digest of each block.
    """
    import numpy as np  # noqa: PLC0415

    digests, handles, blocks = {}, [], {}
    for name, numbers in words["units"].items():
        source, staying = opened[name], np.array(numbers, dtype=np.int64)
        if name in words["mapped"]:
            rows, blocks[name] = source.reading.rows_and_blocks(source.units, staying, source.salt)
            source.handed[:] = [rows]
        else:
            rows = source.reading.rows(source.units, staying, source.salt)
        handle, digests[name] = _sealed(rows, most)
        handles.append(handle)
    return {"sha256": digests, "blocks": blocks}, handles


def _hand_over_blocks(opened: _Opened, numbers: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Return a sealed file with each of these blocks of the rows that were handed over last."""
    (rows,) = opened.handed
    blocks = [*rows.blocks_at(numbers)]
    sealed = [_sealed(block, None) for block in blocks]
    return {"sha256": [sha256 for _, sha256 in sealed]}, [handle for handle, _ in sealed]


def _sealed(rows: Rows, most: int | None) -> tuple[int, str]:
    """Return a sealed file of the rows and its SHA-256; ``most``: bytes that files of a folder may take."""
    from unlearning.rows import rows_to_bytes  # noqa: PLC0415

    data = memoryview(rows_to_bytes(rows, most))
    return seal(data), hashlib.sha256(data).hexdigest()


def _make_world(line: socket.socket, order: Mapping[str, Any]) -> None:
    """Make a world, and have its parts carried out as they are asked for; tell the other end what became of each."""
    from expunge.workers.runtime.jobs import JOBS  # noqa: PLC0415

    before = children_cpu_seconds()
    _load(order["libraries"])
    files = {name: b64decode(text) for name, text in order["files"].items()}
    walls = draw(frozenset(order["standing"]), more=order["opened"], closed=order["closed"])
    limits = {"seconds": order["seconds"], "threads": order["threads"]}
    reply: dict[str, Any] = {}
    try:
        with open_world(Code(order["module"], files), JOBS[order["job"]], order["count"], walls, **limits) as ask:
            while _carry_out(line, ask):
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


def _carry_out(line: socket.socket, ask: Ask) -> bool:
    """Have one part carried out; False where no further one is asked for."""
    words, handles = receive(line)
    if words is None or "order" not in words:
        return False
    given = dict(zip([*words["files"], *words["aside"]], handles, strict=True))
    files, aside = ({name: given[name] for name in words[kind]} for kind in ("files", "aside"))
    answer = ask(PartInput(files, words["order"], aside, words["seed"]))
    data = seal(answer.data)
    send(line, {"facts": answer.facts, "score": answer.score, "cpu": answer.cpu_seconds}, [data])
    for handle in (data, *handles):
        os.close(handle)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
