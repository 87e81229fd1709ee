"""``expunge-client``: delete, status and verify, with httpx and cryptography alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from expunge_client.certificates import verify_certificate
from expunge_client.client import Expunge
from expunge_client.errors import ExpungeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where the service refuses, or the certificate does not verify."""
    given = _parser().parse_args(arguments)
    service, key = os.environ.get("EXPUNGE_URL"), os.environ.get("EXPUNGE_API_KEY")
    try:
        if given.command == "verify":
            log = None if given.log is None else given.log.read_bytes()
            found = verify_certificate(given.certificate.read_bytes(), given.key.read_text(), log=log)
            answer: object = {"verified": True, "log": found.compared, "statement": found.statement}
        elif service is None or key is None:
            print("error: No service is named. Set EXPUNGE_URL and EXPUNGE_API_KEY.", file=sys.stderr)  # noqa: T201
            return 1
        else:
            with Expunge(service, key) as client:
                asked = given.command == "delete"
                answer = client.delete(subject_id=_subject(given.subject)) if asked else client.request(given.request)
    except (ExpungeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(answer, indent=2))  # noqa: T201
    return 0


def _subject(text: str) -> str:
    return sys.stdin.read().strip() if text == "-" else text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="expunge-client",
        description="Ask Expunge for a deletion, follow it, verify its certificate. Answers are JSON. EXPUNGE_URL and "
        "EXPUNGE_API_KEY name the service.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    delete = commands.add_parser("delete", help="ask for the deletion of a person from every model")
    delete.add_argument("--subject", required=True, help="the person's id; - reads it from standard input")
    status = commands.add_parser("status", help="show a deletion request")
    status.add_argument("request", help="its id")
    verify = commands.add_parser("verify", help="verify a certificate, without a service")
    verify.add_argument("certificate", type=Path)
    verify.add_argument("--key", type=Path, required=True, help="the log's public key, as in log.vkey")
    verify.add_argument("--log", type=Path, help="an exported audit log, to compare the claim with")
    return parser
