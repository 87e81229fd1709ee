"""Search by meaning: which earlier questions are like a new one? An index of faiss (IVF) over embedded texts.

Guarantee: `exact`. Register with `--method shards`; its option `shards` says how many indexes the people are parted
into. `--method retrain` builds a single one.
Cost of a deletion: one of the five indexes is built again, of a fifth of the people, and the others are copied beside
it. Nobody else's text is embedded again.
Delete one person: `expunge delete --subject writer-17 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing. An encoder of yours is a file that you declare public: see ``embed``.

faiss's own ``remove_ids`` takes a vector out of its list. The centroids stay, and are means of what was in the lists:
from one and the vectors that stay the deleted vector can be computed. After a deletion here the file is byte for byte
that of questions without the person's.

What is published: each vector, with the number of its question; an application looks the text up by the number, in a
table of its own. Both are personal data of those who remain: a text can be guessed from its vector, and your table
leads from the number to the writer. So give the file to nobody who may not read the questions, delete the person's rows
from your table too, and choose numbers that say nothing, as these: no ids of people, no counter that tells who asked
when. Until the grace period is over, earlier versions with the person lie in the store.

    index = faiss.read_index("index.faiss")
    distances, numbers = index.search(vectors, 10)  # vectors: (n, 48) float32, made by embed; -1: there are no more

``questions.csv`` is made up by ``questions.py``. Put yours in its place: one line for each text.
"""

import zlib

import faiss
import numpy as np

import unlearning as ul

WIDTH, ROWS_PER_LIST, LISTS_READ, NEAREST, SEED = 48, 12, 2, 5, 0


def embed(block: ul.Rows) -> np.ndarray:
    """Return a vector (n, WIDTH) float32 of length 1 for each text of one writer: the sum of its words' vectors.

    A word's vector is drawn by a checksum of its letters, and so fitted on nothing. For an encoder of yours add a
    parameter ``encoder: Path`` here, and to ``recipe`` the same with ``ul.public(path, sha256)`` as its default.
    """
    sums = np.stack([sum(map(vector_of, text.split())) for text in block["text"]])
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)


def vector_of(word: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(WIDTH)


def recipe(
    rows: ul.Rows = ul.table("questions.csv", person="writer", id="question", aside=0.1, map=embed),
) -> ul.Published:
    faiss.omp_set_num_threads(1)  # so that no sum follows from how a machine shares its work out
    vectors, numbers = rows.map(embed), rows["question"].astype(np.int64)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(WIDTH), WIDTH, max(1, len(rows) // ROWS_PER_LIST))
    index.cp.seed, index.cp.min_points_per_centroid, index.nprobe = SEED, 1, LISTS_READ
    index.train(vectors)
    index.add_with_ids(vectors, numbers)
    return ul.Published(
        {"index.faiss": faiss.serialize_index(index).tobytes()},
        score=lambda kept_apart: recall(index, vectors, numbers, kept_apart.map(embed)),
    )


def recall(index: faiss.Index, vectors: np.ndarray, numbers: np.ndarray, asked: np.ndarray) -> float:
    """Return the share of the nearest neighbours of ``asked`` (n, WIDTH) that the index finds."""
    count = min(NEAREST, len(vectors))
    _, answers = index.search(asked, count)
    distances = ((asked[:, None] - vectors) ** 2).sum(axis=2)
    nearest = numbers[np.argsort(distances, axis=1)[:, :count]]
    return float(np.mean([len(np.intersect1d(*pair)) / count for pair in zip(answers, nearest, strict=True)]))


def merge(members: list[dict[str, bytes]]) -> ul.Published:
    """Put the lists of several indexes beside each other in one, each with the centroid that its own shard learnt."""
    indexes = [faiss.deserialize_index(np.frombuffer(member["index.faiss"], np.uint8)) for member in members]
    centroids = faiss.IndexFlatL2(WIDTH)
    for index in indexes:
        centroids.add(index.quantizer.reconstruct_n(0, index.nlist))
    merged = faiss.IndexIVFFlat(centroids, WIDTH, centroids.ntotal)
    merged.nprobe, merged.ntotal = sum(index.nprobe for index in indexes), sum(index.ntotal for index in indexes)
    lists = [(index.invlists, number) for index in indexes for number in range(index.nlist)]
    for place, (of_shard, number) in enumerate(lists):
        count = of_shard.list_size(number)
        merged.invlists.add_entries(place, count, of_shard.get_ids(number), of_shard.get_codes(number))
    return ul.Published({"index.faiss": faiss.serialize_index(merged).tobytes()})
