from unlearning.rows import table

PEOPLE = table("people.parquet", person="person", id="visit")
HOMES = table("homes.parquet", person="person")
