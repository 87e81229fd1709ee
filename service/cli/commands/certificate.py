"""``expunge certificate``: check a certificate of erasure offline, with the public key alone; or fetch one."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from service.audit.import_export import read_export
from service.audit.signed_note import NotAuthentic, Verifier
from service.audit.verify import retired_keys
from service.audit.verify import verify as verify_log
from service.certificates.envelope import accepted_commitment
from service.certificates.envelope import verify as verify_certificate
from service.cli.client import connect
from service.cli.output import USAGE, AsJson, CommandError, errors, show_facts, show_json
from service.requests.intake import Order, commitment

commands = typer.Typer(no_args_is_help=True, help="Certificates of erasure: verify, fetch.")
_BLOCK = 1 << 20


@commands.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="The certificate, as GET .../certificate answers it.")],
    key: Annotated[Path, typer.Option(help="The log's public key (name+hash+base64), as in log.vkey.")],
    log: Annotated[Path | None, typer.Option(help="An exported audit log: for certificates of retired keys.")] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option(help="A safetensors file that it is about.")] = None,
    opening: Annotated[str | None, typer.Option(help="The opening, from the answer to the request.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="Whom the request named; repeated for each id that it named.")
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Which sample it named; may be repeated.")] = None,
    case: Annotated[str | None, typer.Option(help="The case that the request named; needed if it named one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate without service and database: its signature, its proofs, its files, whom it is about.

    Exit code 0: everything that was given fits. 1: something does not. 2: it could not be checked.
    """
    order = _order(opening, subject, sample, case)
    verifier = _key(key)
    verifiers = [verifier, *(_retired(log, verifier) if log else [])]
    try:
        statement = verify_certificate(_read(file), *verifiers)
    except NotAuthentic as error:
        hint = "Signed before the key was rotated? Give the exported log with --log." if log is None else ""
        raise CommandError(f"The certificate does not verify. {error}", hint) from None
    files = [_check_file(statement, path) for path in checkpoint or []]
    if order is not None and opening is not None:
        _check_opening(statement, opening, order)
    facts = _facts(statement) | {"files": files, "opening": "fits" if order else "not given"}
    show_json(facts) if as_json else show_facts(facts)


@commands.command("fetch")
def fetch(
    request: Annotated[str, typer.Argument(help="Id of a completed request.")],
    file: Annotated[Path, typer.Argument(help="Where to write the certificate.")],
) -> None:
    """Write the certificate of a request to a file."""
    with connect() as client:
        file.write_text(client.text(f"/v1/deletion-requests/{request}/certificate"))
    errors.print(f"written: {file}", markup=False)


def _order(
    opening: str | None, subjects: list[str] | None, samples: list[str] | None, case: str | None
) -> Order | None:
    """Return whom the opening must fit; None: no opening was given."""
    named = bool(subjects) + bool(samples)
    if named != (opening is not None):
        raise CommandError("An opening opens one name.", "Give --opening with --subject, or with --sample.", USAGE)
    if opening is None:
        return None
    return Order(subject_ids=tuple(subjects or ()), sample_ids=tuple(samples) if samples else None, case_id=case)


def _key(path: Path) -> Verifier:
    try:
        return Verifier.load(path)
    except (NotAuthentic, OSError, UnicodeDecodeError) as error:
        hint = "`expunge up` writes it to log.vkey in its home; every certificate names it under audit.key."
        raise CommandError(f"The public key cannot be read. {error}", hint, USAGE) from None


def _retired(log: Path, verifier: Verifier) -> list[Verifier]:
    """Return the earlier keys, from a log that verifies under the key in use."""
    try:
        head, entries = read_export(log)
    except NotAuthentic as error:
        raise CommandError(str(error), "`expunge audit export FILE` writes it.", USAGE) from None
    try:
        verify_log(entries, head, verifier)
        return retired_keys(entries)
    except NotAuthentic as error:
        raise CommandError(f"The audit log does not verify. {error}", "Its retired keys are not believed.") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        envelope = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
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
    predicate = statement["predicate"]
    together = predicate["together"] or {}
    limit = together.get("from_these_versions_on")
    return {
        "verified": True,
        "request": predicate["request"],
        "received_at": predicate["received_at"],
        "completed_at": predicate["completed_at"],
        "subjects": [each["name"] for each in statement["subject"]],
        "claims": [f"{part['model']}: {part['claim']['guarantee']}" for part in predicate["models"]],
        "no claim about": [f"{each['model']}: {each['reason']}" for each in predicate["without_version"]],
        "together": f"epsilon {together['epsilon']:.4g} at delta {together['delta']:g}" if together else "no claim",
        "from_these_versions_on": limit["statement"] if limit else "no bound",
        "in_plain_words": limit["in_plain_words"] if limit else None,
        "entries_in_log": len(predicate["audit"]["entries"]),
    }
