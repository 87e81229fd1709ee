"""``expunge certificate``: check a certificate of erasure offline, with the public key alone; or show one."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from expunge_client.certificates import LogKey, parsed, verify_certificate
from expunge_client.cli.client import REQUESTS, connect
from expunge_client.cli.completion import Request
from expunge_client.cli.output import USAGE, CommandError, errors, show_facts
from expunge_client.errors import NotAuthentic

commands = typer.Typer(no_args_is_help=True, help="Certificates of erasure: show, verify.")


@commands.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="The certificate, as GET .../certificate answers it.")],
    key: Annotated[Path, typer.Option(help="The log's public key (name+hash+base64), as in log.vkey.")],
    log: Annotated[
        Path | None,
        typer.Option(help="An exported audit log, to compare the claim with; it also has the retired keys."),
    ] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option(help="A safetensors file that it is about.")] = None,
    opening: Annotated[str | None, typer.Option(help="The opening, from the answer to the request.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="The person's id in the request; repeated for each id.")
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Which sample it named; may be repeated.")] = None,
    case: Annotated[str | None, typer.Option(help="The case that the request named; needed if it named one.")] = None,
) -> None:
    """Check a certificate offline: signature, proofs, files, and the person it names.

    Exit code 0: everything that was given fits. 1: something does not. 2: it could not be checked.
    """
    if bool(subject) + bool(sample) != (opening is not None):
        raise CommandError("An opening opens one name.", "Give --opening with --subject, or with --sample.", USAGE)
    certificate, trusted, export = _certificate(file), _key(key), None if log is None else _export(log)
    try:
        found = verify_certificate(
            certificate,
            trusted,
            log=export,
            opening=None if opening is None else _digits(opening),
            subject_ids=subject or None,
            sample_ids=sample or None,
            case_id=case,
        )
    except NotAuthentic as error:
        hint = "Signed before the key was rotated? Give the exported log with --log." if log is None else ""
        raise CommandError(f"The certificate does not verify. {error}", hint) from None
    files = [_name_of(found.statement, each) for each in checkpoint or []]
    facts = _facts(found.statement)
    facts |= {"log": found.compared, "files": files, "opening": "fits" if opening else "not given"}
    facts["fingerprint"] = LogKey.parse(trusted).fingerprint
    show_facts(facts)


@commands.command("show")
def show(
    request: Request,
    out: Annotated[Path | None, typer.Option(help="Write it to this file, as the service answers it.")] = None,
    statement: Annotated[bool, typer.Option("--statement", help="Only what it states, decoded.")] = False,
) -> None:
    """Print the certificate of a completed request as JSON: a DSSE envelope over an in-toto statement."""
    with connect() as client:
        text = client.text(f"{REQUESTS}/{client.whole_id(REQUESTS, request)}/certificate")
    if statement:
        text = json.dumps(json.loads(b64decode(json.loads(text)["payload"])), indent=2)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text)
        errors.print(f"written: {out}", markup=False)


def _key(path: Path) -> str:
    try:
        return str(LogKey.parse(path.read_bytes().decode()))
    except (NotAuthentic, OSError, ValueError) as error:
        hint = "`expunge up` writes it to log.vkey in its home; every certificate names it under audit.key."
        raise CommandError(f"The public key cannot be read. {error}", hint, USAGE) from None


def _export(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        parsed(raw.splitlines()[-1])["checkpoint"]
    except (OSError, ValueError, LookupError, TypeError):
        raise CommandError(
            f"{path} is not an exported log.", "`expunge audit export FILE` writes one.", USAGE
        ) from None
    return raw


def _certificate(path: Path) -> dict[str, Any]:
    try:
        envelope = parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} is not a certificate. {type(error).__name__}", "", USAGE) from None
    if not isinstance(envelope, dict):
        raise CommandError(f"{path} is not a certificate.", "It is a JSON object: a DSSE envelope.", USAGE)
    return envelope


def _digits(opening: str) -> str:
    try:
        return bytes.fromhex(opening).hex()
    except ValueError:
        raise CommandError("The opening is not hexadecimal.", "It has 64 digits.", USAGE) from None


def _name_of(statement: dict[str, Any], path: Path) -> str:
    """Return the name under which the certificate knows the file."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CommandError(f"{path} cannot be read. {error.strerror}", "", USAGE) from None
    for each in statement["subject"]:
        if each["digest"].get("sha256") == digest:
            return str(each["name"])
    raise CommandError(f"{path} is none of the files that the certificate is about.", "Another version, or damaged?")


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
    worlds = [line for part in predicate["models"] if (line := _walls(part)) is not None]
    return {
        "verified": True,
        "request": predicate["request"],
        "received_at": _at(predicate, "received_at"),
        "completed_at": _at(predicate, "completed_at"),
        "subjects": [each["name"] for each in statement["subject"]],
        "claims": [f"{part['model']}: {_guarantee(part)}" for part in predicate["models"]],
        **({"worlds": worlds} if worlds else {}),
        "no claim about": [
            f"{_at(each, 'model')}: {_at(each, 'reason')}" for each in ended if isinstance(each, Mapping)
        ],
        "together": f"epsilon {epsilon} at delta {delta}" if together else "no claim",
        "from_these_versions_on": _at(limit, "statement") if limit else "no bound",
        # a certificate of the first format says it of what may follow, later ones of all that they claim
        "in_plain_words": " ".join(map(str, said)) if isinstance(said, list) else _at(limit, "in_plain_words"),
        "entries_in_log": len(predicate["audit"]["entries"]),
    }


def _guarantee(part: Any) -> Any:
    """Return what certificates until 22 November 2026 call the claim's basis."""
    return _at(part, "claim", "guarantee") or _at(part, "claim", "basis")


def _walls(part: Any) -> str | None:
    """Return in few words how the version was walled in, and what the operator vouches for; None: not on record."""
    world = _at(part, "claim", "world")
    if world is None:
        return None
    files, repeats, walls = (_at(world, name) for name in ("public_files", "repeats", "walls"))
    stood = "behind a new root" if walls == "new root" else f"walls on the operator's word ({walls})"
    runs = "two runs were equal" if repeats is True else "two runs differed" if repeats is False else "not run twice"
    count = len(files) if isinstance(files, list) else "unknown"
    vouched = f"code sha256:{_at(world, 'code')}, {count} public files, {_at(world, 'own_readers')} own readers"
    return f"{part['model']}: {stood}; {runs}; the operator vouches for {vouched}"


def _at(value: Any, *names: str) -> Any:
    """Return what lies at this path; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
