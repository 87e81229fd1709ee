"""An archive of several files: listed, unpacked whole or not at all, and never out of its folder."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from expunge_client import NotAuthentic, archive_digests, unpack_archive

FILES = {"en/words.json": b'{"words": []}', "model.txt": b"tree\n" * 1000}


def archive(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def made(path: Path) -> Path:
        path.write_bytes(change(archive(path, FILES).read_bytes()))
        return path

    return made


def named(*names: str) -> Callable[[Path], Path]:
    return lambda path: archive(path, dict.fromkeys(names, b"{}"))


def twice(path: Path) -> Path:
    path.write_bytes(archive(path, {"a.json": b"{}", "b.json": b"{}"}).read_bytes().replace(b"b.json", b"a.json"))
    return path


def linked(path: Path) -> Path:
    """An entry that is a link out of the folder, and one that would be written through it."""
    entry = zipfile.ZipInfo("out")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(entry, "/tmp")
        file.writestr(zipfile.ZipInfo("out/words.json"), "{}")
    return path


def bomb(path: Path) -> Path:
    """Twenty entries of the directory that are one content."""
    data = archive(path, {"a.json": b"{}" * 1000}).read_bytes()
    (place,) = struct.unpack_from("<I", data, len(data) - 6)
    entry = data[place:-22]
    entries = [entry.replace(b"a.json", b"%c.json" % letter) for letter in b"abcdefghijklmnopqrst"]
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 20, 20, 20 * len(entry), place, 0)
    path.write_bytes(data[:place] + b"".join(entries) + end)
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no zip": (changed(lambda data: b"tree\n"), "cannot be read: File is not a zip file"),
    "cut": (changed(lambda data: data[:-30]), "cannot be read"),
    "damaged": (changed(lambda data: data.replace(b"tree", b"TREE", 1)), "cannot be read: Bad CRC-32"),
    "compressed": (lambda path: archive(path, FILES, zipfile.ZIP_DEFLATED), "'en/words.json' compressed or encrypted"),
    "empty": (named(), "holds no file"),
    "up": (named("../a.json"), r"a file named '\.\./a.json'"),
    "up inside": (named("a/../../a.json"), r"a file named 'a/\.\./\.\./a.json'"),
    "absolute": (named("/tmp/a.json"), "a file named '/tmp/a.json'"),
    "backslash": (named("..\\a.json"), "a file named"),
    "drive": (named("C:a.json"), "a file named 'C:a.json'"),
    "hidden": (named(".bashrc"), "a file named '.bashrc'"),
    "folder": (named("a/"), "a file named 'a/'"),
    "line": (named("a\nb.json"), "a file named"),
    "zero": (changed(lambda data: data.replace(b"model.txt", b"model\0txt")), r"a file named 'model\\x00txt'"),
    "twice": (twice, "several of one name"),
    "twice but for its case": (named("a.json", "A.json"), "several of one name"),
    "file and folder": (named("a", "a/b.json"), "several of one name"),
    "through a link": (linked, "several of one name"),
    "larger than itself": (bomb, "larger than itself"),
}


def test_the_files_of_an_archive_are_listed_and_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.zip", FILES)
    assert archive_digests(path) == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    unpack_archive(path, tmp_path / "far" / "model")
    assert {name: (tmp_path / "far" / "model" / name).read_bytes() for name in FILES} == FILES
    assert [each.name for each in (tmp_path / "far").iterdir()] == ["model"]


def test_what_is_in_the_folder_stays(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.zip", FILES)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(OSError, match="model"):
        unpack_archive(path, tmp_path / "model")
    assert [each.name for each in (tmp_path / "model").iterdir()] == ["mine.txt"]
    assert not (tmp_path / "model.part").exists()


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_other_archive_leaves_nothing(kind: str, tmp_path: Path) -> None:
    made, sentence = HOSTILE[kind]
    path = made(tmp_path / "model.zip")
    with pytest.raises(NotAuthentic, match=sentence):
        unpack_archive(path, tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == ["model.zip"]
    with pytest.raises(NotAuthentic, match=sentence):
        archive_digests(path)


def test_a_link_is_written_as_the_text_that_it_holds(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("out")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr(entry, "/tmp")
    unpack_archive(tmp_path / "model.zip", tmp_path / "model")
    assert (tmp_path / "model" / "out").read_text() == "/tmp" and not (tmp_path / "model" / "out").is_symlink()


def test_a_field_that_renames_an_entry_leads_nowhere(tmp_path: Path) -> None:
    """Python 3.11.2 ignores the field, and later versions rename the entry by it."""
    entry, path = zipfile.ZipInfo("a.json"), b"../../a.json"
    entry.extra = struct.pack("<HHBI", 0x7075, 5 + len(path), 1, zlib.crc32(b"a.json")) + path
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr(entry, "{}")
    with suppress(NotAuthentic):
        unpack_archive(tmp_path / "model.zip", tmp_path / "far" / "model")
    assert {each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*.json")} <= {"far/model/a.json"}
