from unlearning.rows import table

PEOPLE = table("people.csv", person="person", id="visit")
HOMES = table("homes.csv", person="person")
