"""The rows that a recipe gets: those of the people who are here, and nothing of anybody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from unlearning.arrow import pyarrow
from unlearning.columns import Column, Texts
from unlearning.recipe import Samples
from unlearning.rows._batches import RowsDataset, require_size, windows_of
from unlearning.rows._entries import Array, Entries, LoadedEntries
from unlearning.rows._maps import MapFunction, MappedBefore, join_blocks, map_block, places_of_blocks
from unlearning.rows._people import People, is_aside, numbers_of
from unlearning.rows._read import Places
from unlearning.rows.declarations import ROW
from unlearning.types import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FileColumn:
    """A column of whole paths: of files in ``folder`` beneath ``root``."""

    name: str
    root: Path
    folder: str


class NoSuchAttribute(RecipeError, AttributeError):
    """Rows were taken for a frame."""


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows of a source, in its order, without those of the people who left. Made by ``open_rows``.

    Frames and tables of it carry the number of each row in the column ``__row``; filters, merges, sorts and splits
    keep it, and ``samples`` finds ids and people by it.
    """

    _table: pa.Table
    _people: Column[People]
    _ids: Texts
    _numbers: Places
    _arrays: Mapping[str, Entries]
    _salt: bytes
    _files: FileColumn | None = None
    """the column of files, where the source is a folder"""
    _splits: int = 0
    """how many splits lie behind these rows: each hashes people anew, or a second one would find one side empty"""
    _whole: Rows | None = None
    """the rows that these were taken from, with all rows of each person; None: these are they"""
    _mapped: Mapping[MapFunction, MappedBefore] | None = None
    """of these rows in a world; None: functions are called here"""

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows, {', '.join(self.columns)})"

    if not TYPE_CHECKING:  # mypy would take every attribute for one

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            frame = f"rows.pandas().{name}, or rows[{name!r}]" if name in self.columns else f"rows.pandas().{name}"
            raise NoSuchAttribute(f"Rows are no frame, and have no {name!r}.", f"Write {frame}.")

    def __getitem__(self, column: str) -> Array:
        """Return one column or array, (n, ...). Texts are objects; missing numbers are NaN."""
        if column in self._arrays:
            return self._arrays[column].whole()
        if column == ROW:
            return self._numbers
        if column not in self._table.column_names:
            raise RecipeError(f"The rows have no column {column!r}.", f"They have {', '.join(self.columns)}.")
        return _array_of(self._table.column(column))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of columns and arrays."""
        return (*self._table.column_names, *self._arrays)

    @property
    def people(self) -> Array:
        """The number of each row's person, (n,) int64, by first appearance, as scikit-learn's ``groups``.

        Rows that share one of several people have one number.
        """
        return numbers_of(self._people)

    def arrow(self) -> pa.Table:
        """Return the columns, and ``__row``, as a ``pyarrow.Table`` in one piece."""
        return self._table.append_column(ROW, pyarrow("lib").array(self._numbers))

    def pandas(self) -> Any:
        """Return the columns, and ``__row``, as a frame of pandas. Raises RecipeError where it is not installed."""
        _installed("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """Return the columns, and ``__row``, as a frame of Polars. Raises RecipeError where it is not installed."""
        return _installed("polars").from_arrow(self.arrow())

    def numpy(self, *columns: str) -> Array:
        """Return columns of numbers: (n, ...) of one column, (n, k) of several, in a type that holds all of them.

        Raises:
            RecipeError: a column is missing or holds what is no number, or none is named.
        """
        if not columns:
            raise RecipeError("No column is named.", f"Name some of {', '.join(self.columns)}.")
        values = [self[column] for column in columns]
        for column, array in zip(columns, values, strict=True):
            if array.dtype.kind not in "fiub":
                raise RecipeError(
                    f"The column {column!r} holds what is no number.",
                    f"Number it by a list that you choose: rows.pandas()[{column!r}].map({{'no': 0, 'yes': 1}}).",
                )
        return values[0].copy() if len(values) == 1 else np.stack(values, axis=1)

    def tensor(self, *columns: str) -> Tensor:
        """Return columns of numbers as a tensor of its own memory; see ``numpy``."""
        return torch.from_numpy(self.numpy(*columns))

    def blocks(self, n: int) -> Iterator[Rows]:
        """Yield the rows in order, at most ``n`` at a time. Raises RecipeError where ``n`` is below 1."""
        require_size(n)
        return (self._take(np.arange(start, min(start + n, len(self)))) for start in range(0, len(self), n))

    def batches(self, size: int, seed: int) -> Iterator[Rows]:
        """Yield all rows in an order that follows from the seed, ``size`` at a time; the last batch may have fewer.

        Rows that are larger than memory are read as they come: some 64 MB of them are mixed at a time, which lie in
        groups of neighbours all over the source. Fewer are mixed as a whole.

        Args:
            size: 1 or more. seed: another one for each epoch, 0 or more.

        Raises:
            RecipeError: ``size`` is below 1.
        """
        require_size(size)
        return self._batches(size, seed)

    def _batches(self, size: int, seed: int) -> Iterator[Rows]:
        row_bytes = 8 * len(self._table.column_names) + sum(each.entry_bytes for each in self._arrays.values())
        for places, order in windows_of(len(self), row_bytes, size, seed):
            arrays = {name: LoadedEntries(entries.take(places)) for name, entries in self._arrays.items()}
            held = replace(self._take(places), _arrays=arrays)
            for start in range(0, len(order), size):
                yield held._take(order[start : start + size])

    def dataset(self) -> RowsDataset:
        """Return the rows as a data set of torch, for its DataLoader, Lightning and Transformers.

        An item is a row, what it holds by column. A sampler that draws from all rows is slow where they are larger than
        memory; ``batches`` is not.
        """
        return RowsDataset(self)

    def map(self, function: MapFunction, **files: Path) -> Array:
        """Return what a function gives for each row, (n, ...), from the rows of the same people alone.

        The function is called on a block of rows: all rows of one person, or of the same people, also where these rows
        are a ``split`` or one of ``blocks``. In a world of the service it was called before, in processes that held one
        block each, and the results are kept until the person leaves. There the source names it: ``map=embed``.

        Args:
            function: (block, files by name) -> numbers (k, ...) for its k rows, of one type and shape for all blocks.
            files: public files of the recipe, by the names of its parameters and the function's.

        Raises:
            RecipeError: the function returns something else, or in a world: the source does not name it, or the files
                are not the recipe's.
        """
        whole = self if self._whole is None else self._whole
        places = whole._places(self._numbers)
        if whole._mapped is not None:
            return _mapped_before(whole._mapped, function, files).values[places]
        here = np.zeros(len(whole), dtype=bool)
        here[places] = True
        blocks = places_of_blocks(whole._people)
        chosen = [number for number, block in enumerate(blocks) if here[block].any()]
        results = (map_block(function, block, files) for block in whole.blocks_at(chosen))
        return join_blocks(function, results, [blocks[number] for number in chosen], len(whole))[places]

    def blocks_at(self, numbers: Sequence[int]) -> Iterator[Rows]:
        """Yield these of the blocks that ``map`` makes, each as rows of its own, which tell nothing of the others."""
        blocks = places_of_blocks(self._people)
        for number in numbers:
            taken = self._take(blocks[number])
            yield replace(taken, _numbers=np.arange(len(taken)), _splits=0, _whole=None, _mapped=None)

    def split(self, share: float) -> tuple[Rows, Rows]:
        """Return the rows of most people, and those of a share of the people, for early stopping.

        A keyed hash decides for each person, so nobody changes sides when others come or go. A row of people from
        both sides is in the first.

        Args:
            share: above 0 and below 1.

        Raises:
            RecipeError: ``share`` is outside its range.
        """
        if not 0 < share < 1:
            raise RecipeError(f"The share of a split is {share!r}.", "Give a number between 0 and 1, as 0.1.")
        return self._halves(share, f"split {self._splits}")

    def samples(self, x: Any, y: Any, at: Any = None, weight: Any = None) -> Samples:
        """Make samples that know their ids and people.

        Args:
            x: inputs (m, ...): a frame of numbers, an array or a tensor. Its column ``__row`` is no input.
            y: targets (m, ...): numbers; whole ones and booleans become int64.
            at: the row numbers (m,) of the samples, where ``x`` has no column ``__row``: ``rows["__row"]`` for all
                rows in order.
            weight: numbers (m,) of 0 or more, which multiply the samples' losses.

        Returns:
            Samples with the ids of the source's column ``id``, or else ``PERSON#0``, ``PERSON#1`` by person. A row
            that occurs again has ``~1``, ``~2`` behind its id.

        Raises:
            RecipeError: row numbers are missing, or are none of these rows; lengths differ; a row names no person;
                x or y holds what is no number.
        """
        numbers, inputs = _inputs(x)
        if at is not None:
            given = _row_numbers(at)
            if numbers is not None and not np.array_equal(numbers, given):
                raise RecipeError(f"at= and the column {ROW!r} of x name different rows.", "Leave at= out.")
            numbers = given
        if numbers is None:
            raise RecipeError(
                f"x has no column {ROW!r}, so nothing says whose samples these are.",
                f"Say it, also where all rows are there: at=rows[{ROW!r}], or at=frame[{ROW!r}]. "
                f"A merge of two frames of rows names it {ROW}_x: rename the one that the samples are of.",
            )
        targets = _numbers("y", y)
        if not targets.is_floating_point():  # torch's cross_entropy takes no smaller whole numbers
            targets = targets.long()
        if not len(numbers) == len(inputs) == len(targets):
            lengths = f"{len(inputs)} inputs, {len(targets)} targets and {len(numbers)} row numbers"
            raise RecipeError(f"Samples differ in length: {lengths}.", "Give one of each for every sample.")
        _require_same_order(x, y)
        places = self._places(numbers)
        people = self._people.take(torch.from_numpy(places)).compact()
        if () in people.values:
            what = f"Row {numbers[list(people).index(())]} names no person, and samples belong to people."
            raise RecipeError(what, "Leave rows of nobody out of the samples.")
        ids = self._ids.take(torch.from_numpy(places))
        if len(np.unique(places)) < len(places):
            times: Counter[str] = Counter()
            repeated = []
            for name in ids:
                repeated.append(f"{name}~{times[name]}" if times[name] else name)
                times[name] += 1
            ids = Texts.of(repeated)
        weights = None if weight is None else _numbers("weight", weight)
        return Samples(ids, cast("Any", people), inputs, targets, weight=weights)

    def _places(self, numbers: Places) -> Places:
        """Return where the rows of these numbers lie here; the numbers of rows rise."""
        places = np.searchsorted(self._numbers, numbers)
        strange = np.flatnonzero(self._numbers[np.minimum(places, len(self) - 1)] != numbers) if len(self) else numbers
        if len(strange):
            what = f"{len(strange)} of {len(numbers)} row numbers are none of these rows."
            raise RecipeError(what, "Make samples by the rows that the frame is of; those kept apart are no samples.")
        return places

    def _halves(self, share: float, label: str) -> tuple[Rows, Rows]:
        apart = self._people.where(lambda people: is_aside(people, share, self._salt, label)).numpy()
        first, second = (self._take(np.flatnonzero(side)) for side in (~apart, apart))
        return replace(first, _splits=self._splits + 1), replace(second, _splits=self._splits + 1)

    def _take(self, places: Places) -> Rows:
        rows = torch.from_numpy(places)
        return Rows(
            _table=pyarrow("lib")
            .table(
                {
                    name: pyarrow("compute").take(self._table.column(name), pyarrow("lib").array(places))
                    for name in self._table.column_names
                }
            )
            .combine_chunks(),
            _people=self._people.take(rows).compact(),
            _ids=self._ids.take(rows),
            _numbers=self._numbers[places],
            _arrays={name: entries.at(places) for name, entries in self._arrays.items()},
            _salt=self._salt,
            _files=self._files,
            _splits=self._splits,
            _whole=self if self._whole is None else self._whole,
        )


def set_apart(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """Return the rows to train on, and those of the share of the people whom ``aside=`` keeps apart.

    Two objects, so that a training can be handed the first alone. A keyed hash decides, as in ``Rows.split``.
    """
    return rows._halves(share, "aside")


def _mapped_before(
    mapped: Mapping[MapFunction, MappedBefore], function: MapFunction, files: Mapping[str, Path]
) -> MappedBefore:
    name = getattr(function, "__name__", "the function")
    if function not in mapped:
        what = f"rows.map({name}) was not made before the training: the source does not name the function."
        raise RecipeError(what, f"Say it where the rows come from: ul.table(..., map={name}).")
    before = mapped[function]
    if before.files != files:
        made, asked = (", ".join(each) or "no file" for each in (before.files, files))
        what = f"rows.map({name}) was made with {made}, and is asked for with {asked}."
        raise RecipeError(what, "Give the recipe's public files, under the names of its parameters, and nothing else.")
    return before


def _array_of(column: Any) -> Array:
    """Return an Arrow column as (n,); lists of numbers of one length as (n, length)."""
    types = pyarrow("types")
    column = column.combine_chunks()
    if (types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)) and (
        types.is_primitive(column.type.value_type) and not column.null_count and len(column)
    ):
        lengths = pyarrow("compute").list_value_length(column).to_numpy(zero_copy_only=False)
        if (lengths == lengths[0]).all():
            values = column.flatten().to_numpy(zero_copy_only=False)
            return cast(Array, values.reshape(len(column), int(lengths[0])))
    return cast(Array, column.to_numpy(zero_copy_only=False))


def _inputs(x: Any) -> tuple[Places | None, Tensor]:
    """Return the row numbers that x carries, and its other columns as a tensor (m, k)."""
    names = [str(name) for name in getattr(x, "column_names", getattr(x, "columns", ()))]
    if not names:
        return None, _numbers("x", x)
    numbers = _row_numbers(x[ROW]) if ROW in names else None
    columns = [_numbers(f"The column {name!r}", x[name]) for name in names if name != ROW]
    if not columns:
        raise RecipeError(f"x has no column but {ROW!r}.", "Give the columns of the inputs too.")
    return numbers, torch.stack(columns, dim=1) if len({column.dtype for column in columns}) == 1 else torch.stack(
        [column.double() for column in columns], dim=1
    )


def _row_numbers(values: Any) -> Places:
    """Return row numbers (m,) int64. A float is a mean, or what a merge made of a column with missing numbers."""
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise RecipeError(
            f"Row numbers are whole ones, and these are {numbers.dtype} of shape {numbers.shape}.",
            f"Keep the column {ROW!r} as it is: a mean is no row, and an outer merge adds rows that are nobody's; "
            f"drop those, then frame[{ROW!r}].astype('int64').",
        )
    return numbers.astype(np.int64)


def _numbers(what: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise RecipeError(f"{what} holds what is no number: {array.dtype}.", "Number it by a list that you choose.")
    return torch.from_numpy(np.array(array, order="C"))


def _require_same_order(x: Any, y: Any) -> None:
    """Refuse two frames of pandas in different orders: one of them was sorted or filtered without the other."""
    if hasattr(x, "iloc") and hasattr(y, "iloc") and not x.index.equals(y.index):
        raise RecipeError(
            "x and y have different indexes, so their rows are in different orders.",
            "Take y from the frame that x is from, or call reset_index(drop=True) on both where they do agree.",
        )


def _installed(library: str) -> Any:
    try:
        return import_module(library)
    except ModuleNotFoundError:
        raise RecipeError(f"{library} is not installed.", f"Run `pip install {library}`.") from None
