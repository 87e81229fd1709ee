"""What happened, in the order in which it happened, under signed heads that others keep as well."""

from __future__ import annotations

from expunge.service.audit.feed import Event, events_after, newest_event
from expunge.service.audit.hold_names import seal_hold, unseal_hold
from expunge.service.audit.import_export import Export, continue_log, hand_over, read_export
from expunge.service.audit.key_rotation import handovers, keep_handovers, keys_of, rotate_signing_key
from expunge.service.audit.log import (
    LOG_WAITS,
    NAMED_IN_ONE_ENTRY,
    UNSIGNED,
    canonical,
    charge,
    entry,
    extend,
    newest_head,
    newest_key,
    nodes,
    proofs,
    record,
    record_at,
    record_entries,
    recorded_at,
    signed_size,
)
from expunge.service.audit.merkle import consistency_proof, inclusion_proof, leaf_hash, verify_inclusion
from expunge.service.audit.self_check import CHECK_SECONDS, compare_log, keep_checking
from expunge.service.audit.signed_note import NotAuthentic, Signer, Verifier, decoded
from expunge.service.audit.succession import ROTATED
from expunge.service.audit.verification import ExportedEntry, verify
from expunge.service.audit.witness import (
    DRAFT,
    EPOCHS,
    HEADS,
    RELEASE,
    SET_ASIDE,
    UPDATES,
    Contradicted,
    Epoch,
    Witness,
    WitnessedHead,
    epoch_of,
    version_file,
)

__all__ = [
    "CHECK_SECONDS",
    "DRAFT",
    "EPOCHS",
    "HEADS",
    "LOG_WAITS",
    "NAMED_IN_ONE_ENTRY",
    "RELEASE",
    "ROTATED",
    "SET_ASIDE",
    "UNSIGNED",
    "UPDATES",
    "Contradicted",
    "Epoch",
    "Event",
    "Export",
    "ExportedEntry",
    "NotAuthentic",
    "Signer",
    "Verifier",
    "Witness",
    "WitnessedHead",
    "canonical",
    "charge",
    "compare_log",
    "consistency_proof",
    "continue_log",
    "decoded",
    "entry",
    "epoch_of",
    "events_after",
    "extend",
    "hand_over",
    "handovers",
    "inclusion_proof",
    "keep_checking",
    "keep_handovers",
    "keys_of",
    "leaf_hash",
    "newest_event",
    "newest_head",
    "newest_key",
    "nodes",
    "proofs",
    "read_export",
    "record",
    "record_at",
    "record_entries",
    "recorded_at",
    "rotate_signing_key",
    "seal_hold",
    "signed_size",
    "unseal_hold",
    "verify",
    "verify_inclusion",
    "version_file",
]
