"""The formats in which a model may be published as bytes, recognised by their content.

The list says what may pass; what is on none of its lines is refused, a pickle among it. A file is read to its last
byte where its format allows that, so nothing lies behind it. No line opens a file by its library.
"""

from __future__ import annotations

import io
import json
import math
import pickletools  # nosec B403
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

DEEPEST = 200
"""nested values in a UBJSON file"""
ARCHIVE = "archive of several files"
PICKLES = frozenset({"pkl", "pickle", "joblib", "dill", "pt", "pth", "sav"})
"""suffixes of pickled files"""
LARGEST_ARCHIVE = 2**32 - 1
"""bytes; beyond this a zip needs its 64-bit form, which no archive has"""
MOST_FILES = 2**16 - 2
"""of an archive, for the same reason"""
LONGEST_NAME = 200
"""letters of a file's name with its folders: it is unpacked where paths are short, too"""


def format_of(data: bytes) -> str | None:
    """Return the name of the format, a key of ``FORMATS``; None where it is none of them, or opens as a pickle."""
    return None if _is_pickle(data) else next((name for name, reads in FORMATS.items() if _reads(reads, data)), None)


def _reads(reads: Callable[[bytes], bool], data: bytes) -> bool:
    try:
        return reads(data)
    except Exception:  # what is of another format fails in many ways
        return False


def _is_pickle(data: bytes) -> bool:
    """Tell whether ``pickle.load`` would find an end: some formats' first bytes are instructions of a pickle too."""
    try:
        return any(code.name == "STOP" for code, _, _ in pickletools.genops(data))
    except Exception:  # what is no pickle fails in many ways
        return False


def _is_safetensors(data: bytes) -> bool:
    """https://huggingface.co/docs/safetensors: the tensors fill the file behind its header, without a gap."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length]) if data[8:9] == b"{" else None
    if not isinstance(header, dict) or 8 + length > len(data):
        return False
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    if not all(isinstance(entry["dtype"], str) and isinstance(entry["shape"], list) for entry in tensors):
        return False
    return _fill(sorted(tuple(entry["data_offsets"]) for entry in tensors), len(data) - 8 - length)


def _fill(spans: list[tuple[int, ...]], size: int) -> bool:
    """Tell whether spans (start, end), in order, fill ``size`` bytes without a gap."""
    end = 0
    for start, stop in spans:
        if start != end or stop < start:
            return False
        end = stop
    return end == size


def _is_json(data: bytes) -> bool:
    """XGBoost's and CatBoost's JSON, and any other: one object."""
    return data[:1] == b"{" and isinstance(json.loads(data), dict)


_LIGHTGBM_LINE = re.compile(
    r"|tree|average_output|end of trees|feature_importances:|parameters:|end of parameters|Tree=\d+"
    r"|[^=\x00-\x1f\x7f]+=[^\x00-\x1f\x7f]*|\[[^\x00-\x1f\x7f:]+:[^\x00-\x1f\x7f]*\]|pandas_categorical:[^\x00-\x1f\x7f]*"
)


def _is_lightgbm(data: bytes) -> bool:
    """Every line is one that LightGBM writes: a section's name, or a name with its value."""
    if not data.startswith(b"tree\nversion="):
        return False
    lines = data.decode().split("\n")
    return "end of trees" in lines and all(_LIGHTGBM_LINE.fullmatch(line.removesuffix("\r")) for line in lines)


def _is_array(data: bytes) -> bool:
    """One array of numpy without objects, to the file's last byte."""
    file = io.BytesIO(data)
    if data[:6] != b"\x93NUMPY":
        return False
    version = np.lib.format.read_magic(file)
    reads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, kind = reads[version](file)
    return not kind.hasobject and bool(len(data) - file.tell() == math.prod(shape) * kind.itemsize)


def _is_ubjson(data: bytes) -> bool:
    """XGBoost's UBJSON: one object to the last byte, with the members of a booster."""
    names: list[str] = []
    end = _ubjson_end(data, 0, DEEPEST, names)
    return data[:1] == b"{" and end == len(data) and {"learner", "version"} <= {*names}


