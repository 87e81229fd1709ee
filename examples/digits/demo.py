"""The whole path on real data, in a temporary home: train, publish, forget one person, check the record.

``make demo`` runs this. Everything it shows comes from the running service; the last line of standard output is
one JSON object with the same facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from expunge_client.cli.client import Account, Client

MODEL, PERSON = "digits", "person-007"
EXPUNGE = [sys.executable, "-m", "expunge_client.cli.main"]
START_SECONDS = 120


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="expunge-demo-") as home:
        print(f"Expunge demo. Everything lives in {home}, and goes with it.", file=sys.stderr)
        environment = clean_environment(Path(home))
        with running(Path(home), environment) as account, Client(account) as client:
            facts = demonstrate(client, environment)
    print(json.dumps(facts))
    if not facts["audit_verified"]:
        sys.exit(1)


def demonstrate(client: Client, environment: dict[str, str]) -> dict[str, Any]:
    """Register, delete, look: each step is the command that a user would type."""
    expunge(
        "models",
        "add",
        MODEL,
        "--recipe",
        "digits",
        "--method",
        "recollection",
        "--guarantee",
        "proved",
        **environment,
    )
    before = client.get(f"/v1/models/{MODEL}/versions/current")
    expunge("delete", "--subject", PERSON, "--wait", **environment)
    request = next(client.pages("/v1/deletion-requests", model=MODEL))
    after = client.get(f"/v1/models/{MODEL}/versions/current")
    expunge("versions", MODEL, **environment)
    verified = expunge("audit", "verify", check=False, **environment)
    claim, budget = after["claim"], client.get(f"/v1/models/{MODEL}/budget")
    facts = {
        "model": MODEL,
        "version_before": before["number"],
        "version_after": after["number"],
        "samples_forgotten": after["samples"],
        "holdout_accuracy_before": before["holdout_accuracy"],
        "holdout_accuracy_after": after["holdout_accuracy"],
        "latency_seconds": round(seconds_between(request["received_at"], after["published_at"]), 3),
        "certificate": {
            name: claim[name]
            for name in ("method", "guarantee", "reference", "max_distance", "noise_std", "epsilon", "delta")
        },
        "budget": {name: budget[name] for name in ("spent", "limit", "updates_left")},
        "audit_verified": verified,
    }
    say(facts, claim["statement"])
    return facts


def say(facts: dict[str, Any], statement: str) -> None:
    """The facts in words, on standard error. ``statement`` is the certificate's own sentence."""
    before, after = facts["holdout_accuracy_before"], facts["holdout_accuracy_after"]
    lines = (
        f"{PERSON} is forgotten: {facts['samples_forgotten']} samples, {facts['latency_seconds']:.1f} s after asking.",
        f"Accuracy on held-out data: {before:.1%} before, {after:.1%} after.",
        f"Certificate ({facts['certificate']['guarantee']}): {statement}",
        f"Budget: enough for {facts['budget']['updates_left']:,} more updates.",
        f"Audit log: {'verified' if facts['audit_verified'] else 'NOT verified'}.",
    )
    print("\n" + "\n".join(lines), file=sys.stderr)


def expunge(*arguments: str, check: bool = True, **environment: str) -> bool:
    """Run one command, its output on standard error. Did it succeed? Ends the demo where it must and did not."""
    print(f"\n$ expunge {' '.join(arguments)}", file=sys.stderr, flush=True)
    code = subprocess.run([*EXPUNGE, *arguments], env=environment, stdout=sys.stderr, check=False).returncode
    if check and code:
        raise SystemExit(f"`expunge {arguments[0]}` failed with exit code {code}.")
    return code == 0


@contextmanager
def running(home: Path, environment: dict[str, str]) -> Iterator[Account]:
    """`expunge up` on a free port, stopped afterwards."""
    print("\n$ expunge up", file=sys.stderr, flush=True)
    process = subprocess.Popen([*EXPUNGE, "up", "--port", "0"], env=environment, stdout=sys.stderr)
    try:
        yield await_account(process, home)
    finally:
        process.terminate()
        process.wait(30)


def await_account(process: subprocess.Popen[bytes], home: Path) -> Account:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        account = Account.read(home)
        if account:
            return account
        time.sleep(0.1)
    raise SystemExit("`expunge up` did not become ready; see its messages above.")


def clean_environment(home: Path) -> dict[str, str]:
    """Ours, without the settings of another installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    recipes = str(Path(__file__).resolve().parents[1])
    return kept | {"EXPUNGE_HOME": str(home), "EXPUNGE_RECIPES": recipes, "EXPUNGE_REGULATION": "gdpr"}


def seconds_between(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


if __name__ == "__main__":
    main()
