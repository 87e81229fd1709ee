"""What a recipe reads and what it returns: sources, the rows of those who are here, and the files of a model.

Types, categories and the order of rows are found after people left. So what is read without somebody is, byte for
byte, what would be read had they never been in the source.
"""

from unlearning.rows._call import call_recipe, with_holdout
from unlearning.rows._file import is_larger, rows_from_bytes, rows_to_bytes, write_rows
from unlearning.rows._maps import (
    MapFunction,
    MappedBefore,
    block_to_bytes,
    blocks_from_bytes,
    map_block,
)
from unlearning.rows._open import OpenSource, RowUnits, open_rows, read_source
from unlearning.rows._paths import open_public, path_beneath
from unlearning.rows._people import is_aside
from unlearning.rows._read import to_arrow
from unlearning.rows._rows import Rows, set_apart
from unlearning.rows._run import CHECKPOINT_SECONDS, RunParameter, TrainingRun, run
from unlearning.rows.declarations import (
    PublicFile,
    ReaderSource,
    Source,
    WeightsFile,
    arrays,
    folder,
    public,
    query,
    reader,
    source_from_json,
    source_to_json,
    table,
    via,
    weights,
)
from unlearning.rows.published import Published

__all__ = [
    "CHECKPOINT_SECONDS",
    "MapFunction",
    "MappedBefore",
    "OpenSource",
    "PublicFile",
    "Published",
    "ReaderSource",
    "RowUnits",
    "Rows",
    "RunParameter",
    "Source",
    "TrainingRun",
    "WeightsFile",
    "arrays",
    "block_to_bytes",
    "blocks_from_bytes",
    "call_recipe",
    "folder",
    "is_aside",
    "is_larger",
    "map_block",
    "open_public",
    "open_rows",
    "path_beneath",
    "public",
    "query",
    "read_source",
    "reader",
    "rows_from_bytes",
    "rows_to_bytes",
    "run",
    "set_apart",
    "source_from_json",
    "source_to_json",
    "table",
    "to_arrow",
    "via",
    "weights",
    "with_holdout",
    "write_rows",
]
