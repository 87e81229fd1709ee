"""How long to wait before the next look at something that takes time: a tenth of what is left, as far as that is known.

It is never below two seconds, and never above two minutes, because a request that waits can be hurried or cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from expunge_service.infra.time import SECOND

LEAST_SECONDS = 2
MOST_SECONDS = 120
SHARE = 0.1
"""of the time that is left"""


def retry_after(expected: Iterable[int | None], at: int) -> int:
    """Return the seconds to wait at the moment ``at``; moments in microseconds since 1970.

    ``expected``: when parts are expected to be done, or begun; the whole ends after the latest. None: not known.
    """
    left = max((moment - at for moment in expected if moment is not None), default=0) / SECOND
    return max(LEAST_SECONDS, min(MOST_SECONDS, math.floor(SHARE * left)))
