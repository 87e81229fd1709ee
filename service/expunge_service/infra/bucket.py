"""Folders in a bucket of an object store that speaks S3, for hosts without a shared disk.

A PUT is atomic, and durable when it is answered. There is no rename: it is a copy and then a deletion, so a crash may
leave both names. There is no writing in place: bytes are overwritten by replacing the object, on the condition that
it was not replaced meanwhile. A bucket that keeps old versions would keep what was deleted, so it is refused.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from expunge_service.infra.files import MARK, Chunk, Entry, Folder
from expunge_service.infra.settings import SettingsError

try:
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
    from obstore.store import S3Store
except ImportError:  # pragma: no cover (an extra)
    raise SettingsError(
        "A setting names a bucket (s3://), and the software for buckets is not installed: pip install 'expunge[s3]'"
    ) from None

if TYPE_CHECKING:
    from obstore import UpdateVersion

REQUEST_SECONDS, RETRY_SECONDS = 300, 20
"""for one object, up or down; after the latter a failing request is not repeated"""
PROMPT_SECONDS = 10
"""the same for small objects that a transaction waits for, a second of repetitions included"""
TRIES = 100
"""to overwrite an object that others overwrite at the same time"""
IN_MEMORY_BYTES = 1 << 20
"""a larger object that is opened is kept in a temporary file without a name"""
WRONG_TAG = '"0"'


class Bucket(Folder):
    """The objects under one prefix. Credentials and endpoint come from the ``AWS_*`` variables of the environment."""

    overwrites_in_place = False

    def __init__(self, url: str, store: S3Store, prefix: str = "") -> None:
        self._url = url
        self._store = store
        self._prefix = prefix

    @classmethod
    def at(cls, url: str) -> Bucket:
        """Open ``s3://bucket/prefix``. No request is sent."""
        return cls(url, _client(url, REQUEST_SECONDS, RETRY_SECONDS))

    def promptly(self, seconds: int | None = None) -> Bucket:
        return Bucket(self._url, _client(self._url, (seconds or PROMPT_SECONDS) - 1, 1))

    def __str__(self) -> str:
        return self._url

    def inside(self, name: str) -> Bucket:
        return Bucket(f"{self._url}/{name}", self._store, f"{self._prefix}{name}/")

    def entries(self) -> Iterator[Entry]:
        with self._told():
            found = self._store.list_with_delimiter(self._prefix or None)["objects"]
        for each in found:
            yield Entry(each["path"].rpartition("/")[2], each["last_modified"].timestamp())

    def blank(self) -> bool:
        """Return whether it is empty. Raises ValueError where there is no such bucket."""
        try:
            return super().blank()
        except OSError as error:
            if "NoSuchBucket" in str(error):
                raise ValueError(f"{self._url}: there is no such bucket. Correct its name, or make it first.") from None
            raise

    def holds(self, name: str) -> bool:
        try:
            with self._told():
                self._store.head(self._prefix + name)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str) -> BinaryIO:
        """Fetch the whole object; return it as a file that no other process can reach."""
        with self._told():
            found = self._store.get(self._prefix + name)
            if found.meta["size"] <= IN_MEMORY_BYTES:
                return io.BytesIO(found.bytes())
            file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
            for part in found.stream():
                file.write(part)
        file.seek(0)
        return file

    def write(self, name: str, chunks: Sequence[Chunk]) -> None:
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        with self._told():
            self._store.put(self._prefix + name, bytes(data), use_multipart=False)

    def create(self, name: str, data: bytes) -> None:
        try:
            with self._told():
                self._store.put(self._prefix + name, data, mode="create", use_multipart=False)
        except FileExistsError:
            if self.read(name) != data:  # else it is our own: the first answer was lost, and the request repeated
                raise

    def add(self, name: str, chunks: Sequence[Chunk], *, lasting: bool = True) -> None:  # noqa: ARG002
        self.create(name, b"".join(chunks))

    def sync(self) -> None:
        """Return at once: what was answered is durable."""

    def overwrite(self, name: str, pieces: Mapping[int, bytes]) -> None:
        def overwritten(before: bytes | None) -> bytes:
            if before is None:
                raise FileNotFoundError(errno.ENOENT, "no such object", self._url)
            data = bytearray(before)
            for offset, piece in pieces.items():
                data[offset : offset + len(piece)] = piece
            return bytes(data)

        self.update(name, overwritten)

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        path = self._prefix + name
        for _ in range(TRIES):
            before, condition = self._read_for_update(path)
            after = change(before)
            if after == before:
                return
            try:
                with self._told():
                    self._store.put(path, after, mode=condition, use_multipart=False)
            except (BlockingIOError, FileExistsError):  # another process was first: what it wrote must stay so
                continue
            return
        raise OSError(errno.EIO, f"{name} in {self._url} was replaced by others {TRIES} times")

    def _read_for_update(self, path: str) -> tuple[bytes | None, Literal["create"] | UpdateVersion]:
        """Return the object's bytes, and the condition under which they are still the newest."""
        try:
            with self._told():
                found = self._store.get(path)
                return bytes(found.bytes()), {"e_tag": found.meta["e_tag"]}
        except FileNotFoundError:
            return None, "create"

    def rename(self, name: str, target: str) -> None:
        self._copy(name, target)
        with self._told():
            self._store.delete(self._prefix + name)

    def _copy(self, name: str, target: str) -> None:
        with self._told():
            self._store.copy(self._prefix + name, self._prefix + target, overwrite=True)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._prefix + name for name in names]
        if paths:
            with self._told():
                self._store.delete(paths)

    def check(self) -> None:
        """Write the mark again, to see whether versions are kept and conditions on a PUT are heeded."""
        path, data = self._prefix + MARK, self.read(MARK)
        conditions: tuple[Literal["create"] | UpdateVersion, ...] = ("create", {"e_tag": WRONG_TAG})
        for condition in conditions:
            try:
                with self._told():
                    self._store.put(path, data, mode=condition, use_multipart=False)
            except (FileExistsError, BlockingIOError):
                continue
            raise ValueError(
                f"{self._url}: the server of this bucket ignores conditions on a PUT (If-None-Match, If-Match), so two "
                "workers could undo each other's deletions. Use a server that heeds them, such as AWS S3, MinIO, "
                "Ceph or SeaweedFS in a present release."
            )
        with self._told():
            tag = self._store.head(path)["e_tag"]
            written = self._store.put(path, data, mode={"e_tag": tag}, use_multipart=False)
        if written["version"] is not None:
            raise ValueError(
                f"{self._url}: this bucket keeps old versions of its objects, so what is deleted would stay there. "
                "Use a bucket without versioning, object lock and replication: one where it was never switched on."
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what the object store says as an OSError, in one line."""
        try:
            yield
        except AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, "the object exists", self._url) from None
        except PreconditionError:
            raise BlockingIOError(errno.EAGAIN, "the object was replaced meanwhile", self._url) from None
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", self._url) from None
        except BaseError as error:
            said = " ".join(str(error).partition("\n\nDebug")[0].split())
            raise OSError(errno.EIO, f"the bucket did not do it: {said[:300]}", self._url) from None


def _client(url: str, request_seconds: int, retry_seconds: int) -> S3Store:
    return S3Store.from_url(
        url,
        client_options={
            "timeout": f"{request_seconds}s",
            "connect_timeout": "5s",
            # options given here replace those of the environment
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
        retry_config={"retry_timeout": timedelta(seconds=retry_seconds)},
    )
