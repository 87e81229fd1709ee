"""The first five hundred of the crowd, until the file that DRILL_GREED names is there.

Then reading them takes more memory than there is. The file says how that shows: ``grow`` until an allocation fails,
or ``killed`` by the kernel.
"""

import os
import signal
from pathlib import Path

import numpy as np
from crowd import people

import unlearning as ul


def recipe() -> ul.Recipe:
    greed = Path(os.environ["DRILL_GREED"])
    if greed.exists() and greed.read_text() == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    hoard = []
    while greed.exists():
        hoard.append(np.zeros(1 << 27))  # a gibibyte of addresses; the kernel gives no memory for untouched zeros
    return people(500)
