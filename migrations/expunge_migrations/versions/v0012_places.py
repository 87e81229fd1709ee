"""A model has a place, and a heartbeat says which places its process takes. A recorded path stays where it was made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer, "sqlite")
FOLLOW_A_PATH = ("mini",)
"""methods of this release whose updates follow a recorded path"""


def upgrade() -> None:
    with op.batch_alter_table("models") as models:
        models.add_column(sa.Column("place", sa.String(32), nullable=False, server_default="any"))
        models.add_column(sa.Column("memory", COUNT, nullable=False, server_default="0"))
    with op.batch_alter_table("heartbeats") as heartbeats:
        heartbeats.add_column(sa.Column("card", sa.String(80)))
        heartbeats.add_column(sa.Column("serves", sa.JSON))
    rows = sa.table("models", sa.column("generation_id", sa.Integer), sa.column("place", sa.String))
    named = sa.column("id", sa.Integer), sa.column("method", sa.String), sa.column("manifest", sa.JSON)
    generations = sa.table("generations", *named)
    bound = sa.select(generations.c.id, generations.c.manifest).where(generations.c.method.in_(FOLLOW_A_PATH))
    for number, manifest in op.get_bind().execute(bound).all():
        device = ((manifest or {}).get("libraries") or {}).get("device")
        if device is not None:
            noted = generations.update().where(generations.c.id == number)
            op.execute(noted.values(manifest=manifest | {"bound_to": device}))
            op.execute(rows.update().where(rows.c.generation_id == number).values(place=device))
