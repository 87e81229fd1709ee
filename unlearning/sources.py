"""Where samples can be read from, a block at a time: Parquet files, Arrow tables, ``.npy`` files, map-style datasets.

Each class here is a ``SampleRows``; tensors are the simplest one (``unlearning.types.Tensors``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from unlearning.columns import BLOCK, Column, Texts
from unlearning.types import RecipeError, Refused, SampleRows

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = "np.ndarray[Any, Any] | str | PathLike[str]"
GROUP_BYTES = 2**30
"""of the rows of a Parquet file that can only be read together (1 GiB)"""
ONE_SHAPE = (
    "Give (x, y) pairs of numbers, all of one shape. For dicts, lists of any length and missing values use ul.Pack."
)


@runtime_checkable
class PairDataset(Protocol):
    """A map-style dataset: ``len(dataset)`` and ``dataset[i] -> (x, y)``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class NumpyRows:
    """Rows of two arrays (n, ...), which may be mapped from files."""

    inputs: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            lengths = f"{len(self.inputs)} inputs and {len(self.targets)} targets"
            raise RecipeError(f"Samples differ in length: {lengths}.", "Give one entry of each for every sample.")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def row_bytes(self) -> int:
        return -(-(self.inputs.nbytes + self.targets.nbytes) // max(1, len(self)))

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            rows = part.numpy()
            yield torch.from_numpy(self.inputs[rows]), torch.from_numpy(self.targets[rows])


@dataclass(frozen=True)
class DatasetRows:
    """Rows of a map-style dataset of (x, y). Several parts are read ahead by ``workers`` processes."""

    dataset: PairDataset
    workers: int

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def row_bytes(self) -> int:
        return sum(each.nbytes for each in stacked([self.dataset[0]]))

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        yield from DataLoader(
            self.dataset,  # type: ignore[arg-type]
            batch_sampler=[part.tolist() for part in parts],
            num_workers=self.workers if len(parts) > 1 else 0,
            collate_fn=stacked,
        )


@dataclass(frozen=True)
class SteadyRows:
    """Rows of another source that must be the same at every reading: what is digested is what is trained on.

    Of each row that was read, a sum of 64 bits is kept: of its words, times odd numbers, as multilinear hashing has it.

    Raises:
        Refused: a row has other values, another type or another shape than when it was read before.
    """

    rows: SampleRows
    _sums: np.ndarray[Any, Any] = field(init=False, repr=False, compare=False)
    _read: np.ndarray[Any, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sums", np.zeros(len(self.rows), dtype=np.uint64))
        object.__setattr__(self, "_read", np.zeros(len(self.rows), dtype=bool))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_bytes(self) -> int:
        return self.rows.row_bytes

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part, (inputs, targets) in zip(parts, self.rows.read(parts), strict=True):
            index, sums = part.numpy(), _sums(inputs) + 3 * _sums(targets)
            moved = index[self._read[index] & (self._sums[index] != sums)]
            if len(moved):
                raise Refused(
                    f"Sample {moved[0]} has other values when it is read again, and so do {len(moved) - 1} more.",
                    "Give the same (x, y) for an index at every reading. What is drawn anew belongs into "
                    "Training.augment, or into train.",
                )
            self._sums[index], self._read[index] = sums, True
            yield inputs, targets


def _sums(values: Tensor) -> np.ndarray[Any, Any]:
    """Return a sum (m,) uint64 of each row of values (m, ...), with its type and shape."""
    flat = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    rows = flat.reshape(len(values), flat.size // max(1, len(values)))
    left = -rows.shape[1] % 8
    words = (np.pad(rows, ((0, 0), (0, left))) if left else rows).view(np.uint64)
    odd = np.random.default_rng(0).integers(2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    kind = np.uint64(crc32(f"{values.dtype} {tuple(values.shape[1:])}".encode()))
    sums: np.ndarray[Any, Any] = np.einsum("ij,j->i", words, odd) + kind
    return sums


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of another source: row i is row ``index[i]`` of ``rows``; ``index`` is (n,) int64 on the CPU."""

    rows: SampleRows
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def row_bytes(self) -> int:
        return self.rows.row_bytes

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        return self.rows.read([self.index[part] for part in parts])


@dataclass(frozen=True)
class WeightedRows:
    """Rows of another source, with the sample's weight in the target: see ``weighted``. ``weight`` is (n,) float64."""

    rows: SampleRows
    weight: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_bytes(self) -> int:
        return self.rows.row_bytes + self.weight.itemsize

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part, (inputs, targets) in zip(parts, self.rows.read(parts), strict=True):
            yield inputs, weighted(targets, self.weight[part])


def weighted(targets: Tensor, weight: Tensor) -> Tensor:
    """Return targets (n, ...) with their weights (n,) in front, (n, 1 + k) float64; ``Problem.apart`` undoes it.

    What carries a sample from the recipe to its loss carries inputs and targets: so its weight is digested, compared,
    stored and taken away with it.
    """
    return torch.cat([weight.unsqueeze(1), targets.reshape(len(targets), -1).double()], dim=1)


def stacked(pairs: Sequence[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
    """Return inputs (m, ...) and targets (m, ...) of these items. Raises RecipeError where they do not stack."""
    try:
        inputs = torch.stack([torch.as_tensor(x) for x, _ in pairs])
        targets = torch.stack([torch.as_tensor(y) for _, y in pairs])
    except (RuntimeError, TypeError, ValueError) as error:
        raise RecipeError("The dataset's items do not stack into tensors.", ONE_SHAPE) from error
    return inputs, targets


@dataclass(frozen=True)
class ArrowRows:
    """Rows of a Hugging Face dataset in the format ``arrow``, from its columns ``features`` and ``target``."""

    dataset: Any
    features: Sequence[str] | str
    target: str

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def row_bytes(self) -> int:
        return sum(each.nbytes for each in numbers(self.dataset[:1], self.features, self.target))

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            yield numbers(self.dataset[part.tolist()], self.features, self.target)

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns, some rows at a time. Raises RecipeError where one is missing."""
        wanted = {*names, self.target, *([self.features] if isinstance(self.features, str) else self.features)}
        _require_columns("The dataset", wanted, self.dataset.column_names)
        chosen = self.dataset.select_columns(list(names))
        return (chosen[start : start + BLOCK] for start in range(0, len(self), BLOCK))


@dataclass(frozen=True)
class ParquetRows:
    """Rows of Parquet files, one file after the other, from their columns ``features`` and ``target``.

    A row group is read and decoded as a whole, and the last one is kept. Files are not mapped: of a mapped file every
    page that was read counts as memory of the process, so that a large source would seem to take as much as it holds.

    Raises:
        RecipeError: a column is missing, or a row group takes more than ``GROUP_BYTES``.
    """

    paths: Sequence[str | PathLike[str]]
    features: Sequence[str] | str
    target: str
    _last: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for path, file in zip(self.paths, self._files, strict=True):
            _require_columns(Path(path).name, self._columns, file.schema_arrow.names)
        largest = int(np.diff(self._starts).max(initial=0))
        if largest * self.row_bytes > GROUP_BYTES:
            raise RecipeError(
                f"A row group of the Parquet files has {largest} rows, {largest * self.row_bytes / 1e9:.1f} GB, and is "
                f"read at once; at most {GROUP_BYTES / 1e9:.1f} GB are.",
                f"Write them with row_group_size={GROUP_BYTES // self.row_bytes // 4}.",
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def row_bytes(self) -> int:
        empty = self._files[0].schema_arrow.empty_table().select(self._columns)
        if isinstance(self.features, str):  # the length of the lists is that of the first
            first = next(self._files[0].iter_batches(1, columns=self._columns), None)
            return 8 if first is None else sum(each.nbytes for each in numbers(first, self.features, self.target))
        inputs, targets = numbers(empty, self.features, self.target)
        return len(self.features) * inputs.itemsize + targets.itemsize

    def read(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            order = torch.argsort(part)
            rows = part[order]
            groups = torch.searchsorted(self._group_starts, rows, right=True) - 1
            pieces = [self._piece(group, rows[groups == group]) for group in torch.unique(groups).tolist()]
            inputs, targets = (torch.cat(each) if len(pieces) > 1 else each[0] for each in zip(*pieces, strict=True))
            if torch.equal(rows, part):
                yield inputs, targets
            else:
                back = torch.argsort(order)
                yield inputs[back], targets[back]

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns, some rows at a time. Raises RecipeError where one is missing."""
        for path, file in zip(self.paths, self._files, strict=True):
            _require_columns(Path(path).name, names, file.schema_arrow.names)
            yield from file.iter_batches(BLOCK, columns=list(names))

    @cached_property
    def _columns(self) -> list[str]:
        return [*([self.features] if isinstance(self.features, str) else self.features), self.target]

    @cached_property
    def _files(self) -> list[Any]:
        parquet = _pyarrow("parquet")
        return [parquet.ParquetFile(path) for path in self.paths]

    @cached_property
    def _groups(self) -> list[tuple[int, int]]:
        """Return the file and the number within it of each row group."""
        return [(file, group) for file, each in enumerate(self._files) for group in range(each.num_row_groups)]

    @cached_property
    def _starts(self) -> np.ndarray[Any, Any]:
        """Return the first row of each group, and the number of rows at the end."""
        sizes = [self._files[file].metadata.row_group(group).num_rows for file, group in self._groups]
        return np.cumsum([0, *sizes])

    @cached_property
    def _group_starts(self) -> Tensor:
        return torch.from_numpy(self._starts[:-1].copy())

    def _piece(self, group: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows of one group; ``rows`` rise."""
        if group not in self._last:
            self._last.clear()
            file, number = self._groups[group]
            table = self._files[file].read_row_group(number, columns=self._columns)
            self._last[group] = numbers(table, self.features, self.target)
        inputs, targets = self._last[group]
        here = rows - int(self._starts[group])
        first, last = int(here[0]), int(here[-1]) + 1
        if last - first == len(here):  # a view of the kept group
            return inputs[first:last], targets[first:last]
        return inputs[here], targets[here]


def paths_of(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[str | PathLike[str]]:
    """Return one path, or several, as a list. Raises RecipeError where there is none."""
    found = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not found:
        raise RecipeError("The recipe names no Parquet file.", "Give at least one.")
    return found


def arrow(frame: Any) -> pa.Table:
    """Return an Arrow table of a pandas or Polars frame, a dict of columns, or Parquet files by their paths.

    Raises:
        RecipeError: pyarrow is not installed, or the frame is none.
    """
    if isinstance(frame, str | PathLike):
        return _pyarrow("parquet").read_table(frame)
    try:
        return _pyarrow("lib").table(frame)
    except (TypeError, ValueError) as error:
        what = f"A {type(frame).__name__} is no table: {error}."
        raise RecipeError(what, "Give a frame of pandas or Polars, an Arrow table, or a Parquet file's path.") from None


def compute(name: str, *arguments: Any) -> Any:
    """Return what the function of ``pyarrow.compute`` gives."""
    return getattr(_pyarrow("compute"), name)(*arguments)


def numbers_of(table: pa.Table | pa.RecordBatch, name: str) -> Tensor:
    """Return a column of numbers as a tensor (m,) of its own memory; whole ones are int64."""
    values = _values(table.column(name), name)
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iub" else values.copy())


def weights_in(rows: ArrowRows | ParquetRows, name: str | None) -> Tensor | None:
    """Return the column of weights (n,) float64; None where the recipe names none."""
    if name is None:
        return None
    parts = [numbers_of(table, name).double() for table in rows.tables((name,))]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def mapped(array: Array) -> np.ndarray[Any, Any]:
    """Return an array as it is, or the ``.npy`` file of that path, mapped and not read."""
    return array if isinstance(array, np.ndarray) else np.load(array, mmap_mode="r", allow_pickle=False)


def numbers(table: pa.Table | pa.RecordBatch, features: Sequence[str] | str, target: str) -> tuple[Tensor, Tensor]:
    """Return inputs (m, features) and targets (m,) of a table. Inputs of several columns are a transposed view."""
    answers = numbers_of(table, target)
    if isinstance(features, str):
        column = _whole(table.column(features))
        flat = _values(column.flatten(), features)
        if len(column) and len(flat) % len(column):
            raise RecipeError(f"The lists of the column {features!r} differ in length.", ONE_SHAPE)
        return torch.from_numpy(_real(flat).reshape(len(column), -1)), answers
    columns = [_values(table.column(name), name) for name in features]
    kind = np.result_type(np.float32, *(column.dtype for column in columns))
    inputs = np.empty((len(columns), table.num_rows), dtype=kind)
    for place, column in enumerate(columns):
        inputs[place] = column
    return torch.from_numpy(inputs).t(), answers


def names_in(tables: Iterator[pa.Table], id: str, person: str) -> tuple[Texts, Column[Any]]:
    """Return the ids and the people of the samples; a missing one is empty.

    An entry of people is a text, or a tuple of texts where the column holds lists.
    """
    compute, types, arrow = _pyarrow("compute"), _pyarrow("types"), _pyarrow("lib")
    data, lengths, codes = [], [], []
    places: dict[Any, int] = {}
    for table in tables:
        for name in (id, person):
            kind = table.column(name).type
            if types.is_floating(getattr(kind, "value_type", kind)):
                raise RecipeError(
                    f"The column {name!r} holds {kind}: the id 5018 would be 5018.0 in one place and 5018 in another, "
                    "and a request would not find it.",
                    f"Make it whole numbers or texts, without missing ones: frame[{name!r}].astype('int64').",
                )
        texts = texts_of(table.column(id))
        data.append(texts.data)
        lengths.append(np.diff(texts.ends))
        people = _whole(table.column(person))
        if types.is_nested(people.type):
            here = [tuple(map(str, each or ())) for each in people.to_pylist()]
            codes.append(np.array([places.setdefault(each, len(places)) for each in here], dtype=np.int64))
            continue
        coded = compute.fill_null(compute.cast(people, arrow.large_string()), "").dictionary_encode()
        known = [places.setdefault(each, len(places)) for each in coded.dictionary.to_pylist()]
        codes.append(np.array(known, dtype=np.int64)[coded.indices.to_numpy()])
    ends = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
    column = Column(torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *codes])), tuple(places))
    return Texts(np.concatenate([np.zeros(0, dtype=np.uint8), *data]), ends), column


def texts_of(column: Any) -> Texts:
    """Return an Arrow column of texts or whole numbers as texts; a missing one is empty."""
    compute, arrow = _pyarrow("compute"), _pyarrow("lib")
    texts = compute.fill_null(compute.cast(_whole(column), arrow.large_string()), "")
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]].copy()
    return Texts(data, ends - ends[0])


def _whole(column: Any) -> Any:
    """Return a column in one piece."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _values(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers (m,). Missing ones are NaN. ``name`` is for the refusal of what is no number."""
    values: np.ndarray[Any, Any] = _whole(column).to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":
        raise RecipeError(
            f"The column {name!r} holds {column.type}, which is no number.",
            f"Number it by a list that you choose: frame[{name!r}] = frame[{name!r}].map({{'no': 0, 'yes': 1}}). "
            "Inputs with texts: Samples.from_frame(frame, inputs=ul.Pack(...), ...).",
        )
    return values


def _real(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.result_type(np.float32, values.dtype))


def _require_columns(where: str, wanted: Iterable[str], there: Iterable[str]) -> None:
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise RecipeError(f"{where} lacks the columns {', '.join(missing)}.", f"It has {', '.join(sorted(there))}.")


def _pyarrow(module: str) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ModuleNotFoundError:
        raise RecipeError("pyarrow is not installed.", 'Run `pip install "expunge[parquet]"`.') from None
