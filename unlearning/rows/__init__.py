"""What a recipe reads and what it returns: sources, the rows of those who are here, and the files of a model.

Types, categories and the order of rows are found after people left. So what is read without somebody is, byte for
byte, what would be read had they never been in the source.
"""

from unlearning.rows._open import open_rows
from unlearning.rows._paths import open_public
from unlearning.rows._rows import Rows, set_apart
from unlearning.rows.declarations import Source, arrays, folder, public, query, table, via
from unlearning.rows.published import Published

__all__ = [
    "Published",
    "Rows",
    "Source",
    "arrays",
    "folder",
    "open_public",
    "open_rows",
    "public",
    "query",
    "set_apart",
    "table",
    "via",
]