_UBJSON_SIZES = {b"Z": 0, b"N": 0, b"T": 0, b"F": 0, b"i": 1, b"U": 1, b"C": 1, b"I": 2, b"l": 4, b"d": 4}
_UBJSON_SIZES |= {b"L": 8, b"D": 8}
_UBJSON_COUNTS = {b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q"}


def _ubjson_count(data: bytes, place: int) -> tuple[int, int]:
    """Return a count and the place behind it."""
    form = _UBJSON_COUNTS[data[place : place + 1]]
    (count,) = struct.unpack_from(form, data, place + 1)
    if count < 0:
        raise ValueError("a count below 0")
    return count, place + 1 + struct.calcsize(form)


def _ubjson_end(data: bytes, place: int, deepest: int, names: list[str], kind: bytes = b"") -> int:
    """Return the place behind a value of a kind, or of the kind that stands there; note the outermost names.

    Raises ValueError, KeyError or struct.error where there is no value.
    """
    if not kind:
        kind, place = data[place : place + 1], place + 1
    if kind in _UBJSON_SIZES:
        end = place + _UBJSON_SIZES[kind]
    elif kind in (b"S", b"H"):
        length, start = _ubjson_count(data, place)
        end = start + length
    elif kind in (b"[", b"{") and deepest:
        end = _ubjson_container_end(data, place, deepest - 1, names, is_object=kind == b"{")
    else:
        raise ValueError("no value of UBJSON")
    if end > len(data):
        raise ValueError("the value ends behind the file")
    return end


def _ubjson_container_end(data: bytes, place: int, deepest: int, names: list[str], *, is_object: bool) -> int:
    kind, count = b"", None
    if data[place : place + 1] == b"$":
        kind, place = data[place + 1 : place + 2], place + 2
        if data[place : place + 1] != b"#":
            raise ValueError("a kind without a count")
    if data[place : place + 1] == b"#":
        count, place = _ubjson_count(data, place + 1)
    if not is_object and kind in _UBJSON_SIZES and count is not None:
        return place + count * _UBJSON_SIZES[kind]
    closing, done = b"}" if is_object else b"]", 0
    while done != count:
        if count is None and data[place : place + 1] == closing:
            return place + 1
        if is_object:
            length, start = _ubjson_count(data, place)
            place = start + length
            if deepest == DEEPEST - 1:
                names.append(data[start:place].decode())
        place = _ubjson_end(data, place, deepest, names, kind)
        done += 1
    return place


_ONNX_MODEL = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_ONNX_GRAPH = {1: 2, 2: 2, 5: 2, 10: 2, 11: 2, 12: 2, 13: 2, 14: 2, 15: 2, 16: 2}
"""the numbers of the fields of ModelProto and GraphProto in onnx.proto, and their wire types"""


def _is_onnx(data: bytes) -> bool:
    """A ModelProto of known fields: a version, sets of operators and a graph, which is a GraphProto."""
    model = dict(_protobuf(data, _ONNX_MODEL))
    return data[:1] == b"\x08" and {1, 7, 8} <= model.keys() and bool(dict(_protobuf(model[7], _ONNX_GRAPH)))


def _protobuf(data: bytes, known: Mapping[int, int]) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each field to the last byte. Raises ValueError for a field that is not known."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        if known.get(tag >> 3) != tag & 7:
            raise ValueError("no field of this message")
        value, end = _varint(data, place)
        place, end = (end, end + value) if tag & 7 else (place, end)
        if end > len(data):
            raise ValueError("the field ends behind the file")
        yield tag >> 3, data[place:end]
        place = end


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        value |= (data[place + count] & 0x7F) << (7 * count)
        if data[place + count] < 0x80:
            return value, place + count + 1
    raise ValueError("a number of more than ten bytes")


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("no file of this format")


@dataclass
class _Cursor:
    """A place in bytes, which moves on as they are read. Its methods raise ValueError or struct.error at their end."""

    data: bytes
    place: int = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        start, self.place = self.place, self.place + struct.calcsize(form)
        return struct.unpack_from(form, self.data, start)

    def skip(self, size: int) -> None:
        self.place += size
        _require(self.place <= len(self.data))

    def skip_vector(self, size: int) -> int:
        """Read a count, and so many entries of ``size`` bytes. Return the count."""
        (count,) = self.unpack("<Q")
        self.skip(count * size)
        return int(count)

    def read_vector(self, kind: str) -> np.ndarray[Any, Any]:
        """Read a count, and so many numbers of a type of numpy, (count,)."""
        start = self.place + 8
        count = self.skip_vector(np.dtype(kind).itemsize)
        return np.ndarray((count,), kind, self.data, start)


_FAISS_FLAT = frozenset({b"IxFI", b"IxF2", b"IxFl"})
_FAISS_GRAPH, _FAISS_LISTS = frozenset({b"IHNf"}), frozenset({b"IwFl"})
_FAISS_MAPS = frozenset({b"IxMp", b"IxM2"})
"""the four letters that an index of faiss begins with"""


def _is_faiss(data: bytes) -> bool:
    """An index of faiss whose vectors are whole floats, to its last byte: flat, HNSW of a flat one, or IVF whose
    centroids are one of these; also with a map of ids around it (``IndexIDMap``).

    What packs or turns vectors (PQ, SQ, PCA), indexes of bits, and lists that lie in another file are not recognised.
    https://github.com/facebookresearch/faiss, faiss/impl/index_write.cpp.
    """
    cursor = _Cursor(data)
    _skip_faiss(cursor, _FAISS_FLAT | _FAISS_GRAPH | _FAISS_LISTS | _FAISS_MAPS)
    return cursor.place == len(data)


def _skip_faiss(cursor: _Cursor, codes: Set[bytes]) -> tuple[int, int]:
    """Read an index of one of these codes. Return how many numbers a vector of it has, and how many vectors it has.

    Raises ValueError or struct.error where there is none.
    """
    code, width, count, first, second, trained, metric = cursor.unpack("<4siqqqBi")
    _require(code in codes and first == second == 1 << 20 and width > 0 <= count and trained < 2 and 0 <= metric < 64)
    if metric > 1:
        cursor.unpack("<f")
    if code in _FAISS_FLAT:
        _require(cursor.skip_vector(4) == width * count)
    elif code in _FAISS_GRAPH:
        _skip_faiss_graph(cursor, count)
        _require(_skip_faiss(cursor, _FAISS_FLAT) == (width, count))
    elif code in _FAISS_LISTS:
        _skip_faiss_lists(cursor, width, count)
    else:
        _require(_skip_faiss(cursor, _FAISS_FLAT | _FAISS_GRAPH | _FAISS_LISTS) == (width, count))
        _require(cursor.skip_vector(8) == count)
    return width, count


def _skip_faiss_graph(cursor: _Cursor, count: int) -> None:
    """Read the layers of an HNSW of ``count`` vectors: their odds and sizes, and the neighbours of each vector."""
    layers = cursor.skip_vector(8)
    _require(cursor.skip_vector(4) == layers + 1)
    _require(cursor.skip_vector(4) == count)
    ends = cursor.read_vector("<u8")
    _require(len(ends) == count + 1 and cursor.skip_vector(4) == ends[-1])
    cursor.unpack("<5i")  # where a search begins, and how wide it is


def _skip_faiss_lists(cursor: _Cursor, width: int, count: int) -> None:
    """Read centroids and lists of an IVF, whose lists together have ``count`` vectors of ``width`` numbers."""
    lists, _ = cursor.unpack("<QQ")
    _require(_skip_faiss(cursor, _FAISS_FLAT | _FAISS_GRAPH) == (width, lists))
    (kind,) = cursor.unpack("<B")
    places = cursor.skip_vector(8)
    pairs = cursor.skip_vector(16) if kind == 2 else 0
    _require((kind, places, pairs) in {(0, 0, 0), (1, count, 0), (2, 0, count)})
    code, again, size, form = cursor.unpack("<4sQQ4s")
    _require((code, again, size) == (b"ilar", lists, 4 * width))
    sizes = cursor.read_vector("<u8")
    if form == b"sprs":  # number and size of each list that is not empty
        _require(len(sizes) % 2 == 0 and bool((sizes[::2] < lists).all()))
        sizes = sizes[1::2]
    else:
        _require(form == b"full" and len(sizes) == lists)
    _require(sum(sizes.tolist()) == count)
    cursor.skip(count * (size + 8))


def _is_hnswlib(data: bytes) -> bool:
    """An index as ``saveIndex`` of hnswlib writes it, to its last byte: sizes, then vectors with their lowest layer,
    then the higher layers of each vector. https://github.com/nmslib/hnswlib, hnswlib/hnswalg.h.
    """
    form = "<QQQQQQiIQQQdQ"
    (start, most, count, element, label, offset, top, entry, links, links_0, m, factor, _) = struct.unpack_from(
        form, data
    )
    if start or count > most or not m or (links, links_0) != (m, 2 * m) or offset != 4 * links_0 + 4:
        return False
    if label != element - 8 or label < offset or not math.isclose(factor, 1 / math.log(m), rel_tol=1e-6):
        return False
    place, layer, lengths = struct.calcsize(form) + count * element, 4 * links + 4, {0}
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, place)
        place += 4 + length
        lengths.add(length)
    whole = place == len(data) and not any(length % layer for length in lengths)
    return bool(whole and max(lengths) == max(top, 0) * layer and (entry < count or not count))


