from unlearning.rows import table

PEOPLE = table("people.jsonl", person="person", id="visit")
HOMES = table("homes.jsonl", person="person")
