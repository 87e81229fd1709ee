"""The first five hundred of the crowd, described slowly: a release holds its lease for a while."""

import time

import crowd

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("few.csv", person="person", id="id")) -> ul.Recipe:
    time.sleep(1.5)
    return crowd.recipe(rows)