def _is_catboost(data: bytes) -> bool:
    """CatBoost's binary model: ``CBM1``, a length, and a FlatBuffer whose first text names its version."""
    code, length = struct.unpack_from("<4sI", data)
    core = data[8 : 8 + length]
    (root,) = struct.unpack_from("<I", core)
    (back,) = struct.unpack_from("<i", core, root)
    fields, _, first = struct.unpack_from("<HHH", core, root - back)
    (text,) = struct.unpack_from("<I", core, root + first)
    (size,) = struct.unpack_from("<I", core, root + first + text)
    version = core[root + first + text + 4 :][:size]
    return code == b"CBM1" and len(core) == length and fields >= 6 and version.startswith(b"FlabuffersModel_v")


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Write several files as one: a zip, ordered by name, without compression or dates.

    The same files give the same bytes on every machine, under every version of Python.

    Raises:
        ValueError: they are more, or larger together, than a zip holds without its 64-bit form.
    """
    size = sum(len(name) + len(content) for name, content in files.items())
    size += sum(len(name) for name in files) + len(files) * (_LOCAL.size + _CENTRAL.size) + _END.size
    if len(files) > MOST_FILES or size > LARGEST_ARCHIVE:
        most = f"it may have {MOST_FILES} files and {LARGEST_ARCHIVE} bytes"
        raise ValueError(f"{len(files)} files make an archive of {size} bytes; {most}.")
    return b"".join(_archive_blocks(files))


def files_of(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive by name, in its order: the opposite of ``archive_of``.

    Raises:
        ValueError: the bytes differ from what ``archive_of`` writes for these files, a name is one that
            ``why_misnamed`` refuses, or it is one file, which is published as it is.
    """
    try:
        files = dict(_archive_entries(data))
        written = len(files) > 1 and why_misnamed(files) is None and _is_written(files, data)
    except (struct.error, UnicodeDecodeError):
        written = False
    if not written:
        raise ValueError(f"These {len(data)} bytes are no archive of several files. Give a published .zip, unchanged.")
    return files


