"""What functions give for the rows of a part: each block of one person's rows in a world of these alone, made once.

All is made before the part gets its rows: a part can ask for nothing. What lies kept of a person is destroyed with the
version without that person, as every part is whose key nothing used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from expunge_workers.runtime.drain import look_on
from expunge_workers.runtime.jobs import BLOCK, ROWS
from expunge_workers.runtime.rows_recipe import RowsRecipe
from expunge_workers.runtime.world import seal
from expunge_workers.runtime.worlds import PartOrder, SealedArray, SealedRows, SourceReader, make_world
from expunge_workers.storage.parts import MadePart
from expunge_workers.storage.threads import own_threads
from unlearning.rows import PublicFile, open_public
from unlearning.types import RecipeError, Refused

BLOCKS = 64
"""of one world: each is a process that waits for its turn, and two descriptors here and in the template"""


SEED_DIGITS = 7
"""of a block's digest that are its seed: numpy takes 32 bits, LightGBM 31"""


class KeptBlocks(Protocol):
    """Where blocks are kept by their keys (``PartStore``)."""

    def key_of(self, inputs: str) -> str: ...
    def load_many(self, keys: Iterable[str]) -> Iterator[tuple[str, MadePart]]: ...
    def keep_many(self, parts: Mapping[str, MadePart]) -> None: ...


@dataclass
class BlockMaker:
    """Makes what the functions of a recipe give for blocks of rows.

    Args:
        surroundings: what the bytes of a block follow from beside its rows and its function.
        used: is told the key of every block that was asked for, without its data.
        repeats: whether the first block gave the same again, of each function that was called for the first time.
    """

    recipe: RowsRecipe
    reader: SourceReader
    kept: KeptBlocks
    surroundings: Mapping[str, str]
    used: dict[str, MadePart]
    repeats: bool = True

    @contextmanager
    def rows(self, units: Mapping[str, Sequence[int]], *, keep: bool) -> Iterator[dict[str, SealedRows]]:
        """Yield the rows of these units, with what is mapped of them.

        ``keep``: whether blocks are looked for, and kept, under their keys.

        Raises:
            Refused, WorldRaised: a function failed, or a public file is not the declared one. Lost. MemoryError.
        """
        with ExitStack() as stack:
            rows = stack.enter_context(self.reader.rows(units, self.recipe.maps))
            yield {
                source: replace(sealed, mapped=self._map_all(stack, source, sealed.blocks, keep=keep))
                for source, sealed in rows.items()
            }

    def _map_all(self, stack: ExitStack, source: str, blocks: Sequence[str], *, keep: bool) -> dict[str, SealedArray]:
        mapped = {}
        for function in self.recipe.maps.get(source, {}):
            if keep:
                data = self._find_or_make(source, function, blocks)
            else:
                made = self._make(source, function, range(len(blocks)))
                data = {number: part.data for parts in made for number, part in parts.items()}
            handle, digest = os.memfd_create("mapped", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), hashlib.sha256()
            stack.callback(os.close, handle)
            with os.fdopen(handle, "wb", closefd=False) as file:
                for number in range(len(blocks)):
                    digest.update(data[number])
                    file.write(data.pop(number))
            mapped[function] = SealedArray(seal(handle), digest.hexdigest())
        return mapped

    def _find_or_make(self, source: str, function: str, blocks: Sequence[str]) -> dict[int, bytes]:
        """Find or make what a function gives for each block, by the block's number."""
        numbers = {self._key(function, block): number for number, block in enumerate(blocks)}
        keys, data = [*numbers], {}
        for key, part in self.kept.load_many(keys):
            data[numbers[key]] = part.data
            self.used[key] = replace(part, data=b"")
        missing = [number for number in range(len(blocks)) if number not in data]
        for parts in self._make(source, function, missing, twice=len(missing) == len(blocks)):
            named = {keys[number]: part for number, part in parts.items()}
            self.kept.keep_many(named)
            self.used.update({key: replace(part, data=b"") for key, part in named.items()})
            data.update({number: part.data for number, part in parts.items()})
        return data

    def _make(
        self, source: str, function: str, numbers: Sequence[int], *, twice: bool = False
    ) -> Iterator[dict[int, MadePart]]:
        """Make what a function gives for these blocks, by their numbers, and yield those of one world at a time.

        ``twice``: the first is made twice, to say whether it repeats.
        """
        for start in range(0, len(numbers), BLOCKS):
            some = numbers[start : start + BLOCKS]
            if twice and start == 0:
                again, *parts = self._make_parts(source, function, [some[0], *some])
                self.repeats = self.repeats and again.data == parts[0].data
            else:
                parts = self._make_parts(source, function, some)
            yield dict(zip(some, parts, strict=True))

    def _make_parts(self, source: str, function: str, numbers: Sequence[int]) -> list[MadePart]:
        """Call the function on each of these blocks of the rows that were read last, in one world."""
        recipe, parts = self.recipe, []
        public = {name: str(recipe.roots[name] / recipe.public[name][0]) for name in recipe.maps[source][function]}
        words = {"function": function, "public": public}
        with ExitStack() as stack:
            blocks = stack.enter_context(self.reader.blocks(source, numbers))
            world = stack.enter_context(
                make_world(
                    "map",
                    recipe.code,
                    len(blocks),
                    opened=open_public_files(recipe),
                    closed=recipe.closed,
                    threads=int(own_threads()),
                    progress=look_on,
                )
            )
            for block in blocks:
                outcome = world(PartOrder(words, {ROWS: block.handle}, seed=int(block.sha256[:SEED_DIGITS], 16)))
                listing = ((BLOCK, len(outcome.data)),)
                parts.append(MadePart(listing, outcome.data, None, outcome.walls.value, outcome.seconds))
        return parts

    def _key(self, function: str, block: str) -> str:
        return self.kept.key_of(json.dumps({"map": function, "block": block, **self.surroundings}, sort_keys=True))


def open_public_files(recipe: RowsRecipe, *, imports: bool = False) -> list[str]:
    """Return the paths of the recipe's public files, and where it ``imports`` them of the weights from elsewhere.

    Raises Refused where one is not the declared one.
    """
    files = {**recipe.public, **(recipe.weights if imports else {})}
    try:
        return [
            str(open_public(PublicFile(path, sha256), recipe.roots[name])) for name, (path, sha256) in files.items()
        ]
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
