"""A folder with one version: the checkpoint, its bill of materials and, with a key, a signature over both."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from expunge_client import NotAuthentic, archive_digests
from expunge_client.archives import ARCHIVE
from expunge_connect.registry.bom import Facts, bill_of_materials

BOM, SIGNATURE = "bom.cdx.json", "model.sig"
_BLOCK = 1 << 20


class Download(Protocol):
    def __call__(self, path: str, target: Path) -> None:
        """Write what ``path`` of the service answers to ``target``."""


def write_bundle(folder: Path, model: Facts, version: Facts, download: Download, key: Path | None = None) -> list[str]:
    """Write the version's files into ``folder``; return their names.

    Args:
        key: a private key in PEM for OpenSSF model signing; ``model_signing verify key`` checks the signature.

    Raises:
        NotAuthentic: the checkpoint's SHA-256 is not the version's, or its suffix is ``zip`` and it is no archive.
        ImportError: the extra ``registry`` is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / name_of(version)
    download(f"/v1/models/{version['model']}/versions/{version['number']}/checkpoint", checkpoint)
    if _sha256(checkpoint) != version["checkpoint_sha256"]:
        checkpoint.unlink()
        raise NotAuthentic(f"The checkpoint of {version['model']} {version['number']} arrived with other bytes.")
    files = archive_digests(checkpoint) if version.get("checkpoint_suffix") == ARCHIVE else None
    (folder / BOM).write_text(bill_of_materials(model, version, files))
    names = [checkpoint.name, BOM]
    if key is not None:
        _sign(folder, key)
        names.append(SIGNATURE)
    return names


def name_of(version: Facts) -> str:
    """Return the name of the version's file in the bundle: ``model.safetensors``, or with its library's suffix; of
    several files ``model.zip``.
    """
    return f"model.{version.get('checkpoint_suffix', 'safetensors')}"


def _sign(folder: Path, key: Path) -> None:
    from model_signing import hashing, signing  # noqa: PLC0415 (an extra)

    left_out = hashing.Config().set_ignored_paths(paths=[folder / SIGNATURE])
    config = signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(left_out)
    config.sign(folder, folder / SIGNATURE)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