def is_archive(data: bytes) -> bool:
    """Tell whether ``files_of`` reads it, whatever the formats of its files are."""
    try:
        return bool(files_of(data))
    except ValueError:
        return False


_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def why_misnamed(names: Iterable[object]) -> tuple[str, str] | None:
    """Return what is wrong with the names of files that are published together, and what to do; None: nothing is."""
    lower: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not all(map(_COMPONENT.fullmatch, name.split("/"))):
            hint = "Use letters, digits, '.', '_' and '-', and / between folders: 'en/model.json'."
            return f"A file is named {name!r}.", hint
        if wrong := _why_not_alone(name):
            return wrong
        if name.lower() in lower:
            return f"Two files have one name but for its case: {name!r}.", "Give each its own name."
        lower.add(name.lower())
    folders = {"/".join(name.split("/")[:depth]) for name in lower for depth in range(1, name.count("/") + 1)}
    if lower & folders:
        return f"The name {min(lower & folders)!r} is that of a file and of a folder.", "Give each its own name."
    return None


def _why_not_alone(name: str) -> tuple[str, str] | None:
    """Return what is wrong with a name whatever the others are."""
    if len(name) > LONGEST_NAME:
        return f"The name of a file has {len(name)} letters: {name!r}.", f"Use {LONGEST_NAME} at most."
    suffixes = name.rpartition("/")[2].lower().split(".")[1:]
    if PICKLES & set(suffixes):
        hint = (
            "Write what it learned in a format that runs no code, and name it after that: safetensors.torch.save("
            "model.state_dict()) as 'model.safetensors', json.dumps of a vocabulary or coefficients as 'model.json'."
        )
        return f"The name {name!r} is that of a pickled file, which runs code.", hint
    if suffixes[-1:] == ["zip"]:
        return f"The name {name!r} is that of an archive.", "Give the files that are in it, each under its name."
    return None


# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3: a header before each content; all of them again,
# with more of each, behind the last; an end
_LOCAL, _CENTRAL, _END = struct.Struct("<4s5H3I2H"), struct.Struct("<4s2B5H3I5H2I"), struct.Struct("<4s4H2IH")
_ZIP_VERSION, _UNIX = 20, 3
_FIRST_DAY = 1 << 5 | 1
"""1 January 1980, the first that a zip can hold"""
_PLAIN_FILE = 0o100644 << 16


