"""Search by likeness: which photos look like this one? An index of hnswlib (HNSW) over embeddings that exist already.

Guarantee: `exact`. Register with `--method shards`; its option `shards` says how many indexes the people are parted
into. `--method retrain` builds a single one.
Cost of a deletion: one of the five indexes is built again, of a fifth of the people.
Delete one person: `expunge delete --subject person-17 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing, but the vectors have to be each person's own: an encoder that was trained on these people is a
model, with a deletion of its own.

hnswlib's own ``mark_deleted`` hides a vector, and its bytes stay in the file; a graph that was built with it keeps the
paths that led over it. After a deletion here each file is byte for byte that of photos without the person's. The graph
follows from the order of the rows, one thread and one seed. Two machines with other vector instructions may differ.

What is published: each vector, with a label. Both are personal data of those who remain, and of faces they are
biometric. Here names of photos name people, so a label is a keyed number of the photo: whoever has the key and your
table can look it up, and nobody else. So give the files to nobody who may not see the photos, and delete the person's
rows from your table too. Until the grace period is over, earlier versions with the person lie in the store.

One graph cannot be merged from several, so `shards` publishes an archive with an index for each shard. An application
asks all of them (``nearest``):

    files = unlearning.formats.files_of(archive)  # of `retrain`: the one index as it is
    labels, distances = nearest([opened(content) for content in files.values()], vectors, 10)
    photo_of = dict(zip(ul.person_numbers(photos, KEY).tolist(), photos))  # photos: the names in your table

``photos.jsonl`` is made up by ``photos.py``. Put yours in its place, and read the key from a file of yours.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import hnswlib
import numpy as np

import unlearning as ul

SPACE, WIDTH, LINKS, BREADTH, NEAREST, SEED = "cosine", 16, 8, 60, 5, 0
KEY = b"replace me by 32 secret bytes"


def recipe(
    rows: ul.Rows = ul.table("photos.jsonl", person="person", id="photo", aside=0.1),
) -> ul.Published:
    vectors, labels = rows["vector"], ul.person_numbers(rows["photo"].tolist(), KEY).numpy()
    index = hnswlib.Index(SPACE, WIDTH)
    index.init_index(max_elements=len(vectors), M=LINKS, ef_construction=BREADTH, random_seed=SEED)
    index.add_items(vectors, labels, num_threads=1)  # several link the vectors in another order each time
    return ul.Published(
        {"index.hnswlib": saved(index)},
        score=lambda kept_apart: recall(index, vectors, labels, kept_apart["vector"]),
    )


def saved(index: hnswlib.Index) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save_index(str(path))
        return path.read_bytes()


def opened(content: bytes) -> hnswlib.Index:
    """Open an index, which does not say by itself how wide its vectors are and how they are compared."""
    index = hnswlib.Index(SPACE, WIDTH)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        path.write_bytes(content)
        index.load_index(str(path))
    return index


def nearest(indexes: Sequence[hnswlib.Index], asked: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and distances (n, count) of the vectors of all indexes that are nearest to ``asked`` (n, WIDTH)."""
    answers = []
    for index in indexes:
        index.set_ef(max(BREADTH, count))
        answers.append(index.knn_query(asked, min(count, index.element_count), num_threads=1))
    labels, distances = (np.concatenate(parts, axis=1) for parts in zip(*answers, strict=True))
    order = np.argsort(distances, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(labels, order, axis=1), np.take_along_axis(distances, order, axis=1)


def recall(index: hnswlib.Index, vectors: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> float:
    """Return the share of the nearest neighbours of ``asked`` (n, WIDTH) that the index finds."""
    count = min(NEAREST, len(vectors))
    answers, _ = nearest([index], asked, count)
    lengths = np.outer(np.linalg.norm(asked, axis=1), np.linalg.norm(vectors, axis=1))
    wanted = labels[np.argsort(-(asked @ vectors.T) / lengths, axis=1)[:, :count]]
    return float(np.mean([len(np.intersect1d(*pair)) / count for pair in zip(answers, wanted, strict=True)]))
