"""Recipes whose SQL computes with everybody: averages, windows, statistics of the database."""

from __future__ import annotations

from sources import (
    AVERAGE,
    BY_SCHEMA,
    BY_VIEW,
    CENTRED,
    LARGEST,
    NUMBERED,
    PAGES,
    RANK,
    RENTS,
    ROW_IDS,
    RUNNING,
    SCHEMA,
    STATISTICS,
)
from training import train

from unlearning.rows import Published, Rows


def average_of_everybody(rows: Rows = AVERAGE) -> Published:
    return train(rows, lambda: rows["usual"].tolist())


def centred_by_city(rows: Rows = CENTRED) -> Published:
    return train(rows, lambda: rows["above"].tolist())


def rank_among_everybody(rows: Rows = RANK) -> Published:
    return train(rows, lambda: [rows["place"].tolist(), rows["of"].tolist()])


def running_sum(rows: Rows = RUNNING) -> Published:
    return train(rows, lambda: rows["carried"].tolist())


def numbered_by_day(rows: Rows = NUMBERED) -> Published:
    return train(rows, lambda: rows["nth"].tolist())


def share_of_the_largest(rows: Rows = LARGEST) -> Published:
    return train(rows, lambda: rows["share"].tolist())


def average_of_another_table(rows: Rows = RENTS) -> Published:
    return train(rows, lambda: rows["usual_rent"].tolist())


def past_the_view_by_schema(rows: Rows = BY_SCHEMA) -> Published:
    return train(rows, lambda: rows["usual"].tolist())


def past_the_view_by_a_view(rows: Rows = BY_VIEW) -> Published:
    return train(rows, lambda: rows["usual"].tolist())


def table_of_tables(rows: Rows = SCHEMA) -> Published:
    return train(rows, lambda: rows["tables"].tolist())


def statistics_of_the_planner(rows: Rows = STATISTICS) -> Published:
    return train(rows, lambda: rows["stat"].tolist())


def pages_of_the_file(rows: Rows = PAGES) -> Published:
    return train(rows, lambda: rows["pages"].tolist())


def last_row_id(rows: Rows = ROW_IDS) -> Published:
    return train(rows, lambda: rows["last"].tolist())