def _archive_blocks(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the bytes of the archive of these files, header by header and content by content."""
    place, central = 0, []
    for name in sorted(files):
        path, content = name.encode(), files[name]
        stored = (0, 0, 0, _FIRST_DAY, zlib.crc32(content), len(content), len(content), len(path), 0)
        local = _LOCAL.pack(b"PK\3\4", _ZIP_VERSION, *stored)
        attributes = (0, 0, 0, _PLAIN_FILE, place)
        central += [_CENTRAL.pack(b"PK\1\2", _ZIP_VERSION, _UNIX, _ZIP_VERSION, *stored, *attributes), path]
        yield from (local, path, content)
        place += len(local) + len(path) + len(content)
    yield from central
    yield _END.pack(b"PK\5\6", 0, 0, len(files), len(files), sum(map(len, central)), place, 0)


def _is_written(files: Mapping[str, bytes], data: bytes) -> bool:
    """Tell whether ``archive_of`` writes these files as ``data``, without a copy. Raises struct.error for too many."""
    place = 0
    for block in _archive_blocks(files):
        if not data.startswith(block, place):
            return False
        place += len(block)
    return place == len(data)


def _archive_entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each entry from the first byte on. Nothing but these two is looked at.

    Raises struct.error or UnicodeDecodeError where a header is cut or a name is not ASCII.
    """
    place = 0
    while data.startswith(b"PK\3\4", place):
        size, length = _LOCAL.unpack_from(data, place)[8:10]
        start = place + _LOCAL.size + length
        yield data[place + _LOCAL.size : start].decode("ascii"), data[start : start + size]
        place = start + size


def _is_archive_of_formats(data: bytes) -> bool:
    """An archive, each of whose files is of a format of the list, and no archive itself."""
    return all(not is_archive(content) and format_of(content) is not None for content in files_of(data).values())


def _is_zip(data: bytes) -> bool:
    """A zip file that begins at the first byte and ends with the last, all of whose members are of a plain format:
    JSON, arrays, HDF5, or one zip file of these more.
    """
    return _holds_plain(data, nested=True)


def _holds_plain(data: bytes, *, nested: bool) -> bool:
    if data[:4] != b"PK\x03\x04":
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = file.infolist()
        if file.comment or not data.endswith(b"\0\0") or not _fill(_spans(file, members), file.start_dir):
            return False
        if len({member.filename for member in members}) < len(members):
            return False
        return all(member.is_dir() or _is_plain(file.read(member), nested=nested) for member in members)


def _spans(file: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> list[tuple[int, ...]]:
    """Return where each member lies, (start, end), in order. One with a description behind it ends where the next
    begins.
    """
    starts = sorted(member.header_offset for member in members)
    ends = dict(zip(starts, [*starts[1:], file.start_dir], strict=True))
    spans: list[tuple[int, ...]] = []
    for member in sorted(members, key=lambda member: member.header_offset):
        name, extra = struct.unpack_from("<HH", _bytes_at(file, member.header_offset, 30), 26)
        end = member.header_offset + 30 + name + extra + member.compress_size
        described = member.flag_bits & 8 and ends[member.header_offset] - end in (12, 16, 20, 24)
        spans.append((member.header_offset, ends[member.header_offset] if described else end))
    return spans


def _bytes_at(file: zipfile.ZipFile, place: int, count: int) -> bytes:
    assert file.fp is not None  # noqa: S101 (for mypy)
    file.fp.seek(place)
    return file.fp.read(count)


def _is_plain(data: bytes, *, nested: bool) -> bool:
    if _is_pickle(data):
        return False
    if data[:1] in (b"{", b"["):
        json.loads(data)
        return b"__lambda__" not in data  # Keras: a function as code
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        return True
    return _reads(_is_array, data) or (nested and _holds_plain(data, nested=False))


FORMATS: Mapping[str, Callable[[bytes], bool]] = {
    "safetensors": _is_safetensors,
    "JSON": _is_json,
    "UBJSON of XGBoost": _is_ubjson,
    "LightGBM text": _is_lightgbm,
    "npy without objects": _is_array,
    ARCHIVE: _is_archive_of_formats,
    "zip of JSON and arrays": _is_zip,
    "ONNX": _is_onnx,
    "faiss": _is_faiss,
    "hnswlib": _is_hnswlib,
    "CatBoost": _is_catboost,
}
"""what reads each format; skops and Keras write zip files of JSON and arrays (Keras: HDF5)"""
