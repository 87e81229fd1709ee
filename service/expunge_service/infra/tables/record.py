"""The base of all tables, and the column types that they share.

Moments are integers: microseconds since 1970 UTC, read from the database's own clock. Digests are lower-case
hex. Ids that leave the service are opaque strings; a generation has an integer because partitions are named by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import JSON, BigInteger, Integer, LargeBinary, MetaData, String
from sqlalchemy.orm import DeclarativeBase

Moment = BigInteger().with_variant(Integer, "sqlite")
Count = BigInteger().with_variant(Integer, "sqlite")
Serial = BigInteger().with_variant(Integer, "sqlite")
Digest = String(64)
Id = String(36)
Name = String(63)


if TYPE_CHECKING:
    from sqlalchemy import Table


class Record(DeclarativeBase):
    if TYPE_CHECKING:
        __table__: ClassVar[Table]
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSON,
        list[str]: JSON,
        list[int]: JSON(none_as_null=True),
        bytes: LargeBinary,
    }
