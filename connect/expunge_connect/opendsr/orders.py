"""Read an OpenDSR request: what it may say, and the deletion order that it is.

Nothing is left out silently: what cannot be carried out whole is refused, and the answer says which part.
"""

from __future__ import annotations

import hmac
import json
from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, StringConstraints, ValidationError

from expunge_client import Refused
from expunge_client.calls import Order
from expunge_connect.opendsr.processor import Processor

API_VERSION = "2.0"
UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
ERASURE, RAW = "erasure", "raw"
MOST_CALLBACKS = 5
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]


def within_reach(when: datetime) -> datetime:
    """Return the moment. Raises ValueError where the service could not store it, or no deadline after it."""
    if not 1970 < when.year < 9999:
        raise ValueError("must lie between the years 1971 and 9998")
    return when


class Identity(BaseModel):
    """One id of the person."""

    identity_type: Text
    identity_value: Text
    identity_format: Text = RAW


class SubjectRequest(BaseModel):
    """The body of a POST. Fields that it has besides (``extensions``, for example) are not read."""

    subject_request_id: Annotated[str, StringConstraints(pattern=UUID, to_lower=True)]
    subject_request_type: Text
    regulation: Text
    submitted_time: Annotated[AwareDatetime, AfterValidator(within_reach)]
    subject_identities: list[Identity] = Field(min_length=1, max_length=50)
    api_version: Text = API_VERSION
    status_callback_urls: list[Annotated[str, StringConstraints(max_length=2048)]] = Field(
        default_factory=list, max_length=MOST_CALLBACKS
    )

    def digest(self, secret: bytes) -> bytes:
        """Return the keyed digest of what is asked."""
        said = json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        return hmac.digest(secret, b"expunge-connect/opendsr\0" + said, "sha256")


def read(body: bytes, processor: Processor) -> SubjectRequest:
    """Read a body. Raises Refused (400): it is malformed, or asks for something that is not done here."""
    try:
        json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise _refused("invalid_request", "The body is no JSON, or gives a name twice.") from None
    try:
        sent = SubjectRequest.model_validate_json(body)
    except ValidationError as error:
        known = set(SubjectRequest.model_fields) | set(Identity.model_fields)
        faults = [(_pointer(each["loc"], known), each["msg"]) for each in error.errors(include_url=False)]
        raise _refused("invalid_request", "The request is not one of OpenDSR 2.0; see errors.", *faults) from None
    faults = [*_unsupported(sent, processor), *_callbacks(sent, processor)]
    if faults:
        raise _refused("unsupported", "The request asks for what is not done here; see errors.", *faults)
    return sent


def order(sent: SubjectRequest) -> Order:
    """Return the deletion order. The caller's id of the request is its case."""
    return Order(
        subject_ids=sorted({each.identity_value for each in sent.subject_identities}),
        regulation=sent.regulation,
        received_at=sent.submitted_time.isoformat(),
        case_id=sent.subject_request_id,
    )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _unsupported(sent: SubjectRequest, processor: Processor) -> list[tuple[str, str]]:
    faults = []
    if sent.api_version != API_VERSION:
        faults.append(("/api_version", f"It must be {API_VERSION}."))
    if sent.subject_request_type != ERASURE:
        faults.append(("/subject_request_type", f"It must be {ERASURE}."))
    known = f"It must be one of {', '.join(processor.identities)}, in the format {RAW}."
    for place, each in enumerate(sent.subject_identities):
        if each.identity_type not in processor.identities or each.identity_format != RAW:
            faults.append((f"/subject_identities/{place}", known))
    return faults


def _callbacks(sent: SubjectRequest, processor: Processor) -> list[tuple[str, str]]:
    what = "It must be https, and its host one that callbacks may go to (EXPUNGE_OPENDSR_CALLBACK_HOSTS)."
    return [
        (f"/status_callback_urls/{place}", what)
        for place, url in enumerate(sent.status_callback_urls)
        if _host(url, loopback=processor.loopback) not in processor.callback_hosts
    ]


def _host(url: str, *, loopback: bool) -> str | None:
    """Return the host of an address that a callback may have; None: it is malformed or carries credentials."""
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in ({"https", "http"} if loopback else {"https"})
            and "@" not in parts.netloc
            and parts.port != 0
            and url.isprintable()
        )
    except ValueError:
        return None
    return parts.hostname if usable and " " not in url else None


def _pointer(place: tuple[int | str, ...], known: set[str]) -> str:
    """Return where a fault is. A name that the caller chose is not repeated."""
    return "".join(f"/{part}" for part in place if isinstance(part, int) or part in known)


def _refused(code: str, what: str, *faults: tuple[str, str]) -> Refused:
    return Refused(400, code, what, [{"pointer": place, "detail": fault} for place, fault in faults])
