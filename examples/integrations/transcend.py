"""Transcend and Expunge: ask Transcend who is to be erased, delete them, and say which ones are done.

    pip install ./client
    EXPUNGE_API_KEY=exp_... TRANSCEND_API_KEY=... SOMBRA_KEY=... python examples/integrations/transcend.py \
        --sombra https://sombra.example.com --data-silo 00000000-0000-0000-0000-000000000000

Run it every few minutes (cron, a systemd timer). It keeps nothing: a person who is still pending is sent again under
the same Idempotency-Key, which is the same deletion for a day and a second one, of somebody who has left already,
after it. Nobody is called done before Expunge says ``completed``. The key of Expunge needs ``deletions:write`` and
``deletions:read``. Identifiers of the data silo must be the ids of people in your recipes.

**From memory**: Transcend's pages "Cron Job Integration" and "Pull identifiers / mark as complete" (docs.transcend.io),
``GET /v1/data-silo/ID/pending-requests/ERASURE`` and ``PUT /v1/data-silo``. They were not read again when this was
written, and nothing was tried with Transcend: compare them first. Tested against a fake that follows the same memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from expunge_client import Expunge, ExpungeError

PAGE = 100


def pending(sombra: httpx.Client, data_silo: str) -> Iterator[dict[str, Any]]:
    """Yield who waits to be erased: ``identifier``, ``requestId``, ``nonce``. Raises httpx.HTTPError."""
    place = f"/v1/data-silo/{data_silo}/pending-requests/ERASURE"
    found: list[dict[str, Any]] = []
    while True:
        answer = sombra.get(place, params={"offset": len(found), "limit": PAGE}).raise_for_status()
        items = answer.json()["items"]
        found += items
        if len(items) < PAGE:
            break
    yield from found


def carry_out(expunge: Expunge, sombra: httpx.Client, item: dict[str, Any]) -> bool:
    """Delete one person; return whether that is completed, and said to Transcend.

    Raises ExpungeError, httpx.HTTPError.
    """
    request = expunge.delete(
        subject_id=item["identifier"], case_id=item["requestId"], idempotency_key=f"transcend-{item['requestId']}"
    )
    if expunge.request(request["id"])["status"] != "completed":
        return False
    done = {"profiles": [{"profileId": item["identifier"]}]}
    sombra.put("/v1/data-silo", json=done, headers={"x-transcend-nonce": item["nonce"]}).raise_for_status()
    return True


def each_of(expunge: Expunge, sombra: httpx.Client, data_silo: str) -> str:
    """Carry out everyone who waits, and return a sentence of counts. Who fails is tried again in the next run."""
    counts = {"done": 0, "under way": 0, "failed": 0}
    for item in pending(sombra, data_silo):
        try:
            counts["done" if carry_out(expunge, sombra, item) else "under way"] += 1
        except (ExpungeError, httpx.HTTPError) as error:
            print(f"{item['requestId']}: {type(error).__name__}", file=sys.stderr)
            counts["failed"] += 1
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sombra", required=True, help="address of your Sombra gateway")
    options.add_argument("--data-silo", required=True, help="id of the data silo that stands for Expunge")
    options.add_argument("--url", default=os.environ.get("EXPUNGE_URL", "http://127.0.0.1:8750"))
    given = options.parse_args()
    headers = {
        "Authorization": f"Bearer {os.environ['TRANSCEND_API_KEY']}",
        "x-sombra-authorization": f"Bearer {os.environ['SOMBRA_KEY']}",
    }
    with (
        Expunge(given.url, os.environ["EXPUNGE_API_KEY"]) as expunge,
        httpx.Client(base_url=given.sombra, headers=headers, timeout=30, trust_env=False) as sombra,
    ):
        print(each_of(expunge, sombra, given.data_silo))


if __name__ == "__main__":
    main()
