"""The first five hundred of the crowd, and more memory than there is where the column ``way`` says how that shows.

``grow`` until an allocation fails, or ``killed`` by the kernel: by a fault here, because the first process of a
namespace survives its own SIGKILL.
"""

import ctypes

import crowd
import numpy as np

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("greedy.csv", person="person", id="id")) -> ul.Recipe:
    way, hoard = rows["way"][0], []
    if way == "killed":
        ctypes.string_at(0)
    while way == "grow":
        hoard.append(np.zeros(1 << 27))  # a gibibyte of addresses; the kernel gives no memory for untouched zeros
    return crowd.recipe(rows)
