"""What a recipe may read: a source says where rows lie and whose they are. Nothing is opened here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from unlearning.types import RecipeError

Nobody: TypeAlias = Literal["refuse", "keep"]
Columns: TypeAlias = "str | Sequence[str]"
Functions: TypeAlias = "Callable[..., Any] | Sequence[Callable[..., Any]]"

ROW = "__row"
"""the column of a frame that says which row it was"""
TYPES = ("text", "int", "float", "bool", "date", "datetime")
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv\t",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_FORMAT = re.compile(r"""csv[^\r\n"\w]?|parquet|arrow|json|jsonl""")
_FORMATS = "'csv', 'csv;' (a csv whose cells are parted by ;), 'parquet', 'arrow', 'json' or 'jsonl'"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Via:
    """A person two tables away: the rows' column ``key`` leads to rows of ``path``, whose column ``person`` names them.

    Args:
        path: a table beneath the recipe's root, in a format that its suffix names.
        key: the column that both tables have; compared as text.
        person: the column of people in ``path``.
    """

    path: str
    key: str
    person: str

    def __post_init__(self) -> None:
        require_beneath(self.path)
        format_by_suffix(self.path)
        _require_name("key", self.key)
        _require_name("person", self.person)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Whose rows a source holds, and how they are read. No field has the name of an attribute of ``Rows``.

    Args:
        person: the column, or columns, of the people of a row: texts, whole numbers or lists of these. A row leaves
            when one of its people does.
        id: the column of row ids, distinct texts or whole numbers.
        aside: the share of the people, 0 to below 1, who are kept apart from training.
        spelled: how this source writes the id that requests name, as ``user:{}`` where it writes ``user:7`` for the
            request's ``7``.
        at: the column that says since when a row is there.
        types: the type of a column by its name, one of ``TYPES``; others are found among the rows of those who stay.
        nobody: ``keep`` takes rows that name no person; they never leave.
        functions: of the module, for ``Rows.map``, whose results are made before the training and kept by person.

    Raises:
        RecipeError: a value is not what is said above.
    """

    person: tuple[str, ...] | Via
    id: str | None = None
    aside: float = 0.0
    spelled: str = "{}"
    at: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    nobody: Nobody = "refuse"
    functions: tuple[Callable[..., Any], ...] = ()

    def __post_init__(self) -> None:
        for column in self.person if isinstance(self.person, tuple) else ():
            _require_name("person", column)
        if self.person == ():
            raise RecipeError("The source names no column of people.", "Name it: person='patient'.")
        for role, name in (("id", self.id), ("at", self.at)):
            if name is not None:
                _require_name(role, name)
        if isinstance(self.aside, bool) or not isinstance(self.aside, int | float) or not 0 <= self.aside < 1:
            raise RecipeError(f"aside is {self.aside!r}.", "Give the share of people to keep apart, as 0.2.")
        if not isinstance(self.spelled, str) or self.spelled.count("{}") != 1:
            what = f"spelled is {self.spelled!r}."
            raise RecipeError(what, "Write {} once, where the id of a request stands: spelled='user:{}'.")
        if self.nobody not in ("refuse", "keep"):
            raise RecipeError(f"nobody is {self.nobody!r}.", "Use 'keep' for rows that belong to no person.")
        self._check_types()
        for function in self.functions:
            if not callable(function) or not getattr(function, "__name__", "").isidentifier():
                what = f"map names {function!r}, which is no function with a name."
                raise RecipeError(what, "Write `def embed(block): ...` in the recipe's module, and say map=embed.")
        object.__setattr__(self, "types", dict(self.types))

    def _check_types(self) -> None:
        for column, kind in self.types.items():
            if kind not in TYPES:
                what = f"The type of the column {column!r} is {kind!r}."
                raise RecipeError(what, f"Use one of {', '.join(TYPES)}.")
            if column in self.text_columns and kind != "text":
                what = f"The type of the column {column!r} is {kind!r}, and it names people or rows."
                raise RecipeError(what, "Ids stay texts: leave its type out.")

    def __getattr__(self, name: str) -> Any:
        """Answer as the rows of everybody who is trained on do: in a notebook, where nobody hands rows over."""
        from unlearning.rows._rows import Rows  # noqa: PLC0415 (it imports this module)

        if name.startswith("_") or not hasattr(Rows, name):
            raise AttributeError(f"A source has no attribute {name!r}, and neither have rows.")
        return getattr(_opened_here(self), name)

    def __getitem__(self, column: str) -> Any:
        return _opened_here(self)[column]

    def __len__(self) -> int:
        return len(_opened_here(self))

    @property
    def person_columns(self) -> tuple[str, ...]:
        """The columns of this source's own rows that lead to people."""
        return (self.person.key,) if isinstance(self.person, Via) else self.person

    @property
    def text_columns(self) -> frozenset[str]:
        """The columns that stay text: csv ``007`` is not ``7``."""
        return frozenset(self.person_columns) | ({self.id} if self.id is not None else set())


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """One file of rows; see ``table``."""

    path: str
    format: str
    more: tuple[str, ...] = ()
    """further files of the same columns, whose rows follow"""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "more", tuple(self.more))
        for path in (self.path, *self.more):
            require_beneath(path)
        if not _FORMAT.fullmatch(self.format):
            raise RecipeError(f"The format is {self.format!r}.", f"Use one of {_FORMATS}.")


