"""What workers keep: sealed state, manifests, keys and the journal of updates.

The modules that need torch (``manifest``, ``private_state``, ``checkpoint_format``) are imported by their names: the
scheduler uses the rest, and loads no torch.
"""

from __future__ import annotations

from expunge_workers.storage.crypto_erase import (
    OVER,
    STARTS,
    delete_ended_generations,
    ended_lately,
    erase_due,
    erase_ended,
    erase_lost,
    erasures_wait,
)
from expunge_workers.storage.encryption import Sealer, new_key
from expunge_workers.storage.key_store import KeysMissing, KeyStore
from expunge_workers.storage.storage import Storage, open_places
from expunge_workers.storage.update_journal import confirm_committed, revived
