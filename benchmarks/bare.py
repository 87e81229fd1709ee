"""The other side of the intake's row: a FastAPI route that inserts one row and does nothing else.

``BARE_DATABASE_URL`` names the database, by the driver and with the pool that the service uses.
"""

from __future__ import annotations

import os
import secrets

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import Column, MetaData, String, Table, insert

from expunge.service.infra.db import Database

database = Database(os.environ["BARE_DATABASE_URL"])
orders = Table("bare_orders", MetaData(), Column("id", String(36), primary_key=True), Column("subject", String(64)))
orders.create(database.engine, checkfirst=True)
app = FastAPI()


class Order(BaseModel):
    subject_id: str


@app.post("/orders", status_code=202)
def create(order: Order) -> dict[str, str]:
    row = {"id": secrets.token_hex(16), "subject": order.subject_id}
    with database.engine.begin() as connection:
        connection.execute(insert(orders), row)
    return row
