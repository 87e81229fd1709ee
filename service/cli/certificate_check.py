"""``expunge certificate verify``: check a certificate of erasure offline, with the log's public key alone."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expunge.service.audit.import_export import Export, read_export
from expunge.service.audit.signed_note import NotAuthentic, Verifier
from expunge.service.certificates.envelope import FORMATS, accepted_commitment, verify, verify_with_log
from expunge.service.cli.output import USAGE, CommandError
from expunge.service.requests.intake import Order, commitment

_BLOCK = 1 << 20


def check(
    file: Path,
    key: Path,
    *,
    log: Path | None,
    checkpoints: Sequence[Path],
    opening: str | None,
    subjects: Sequence[str],
    samples: Sequence[str],
    case: str | None,
) -> dict[str, Any]:
    """Return what the certificate says. Raises CommandError where anything that was given does not fit it.

    Args:
        file: the certificate.
        key: the log's public key.
        log: an exported log, with which the claim is compared; its retired keys are believed too.
        checkpoints: files that the certificate is to be about.
        opening: opens whom the request named: ``subjects`` or ``samples``, and its ``case``.
    """
    order = _order(opening, subjects, samples, case)
    verifier, export = _key(key), None if log is None else _export(log)
    try:
        envelope = _read(file)
        statement = verify(envelope, verifier) if export is None else verify_with_log(envelope, *export, verifier)
    except NotAuthentic as error:
        hint = "Signed before the key was rotated? Give the exported log with --log." if log is None else ""
        raise CommandError(f"The certificate does not verify. {error}", hint) from None
    files = [_check_file(statement, path) for path in checkpoints]
    if order is not None and opening is not None:
        _check_opening(statement, opening, order)
    compared = "claim not compared with the log" if export is None else _compared(statement, export)
    return _facts(statement) | {"log": compared, "files": files, "opening": "fits" if order else "not given"}


def _order(opening: str | None, subjects: Sequence[str], samples: Sequence[str], case: str | None) -> Order | None:
    """Return whom the opening must fit; None: no opening was given."""
    named = bool(subjects) + bool(samples)
    if named != (opening is not None):
        raise CommandError("An opening opens one name.", "Give --opening with --subject, or with --sample.", USAGE)
    if opening is None:
        return None
    return Order(subject_ids=tuple(subjects), sample_ids=tuple(samples) if samples else None, case_id=case)


def _key(path: Path) -> Verifier:
    try:
        return Verifier.load(path)
    except (NotAuthentic, OSError, UnicodeDecodeError) as error:
        hint = "`expunge up` writes it to log.vkey in its home; every certificate names it under audit.key."
        raise CommandError(f"The public key cannot be read. {error}", hint, USAGE) from None


def _export(log: Path) -> Export:
    try:
        return read_export(log)
    except NotAuthentic as error:
        raise CommandError(str(error), "`expunge audit export FILE` writes it.", USAGE) from None


def _compared(statement: dict[str, Any], export: Export) -> str:
    compared = f"claim compared with the log of {len(export[1])} entries"
    old = statement["predicateType"] == FORMATS[0]
    return f"{compared}; certificates of this old format have no entry there" if old else compared


def _read(file: Path) -> dict[str, Any]:
    try:
        envelope = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} is not a certificate. {type(error).__name__}", "", USAGE) from None
    if not isinstance(envelope, dict):
        raise CommandError(f"{file} is not a certificate.", "It is a JSON object: a DSSE envelope.", USAGE)
    return envelope


def _check_file(statement: dict[str, Any], path: Path) -> str:
    """Return the name under which the certificate knows the file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise CommandError(f"{path} cannot be read. {error.strerror}", "", USAGE) from None
    for each in statement["subject"]:
        if each["digest"].get("sha256") == digest.hexdigest():
            return str(each["name"])
    raise CommandError(f"{path} is none of the files that the certificate is about.", "Another version, or damaged?")


def _check_opening(statement: dict[str, Any], opening: str, order: Order) -> None:
    try:
        expected = commitment(bytes.fromhex(opening), order)
    except ValueError:
        raise CommandError("The opening is not hexadecimal.", "It has 64 digits.", USAGE) from None
    if not hmac.compare_digest(accepted_commitment(statement), expected):
        raise CommandError(
            "The certificate is not about whom you named, or the opening is another request's.",
            "Name every id that the request named, and its case with --case where it had one.",
        )


def _facts(statement: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown. A certificate of an older format may lack a field, so each is looked for."""
    predicate = statement["predicate"]
    together = _at(predicate, "together")
    limit = _at(together, "from_these_versions_on")
    ended = _at(predicate, "without_version")
    ended = ended if isinstance(ended, list) else []
    numbers = [_at(together, name) for name in ("epsilon", "delta")]
    epsilon, delta = (f"{each:.4g}" if isinstance(each, int | float) else str(each) for each in numbers)
    said = _at(predicate, "in_plain_words")
    return {
        "verified": True,
        "request": predicate["request"],
        "received_at": _at(predicate, "received_at"),
        "completed_at": _at(predicate, "completed_at"),
        "subjects": [each["name"] for each in statement["subject"]],
        "claims": [f"{part['model']}: {_at(part, 'claim', 'guarantee')}" for part in predicate["models"]],
        "no claim about": [
            f"{_at(each, 'model')}: {_at(each, 'reason')}" for each in ended if isinstance(each, Mapping)
        ],
        "together": f"epsilon {epsilon} at delta {delta}" if together else "no claim",
        "from_these_versions_on": _at(limit, "statement") if limit else "no bound",
        # a certificate of the first format says it of what may follow, later ones of all that they claim
        "in_plain_words": " ".join(map(str, said)) if isinstance(said, list) else _at(limit, "in_plain_words"),
        "entries_in_log": len(predicate["audit"]["entries"]),
    }


def _at(value: Any, *names: str) -> Any:
    """Return what lies at this path; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
