"""The commands of ``expunge``, one file per noun. They talk HTTP; ``keys`` and ``migrate`` use the database."""
