"""What happened, in the order in which it happened, under signed heads that others keep as well."""

from __future__ import annotations

from expunge_service.audit.feed import Event, events_after, newest_event
from expunge_service.audit.hold_names import seal_hold, unseal_hold
from expunge_service.audit.import_export import Export, continue_log, hand_over, read_export
from expunge_service.audit.key_rotation import handovers, keep_handovers, keys_of, rotate_signing_key
from expunge_service.audit.log import (
    LOG_WAITS,
    NAMED_IN_ONE_ENTRY,
    UNSIGNED,
    canonical,
    charge,
    check_key,
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
from expunge_service.audit.merkle import consistency_proof, inclusion_proof, leaf_hash, verify_inclusion
from expunge_service.audit.self_check import CHECK_SECONDS, compare_log, keep_checking
from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier, decoded
from expunge_service.audit.succession import ROTATED
from expunge_service.audit.verification import ExportedEntry, verify
from expunge_service.audit.witness import (
    DRAFT,
    EPOCHS,
    HEADS,
    RELEASE,
    SET_ASIDE,
    UPDATES,
    Contradicted,
    Epoch,
    Newest,
    Witness,
    WitnessedHead,
    WitnessedVersion,
    epoch_of,
    version_file,
)
