"""Formats of models that are bytes: those of the list pass, whatever else is inside or behind does not."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import pytest
import torch
import xgboost
from safetensors.numpy import save as save_tensors
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from unlearning.formats import ARCHIVE, FORMATS, archive_of, format_of

DRAWS = np.random.default_rng(0)
X = DRAWS.random((80, 3)).astype(np.float32)
Y = (X[:, 0] > 0.5).astype(np.int64)
MODEL = LogisticRegression().fit(X, Y)
PICKLE = pickle.dumps({"weights": [1.0, 2.0]})


def zipped(
    compression: int = zipfile.ZIP_STORED, comment: bytes = b"", /, *, pairs: Any = (), **members: bytes
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in [*members.items(), *pairs]:
            archive.writestr(name.replace("_", "."), content)
        archive.comment = comment
    return file.getvalue()


def array(values: Any, *, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(values), version=version)
    return file.getvalue()


def arrays(**named: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **named)
    return file.getvalue()


def boosted(format: str, **settings: Any) -> bytes:
    booster = xgboost.train({"nthread": 1, **settings}, xgboost.DMatrix(X, Y, nthread=1), 3)
    return bytes(booster.save_raw(format))


def leaves(**settings: Any) -> bytes:
    trained = lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1, min_child_samples=2, **settings).fit(X, Y)
    return str(trained.booster_.model_to_string()).encode()


def field(number: int, value: bytes | int) -> bytes:
    """Return a field of a protobuf message; below 128 a number or length is one byte."""
    return bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value


NODE = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Identity"))
ONNX = field(1, 8) + field(2, b"hand") + field(7, NODE + field(2, b"g")) + field(8, field(1, b"") + field(2, 13))


def faiss(code: bytes = b"IxF2", count: int = 5, metric: int = 1) -> bytes:
    return faiss_head(code, count, metric) + struct.pack("<Q", 3 * count) + X[:count].tobytes()


def faiss_head(code: bytes, count: int = 5, metric: int = 1) -> bytes:
    argument = b"\0\0\x40\x40" if metric > 1 else b""
    return struct.pack("<4siqqqBi", code, 3, count, 1 << 20, 1 << 20, 1, metric) + argument


def listed(kind: str, *values: float) -> bytes:
    """Return a count and so many numbers."""
    return struct.pack(f"<Q{len(values)}{kind}", len(values), *values)


def faiss_graph(between: bytes = b"", neighbours: int = 20) -> bytes:
    """Return an HNSW of five vectors, each with four neighbours."""
    layers = listed("d", 0.9, 0.1) + listed("i", 0, 4, 6) + listed("i", *[1] * 5)
    links = listed("Q", 0, 4, 8, 12, 16, 20) + listed("i", *[0] * neighbours)
    return faiss_head(b"IHNf") + layers + links + struct.pack("<5i", 0, 0, 40, 16, 1) + between + faiss()


def faiss_lists(
    form: bytes = b"full", sizes: tuple[int, ...] = (3, 0, 2), lists: bytes = b"ilar", places: bytes = b"\0" + bytes(8)
) -> bytes:
    """Return an IVF of three centroids and five vectors, of which two lists have some."""
    start = faiss_head(b"IwFl") + struct.pack("<QQ", 3, 1) + faiss(count=3) + places
    kept = struct.pack("<4sQQ4s", lists, 3, 12, form) + listed("Q", *sizes)
    return start + kept + X[:3].tobytes() + bytes(24) + X[:2].tobytes() + bytes(16)


def faiss_map(index: bytes, count: int = 5) -> bytes:
    return faiss_head(b"IxM2") + index + listed("q", *range(count))


def hnswlib(count: int = 4, m: int = 4) -> bytes:
    element = 8 * m + 4 + 12 + 8
    head = struct.pack("<QQQQQQ", 0, 9, count, element, element - 8, 8 * m + 4)
    head += struct.pack("<iIQQQdQ", 1, 0, m, 2 * m, m, 1 / math.log(m), 100)
    lists = [struct.pack("<I", 4 * m + 4) + bytes(4 * m + 4), *[bytes(4)] * (count - 1)]
    return head + bytes(count * element) + b"".join(lists)


def catboost(core_behind: bytes = b"", behind: bytes = b"") -> bytes:
    """Return a model whose FlatBuffer has a root table of one field, the text of its version."""
    version = b"FlabuffersModel_v1"
    table = struct.pack("<IHHH", 10, 6, 8, 4) + struct.pack("<iI", 6, 4)
    core = table + struct.pack("<I", len(version)) + version + b"\0" + core_behind
    return b"CBM1" + struct.pack("<I", len(core)) + core + behind


HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(40)
KERAS = {
    "metadata_json": b'{"keras_version": "3.9"}',
    "config_json": b'{"module": "keras", "class_name": "Sequential"}',
}
REAL: dict[str, tuple[str, bytes]] = {
    "safetensors": ("safetensors", save_tensors({"a": X, "b": Y}, {"made by": "hand"})),
    "safetensors of nothing": ("safetensors", save_tensors({})),
    "LightGBM": ("LightGBM text", leaves()),
    "LightGBM forest": ("LightGBM text", leaves(boosting_type="rf", bagging_freq=1, bagging_fraction=0.5)),
    "LightGBM linear": ("LightGBM text", leaves(linear_tree=True)),
    "XGBoost JSON": ("JSON", boosted("json")),
    "XGBoost UBJSON": ("UBJSON of XGBoost", boosted("ubj")),
    "XGBoost linear": ("UBJSON of XGBoost", boosted("ubj", booster="gblinear")),
    "XGBoost dart": ("UBJSON of XGBoost", boosted("ubj", booster="dart")),
    "array": ("npy without objects", array(X)),
    "array of records": ("npy without objects", array(np.zeros(3, [("a", "<f8"), ("b", "<i4")]), version=(2, 0))),
    "array of nothing": ("npy without objects", array(np.zeros((0, 3)))),
    "several files": (ARCHIVE, archive_of({"model.txt": leaves(), "scaler.npz": arrays(mean=X), "words.json": b"{}"})),
    "arrays": ("zip of JSON and arrays", arrays(a=X, b=Y)),
    "skops": ("zip of JSON and arrays", zipped(schema_json=b'{"__class__": "X"}', a_npy=array(X), b_npz=arrays(a=X))),
    "skops, compressed": ("zip of JSON and arrays", zipped(zipfile.ZIP_DEFLATED, schema_json=b"{}", a_npy=array(X))),
    "Keras": ("zip of JSON and arrays", zipped(**KERAS, model_h5=HDF5)),
    "ONNX": ("ONNX", ONNX),
    "faiss": ("faiss", faiss()),
    "faiss, Lp": ("faiss", faiss(b"IxFl", metric=4)),
    "faiss, HNSW": ("faiss", faiss_graph()),
    "faiss, IVF": ("faiss", faiss_lists()),
    "faiss, IVF with few full lists": ("faiss", faiss_lists(b"sprs", (0, 3, 2, 2))),
    "faiss, IVF with the place of each vector": ("faiss", faiss_lists(places=b"\1" + listed("q", *range(5)))),
    "faiss, ids": ("faiss", faiss_map(faiss_lists())),
    "hnswlib": ("hnswlib", hnswlib()),
    "CatBoost": ("CatBoost", catboost(behind=b"counters")),
}


@pytest.mark.parametrize("kind", REAL)
def test_a_format_of_the_list_is_recognised(kind: str) -> None:
    name, data = REAL[kind]
    assert format_of(data) == name


def test_each_format_of_the_list_is_tried() -> None:
    assert {name for name, _ in REAL.values()} == set(FORMATS)


def dumped(model: Any, compress: Any) -> bytes:
    file = io.BytesIO()
    joblib.dump(model, file, compress=compress)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("model.pkl")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    return file.getvalue()


def gap(data: bytes) -> bytes:
    """Return a safetensors file with a hole behind its first tensor, which holds a pickle."""
    tensors = {"a": (0, 4), "b": (4 + len(PICKLE), 8 + len(PICKLE))}
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": [*span]} for name, span in tensors.items()}
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data[:4] + PICKLE + data[:4]


FOREST = RandomForestClassifier(3, random_state=0).fit(X, Y)
HOSTILE: dict[str, bytes] = {
    **{
        f"joblib {name} {compressor} {level}": dumped(model, (compressor, level))
        for name, model in {"model": MODEL, "forest": FOREST, "array": X}.items()
        for compressor in ("zlib", "gzip", "bz2", "lzma", "xz")
        for level in (1, 9)
    },
    **{f"joblib {name}": dumped(model, 0) for name, model in {"model": MODEL, "forest": FOREST, "array": X}.items()},
    **{f"protocol {protocol}": pickle.dumps([1.5, "a"], protocol) for protocol in range(6)},
    **{f"model, protocol {protocol}": pickle.dumps(MODEL, protocol) for protocol in range(6)},
    **{
        f"compressed by {pack.__module__}": pack(PICKLE)
        for pack in (zlib.compress, gzip.compress, bz2.compress, lzma.compress)
    },
    "objects": array(np.array([{"a": 1}], dtype=object)),
    "records with objects": array(np.zeros(2, [("a", "O")])),
    "arrays with objects": arrays(a=X, b=np.array([{}], dtype=object)),
    "zip": zipped(model_pkl=PICKLE),
    "zip of two": zipped(schema_json=b"{}", model_bin=PICKLE),
    "zip of protocol 0": zipped(schema_json=b"{}", model_json=pickle.dumps([1], 0)),
    "zip of text": zipped(model_txt=b"anything"),
    "zip of zip": zipped(schema_json=b"{}", a_npz=zipped(a_npy=PICKLE)),
    "zip of zip of zip": zipped(schema_json=b"{}", a_npz=zipped(a_npz=zipped(a_npy=array(X)))),
    "zip of joblib": zipped(schema_json=b"{}", a_npy=dumped(X, 3)),
    "zip of arrays with objects": zipped(schema_json=b"{}", a_npy=array(np.array([{}], dtype=object))),
    "zip with a pickle as its comment": zipped(zipfile.ZIP_STORED, PICKLE, schema_json=b"{}"),
    "zip behind a pickle": PICKLE + zipped(schema_json=b"{}"),
    "zip before a pickle": zipped(schema_json=b"{}") + PICKLE,
    "Keras with a function": zipped(**KERAS, a_json=b'{"class_name": "__lambda__"}', model_h5=HDF5),
    "tar": tarred(PICKLE),
    "torch": torch_file(),
    "LightGBM before a pickle": leaves() + PICKLE,
    "LightGBM before protocol 0": leaves() + pickle.dumps([1.5, "a"], 0),
    "LightGBM's header before a pickle": b"tree\nversion=v4\nend of trees\n" + PICKLE,
    "LightGBM cut": leaves().partition(b"end of trees")[0],
    "JSON before a pickle": boosted("json") + PICKLE,
    "UBJSON before a pickle": boosted("ubj") + PICKLE,
    "UBJSON that is no booster": b"{i\x01aT}",
    "safetensors before a pickle": save_tensors({"a": X}) + PICKLE,
    "safetensors around a pickle": gap(X.tobytes()),
    "array before a pickle": array(X) + PICKLE,
    "ONNX before a pickle": ONNX + PICKLE,
    "ONNX with a field of its own": ONNX + field(13, PICKLE),
    "faiss before a pickle": faiss() + PICKLE,
    "faiss with another header": faiss()[:16] + bytes(8) + faiss()[24:],
    "faiss of packed vectors": faiss(b"IxSQ"),
    "faiss, HNSW before a pickle": faiss_graph() + PICKLE,
    "faiss, HNSW around a pickle": faiss_graph(PICKLE),
    "faiss, HNSW with too many neighbours": faiss_graph(neighbours=21),
    "faiss, IVF before a pickle": faiss_lists() + PICKLE,
    "faiss, IVF whose lists lie in another file": faiss_lists(lists=b"ilod"),
    "faiss, IVF whose lists are longer": faiss_lists(sizes=(3, 1, 2)),
    "faiss, IVF with a list that is none": faiss_lists(b"sprs", (0, 3, 3, 2)),
    "faiss, IVF with too many places": faiss_lists(places=b"\1" + listed("q", *range(6))),
    "faiss, ids before a pickle": faiss_map(faiss()) + PICKLE,
    "faiss, ids around a pickle": faiss_map(faiss() + PICKLE),
    "faiss, ids of others": faiss_map(faiss(), count=6),
    "faiss, ids of ids": faiss_map(faiss_map(faiss())),
    "hnswlib before a pickle": hnswlib() + PICKLE,
    "hnswlib around a pickle": hnswlib()[:-4] + struct.pack("<I", len(PICKLE)) + PICKLE,
    "hnswlib with a layer that its header lacks": hnswlib()[:-4] + struct.pack("<I", 40) + bytes(40),
    "CatBoost of nothing": b"CBM1\0\0\0\0" + PICKLE,
    # B"C" of a pickle is a string of the next byte's length, "B": 66 bytes, and then its instructions
    "CatBoost that is a pickle": catboost(core_behind=bytes(19) + b"0" + PICKLE),
    "one byte": b"1",
    "text": b"anything",
    "a list": b"[1, 2]",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_other_is_refused(kind: str) -> None:
    assert format_of(HOSTILE[kind]) is None


def test_a_catboost_file_that_is_a_pickle_too_would_be_opened_by_pickle() -> None:
    assert pickle.loads(HOSTILE["CatBoost that is a pickle"]) == {"weights": [1.0, 2.0]}


@pytest.mark.parametrize("kind", [kind for kind, (name, _) in REAL.items() if name in ("faiss", "hnswlib")])
def test_an_index_that_is_cut_anywhere_is_refused(kind: str) -> None:
    _, data = REAL[kind]
    assert [cut for cut in range(len(data)) if format_of(data[:cut]) is not None] == []
    assert format_of(data + b"\0") is None


@pytest.mark.parametrize("rows", [0, 2, 80])
@pytest.mark.parametrize("metric", [0, 1, 2])
@pytest.mark.parametrize(
    "factory", ["Flat", "HNSW8,Flat", "IVF4,Flat", "IVF40,Flat", "IDMap,Flat", "IDMap2,HNSW8,Flat", "IDMap2,IVF4,Flat"]
)
def test_what_faiss_writes_is_recognised_to_its_last_byte(factory: str, metric: int, rows: int) -> None:
    library = pytest.importorskip("faiss", reason="unverified here: faiss is not installed")
    index = library.index_factory(3, factory, metric)
    index.train(X)
    if factory.startswith("IDMap"):
        index.add_with_ids(X[:rows], np.arange(rows))
    else:
        index.add(X[:rows])
    data = library.serialize_index(index).tobytes()
    assert format_of(data) == "faiss"
    assert [format_of(data[:-1]), format_of(data + b"\0"), format_of(data + PICKLE)] == [None] * 3


@pytest.mark.parametrize("factory", ["SQ8", "PQ3x4", "PCA2,Flat", "LSH"])
def test_an_index_of_faiss_that_is_not_listed_is_refused(factory: str) -> None:
    library = pytest.importorskip("faiss", reason="unverified here: faiss is not installed")
    index = library.index_factory(3, factory)
    index.train(X)
    index.add(X)
    assert format_of(library.serialize_index(index).tobytes()) is None


@pytest.mark.parametrize("rows", [0, 1, 2, 80])
@pytest.mark.parametrize("space", ["l2", "ip", "cosine"])
def test_what_hnswlib_writes_is_recognised_to_its_last_byte(tmp_path: Path, space: str, rows: int) -> None:
    library = pytest.importorskip("hnswlib", reason="unverified here: hnswlib is not installed")
    index = library.Index(space, 3)
    index.init_index(max_elements=max(rows, 1), M=4)
    if rows:
        index.add_items(X[:rows], np.arange(rows))
    index.save_index(str(tmp_path / "index"))
    data = (tmp_path / "index").read_bytes()
    assert format_of(data) == "hnswlib"
    assert [format_of(data[:-1]), format_of(data + b"\0"), format_of(data + PICKLE)] == [None] * 3


def test_no_bytes_end_in_an_error() -> None:
    """Each file of the list, cut and with bytes changed by a seed."""
    dice = random.Random(5)
    for name, data in REAL.values():
        for _ in range(60):
            changed = bytearray(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.5 else data)
            for _ in range(dice.randrange(4)):
                if changed:
                    changed[dice.randrange(min(len(changed), 200))] = dice.randrange(256)
            assert format_of(bytes(changed)) in (None, *FORMATS), name
    for _ in range(300):
        format_of(dice.randbytes(dice.randrange(200)))