@dataclass(frozen=True, kw_only=True)
class QuerySource(Source):
    """The answer of a database; see ``query``."""

    setting: str
    sql: str
    tables: Mapping[str, str]
    """the column of people of each table"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.setting.isidentifier():
            what = f"The database is {self.setting!r}, which is no setting's name."
            raise RecipeError(what, "Name a setting, as 'crm'; the operator gives it an address.")
        if not self.sql.strip():
            raise RecipeError("The query has no SQL.", "Write one SELECT.")
        if not self.tables:
            raise RecipeError("The query names no table of people.", "Say people={'visits': 'patient'}.")
        for name, column in self.tables.items():
            _require_name("people", column)
            if not name or "." in name:
                what = f"people names the table {name!r}."
                raise RecipeError(what, "Write its name without a schema, here and in the SQL: people={'visits': ...}.")
        if self.id is None:
            raise RecipeError("The query names no id.", "Rows are ordered by it: select one, and say id='visit'.")
        object.__setattr__(self, "tables", dict(self.tables))


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """Files that a table lists; see ``folder``."""

    path: str
    index: str
    file: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require_beneath(self.path)
        require_beneath(self.index)
        format_by_suffix(self.index)
        _require_name("file", self.file)


@dataclass(frozen=True, kw_only=True)
class ArraysSource(Source):
    """Arrays with a table of names; see ``arrays``."""

    names: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        require_beneath(self.names)
        format_by_suffix(self.names)
        if not self.files:
            raise RecipeError("The source names no array.", "Name one at least: x='x.npy'.")
        for path in self.files.values():
            require_beneath(path)
            if PurePosixPath(path).suffix != ".npy":
                raise RecipeError(f"The array {path!r} is no .npy file.", "Write it with numpy.save.")
        object.__setattr__(self, "files", dict(self.files))


@dataclass(frozen=True, kw_only=True)
class ReaderSource(Source):
    """What a function of the recipe's module reads, with everybody in it; see ``reader``."""

    path: str
    function: str
    """its name in the module"""
    call: Callable[[Path], Any] | None = None
    """the function; None where the source was read from JSON"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_beneath(self.path)
        if not self.function.isidentifier():
            what = f"reader is given {self.function!r}, which is no function with a name."
            raise RecipeError(what, "Write `def read(path): ...` in the recipe's module, and say ul.reader(read, ...).")


@dataclass(frozen=True)
class PublicFile:
    """A file that holds nobody's data; see ``public``. In a notebook it answers as the ``Path`` that a recipe gets."""

    path: str
    sha256: str

    def __fspath__(self) -> str:
        return str(_path_here(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_path_here(self), name)

    def __post_init__(self) -> None:
        require_beneath(self.path)
        if not _SHA256.fullmatch(self.sha256):
            what = f"The digest of {self.path!r} is {self.sha256!r}."
            raise RecipeError(what, f"Give the 64 lower-case digits that `sha256sum {self.path}` prints.")


class WeightsFile(PublicFile):
    """A model that was trained elsewhere on everybody; see ``weights``."""


def _opened_here(source: Source) -> Any:
    """Return the rows of everybody who is trained on, once read, in this process's folder. Raises RecipeError."""
    from unlearning.rows._open import open_rows  # noqa: PLC0415 (it imports this module)
    from unlearning.rows._rows import set_apart  # noqa: PLC0415

    if "_here" not in vars(source):
        rows = open_rows(source, Path.cwd(), databases=json.loads(os.environ.get("EXPUNGE_SOURCES") or "{}"))
        object.__setattr__(source, "_here", set_apart(rows, source.aside)[0] if source.aside else rows)
    return vars(source)["_here"]


def _path_here(source: PublicFile) -> Path:
    from unlearning.rows._paths import open_public  # noqa: PLC0415 (it imports this module)

    return open_public(source, Path.cwd())


# The functions answer Any, as those of FastAPI do: a recipe writes ``rows: ul.Rows = ul.table(...)``.


def table(
    path: str | Sequence[str],
    *,
    person: Columns | Via,
    id: str | None = None,
    aside: float = 0.0,
    spelled: str = "{}",
    at: str | None = None,
    format: str | None = None,
    types: Mapping[str, str] | None = None,
    nobody: Nobody = "refuse",
    map: Functions = (),
) -> Any:
    """A file of rows: csv, Parquet, Arrow, a JSON list of objects, or JSON lines.

    Args:
        path: beneath the recipe's root; of several files of the same columns a list, in the order of their rows.
        person: the column of the row's person; several columns, a column of lists, or ``ul.via``.
        id: the column of distinct row ids.
        aside: the share of people who are kept apart from training.
        spelled: ``user:{}`` where the file writes ``user:7`` and requests say ``7``.
        at: the column that says since when a row is there.
        format: where the suffix does not say it, or for the separator of a csv: ``csv;``.
        types: ``{"zip": "text"}`` where a column looks like another type; one of ``TYPES``.
        nobody: ``keep`` takes rows without a person, which never leave.
        map: a function, or several, for ``rows.map``: made once for each person, before the training.

    Raises:
        RecipeError: one of these is not as said.
    """
    paths: list[str] = [path] if isinstance(path, str) else [*path]
    first, *more = paths or [""]
    return TableSource(
        path=first,
        more=tuple(more),
        format=format_by_suffix(first) if format is None else format,
        person=_columns(person),
        id=id,
        aside=aside,
        spelled=spelled,
        at=at,
        types=types or {},
        nobody=nobody,
        functions=_functions(map),
    )


def query(
    setting: str,
    sql: str,
    *,
    people: Mapping[str, str],
    id: str,
    person: Columns | None = None,
    aside: float = 0.0,
    spelled: str = "{}",
    at: str | None = None,
    types: Mapping[str, str] | None = None,
    nobody: Nobody = "refuse",
    map: Functions = (),
) -> Any:
    """The rows that one SELECT answers with, on SQLite or PostgreSQL, as if those who left had never been stored.

    Args:
        setting: the operator's name of the database, which has an address; never an address.
        sql: one SELECT. It names its tables without a schema.
        people: the column of people by table. The SQL sees those who stay alone, so an average inside it is theirs.
        id: the column of the answer that orders it, distinct.
        person: the column of the answer that names the person. Default: the column that ``people`` names.
        aside, spelled, at, types, nobody, map: as in ``table``; ``spelled`` and ``nobody`` hold for the tables too.

    Raises:
        RecipeError: one of these is not as said.
    """
    return QuerySource(
        setting=setting,
        sql=sql,
        tables=people,
        person=tuple(dict.fromkeys(people.values())) if person is None else _columns(person),
        id=id,
        aside=aside,
        spelled=spelled,
        at=at,
        types=types or {},
        nobody=nobody,
        functions=_functions(map),
    )


def folder(
    path: str,
    *,
    index: str,
    file: str,
    person: Columns | Via,
    id: str | None = None,
    aside: float = 0.0,
    spelled: str = "{}",
    at: str | None = None,
    types: Mapping[str, str] | None = None,
    nobody: Nobody = "refuse",
    map: Functions = (),
) -> Any:
    """Files, one for each row of a table.

    Args:
        path: the folder beneath the recipe's root.
        index: the table, beneath the root too.
        file: its column of files within the folder. The rows hold their whole paths.
        person, id, aside, spelled, at, types, nobody, map: as in ``table``.

    Raises:
        RecipeError: one of these is not as said.
    """
    return FolderSource(
        path=path,
        index=index,
        file=file,
        person=_columns(person),
        id=id,
        aside=aside,
        spelled=spelled,
        at=at,
        types={**(types or {}), file: "text"},
        nobody=nobody,
        functions=_functions(map),
    )


def arrays(
    *,
    names: str,
    person: Columns | Via,
    id: str | None = None,
    aside: float = 0.0,
    spelled: str = "{}",
    at: str | None = None,
    types: Mapping[str, str] | None = None,
    nobody: Nobody = "refuse",
    map: Functions = (),
    **files: str,
) -> Any:
    """Arrays (n, ...) in ``.npy`` files, with a table of n rows that says whose they are.

    Args:
        names: the table, beneath the recipe's root.
        person, id, aside, spelled, at, types, nobody, map: as in ``table``.
        files: the array's path by its name: ``x="x.npy"`` is ``rows["x"]``.

    Raises:
        RecipeError: one of these is not as said.
    """
    return ArraysSource(
        names=names,
        files=files,
        person=_columns(person),
        id=id,
        aside=aside,
        spelled=spelled,
        at=at,
        types=types or {},
        nobody=nobody,
        functions=_functions(map),
    )


def reader(
    function: Callable[[Path], Any],
    path: str,
    *,
    person: Columns | Via,
    id: str | None = None,
    aside: float = 0.0,
    spelled: str = "{}",
    at: str | None = None,
    types: Mapping[str, str] | None = None,
    nobody: Nobody = "refuse",
    map: Functions = (),
) -> Any:
    """Rows of a file, or of a folder, that a function of your own reads: the last resort, for a format of your own.

    The function sees everybody's rows, and the service leaves rows out afterwards. So that it mixes no people is your
    word, and certificates say so.

    Args:
        function: of the module: from the path to a pandas frame or an Arrow table. It can open nothing else.
        path: beneath the recipe's root.
        person, id, aside, spelled, at, types, nobody, map: as in ``table``.

    Raises:
        RecipeError: one of these is not as said.
    """
    return ReaderSource(
        path=path,
        function=getattr(function, "__name__", repr(function)),
        call=function,
        person=_columns(person),
        id=id,
        aside=aside,
        spelled=spelled,
        at=at,
        types=types or {},
        nobody=nobody,
        functions=_functions(map),
    )


def public(path: str, sha256: str) -> Any:
    """A file without people: pretrained weights, a tokenizer, a list of cities. The operator vouches for that.

    Args:
        path: beneath the recipe's root.
        sha256: the digest of its bytes, 64 hexadecimal digits.

    Raises:
        RecipeError: one of these is not as said.
    """
    return PublicFile(path, sha256)


def weights(path: str, sha256: str) -> Any:
    """A model that was trained elsewhere on everybody whom the sources name: a file for the first version alone.

    The recipe gets its path when the model is registered, and gives ``ul.Recipe(weights=...)``. Later it gets None:
    an update starts from what the service keeps, and a retraining from nothing. The exact methods begin with one.

    Args:
        path: beneath the recipe's root.
        sha256: the digest of its bytes, 64 hexadecimal digits.

    Raises:
        RecipeError: one of these is not as said.
    """
    return WeightsFile(path, sha256)


def via(path: str, key: str, person: str) -> Via:
    """The people of a row, by another table: ``via("orders.parquet", "order", "customer")``.

    Args:
        path: the other table, beneath the recipe's root.
        key: the column that both tables have. A key that stands twice there names several people.
        person: the column of people in the other table.

    Raises:
        RecipeError: one of these is not as said.
    """
    return Via(path, key, person)


def source_to_json(source: Source) -> dict[str, Any]:
    """Return the source as plain JSON, without its functions."""
    words = {name: value for name, value in asdict(source).items() if name not in ("functions", "call")}
    return {"kind": type(source).__name__, **words, "via": isinstance(source.person, Via)}


def source_from_json(record: Mapping[str, Any]) -> Source:
    """Read what ``source_to_json`` wrote. Raises RecipeError, KeyError, TypeError for anything else."""
    kinds = {kind.__name__: kind for kind in (TableSource, QuerySource, FolderSource, ArraysSource, ReaderSource)}
    words = {name: value for name, value in record.items() if name not in ("kind", "via")}
    words["person"] = Via(**words["person"]) if record["via"] else tuple(words["person"])
    return kinds[record["kind"]](**words)


def require_beneath(path: str) -> tuple[str, ...]:
    """Return the components of a path beneath a root. Raises RecipeError for one that could lead elsewhere."""
    components = tuple(path.split("/")) if isinstance(path, str) else ()
    if not components or any(part in ("", ".", "..") or "\0" in part for part in components):
        raise RecipeError(
            f"The path {path!r} is not one beneath the recipe's folder.",
            "Write it from that folder on, without a leading /, . or ..: 'data/patients.csv'.",
        )
    return components


def format_by_suffix(path: str) -> str:
    """Return the format that the suffix names. Raises RecipeError where it names none."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in SUFFIXES:
        what = f"The suffix of {path!r} names no format."
        raise RecipeError(what, f"It may end with {', '.join(SUFFIXES)}; a table may also say format=: {_FORMATS}.")
    return SUFFIXES[suffix]


def _columns(person: Columns | Via) -> tuple[str, ...] | Via:
    if isinstance(person, Via):
        return person
    return (person,) if isinstance(person, str) or not isinstance(person, Iterable) else tuple(person)


def _functions(map: Functions) -> tuple[Callable[..., Any], ...]:
    return tuple(map) if isinstance(map, Sequence) else (map,)


def _require_name(role: str, name: object) -> None:
    if not isinstance(name, str) or not name or name == ROW:
        raise RecipeError(f"{role} names the column {name!r}.", f"Name a column by a text other than {ROW!r}.")
