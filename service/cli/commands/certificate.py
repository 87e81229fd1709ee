"""``expunge certificate``: check a certificate of erasure offline, with the public key alone; or fetch one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expunge.service.cli.client import REQUESTS, connect
from expunge.service.cli.completion import Request
from expunge.service.cli.output import AsJson, errors, show_facts, show_json

commands = typer.Typer(no_args_is_help=True, help="Certificates of erasure: verify, fetch.")


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
        list[str] | None, typer.Option(help="Whom the request named; repeated for each id that it named.")
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Which sample it named; may be repeated.")] = None,
    case: Annotated[str | None, typer.Option(help="The case that the request named; needed if it named one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate without service and database: its signature, its proofs, its files, whom it is about.

    Exit code 0: everything that was given fits. 1: something does not. 2: it could not be checked.
    """
    from expunge.service.cli.certificate_check import check  # noqa: PLC0415  (with the database's library; `fetch` needs none)

    facts = check(
        file,
        key,
        log=log,
        checkpoints=checkpoint or [],
        opening=opening,
        subjects=subject or [],
        samples=sample or [],
        case=case,
    )
    show_json(facts) if as_json else show_facts(facts)


@commands.command("fetch")
def fetch(
    request: Request,
    file: Annotated[Path, typer.Argument(help="Where to write the certificate.")],
) -> None:
    """Write the certificate of a request to a file."""
    with connect() as client:
        file.write_text(client.text(f"{REQUESTS}/{client.whole_id(REQUESTS, request)}/certificate"))
    errors.print(f"written: {file}", markup=False)
