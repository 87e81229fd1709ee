from unlearning.rows import table

PEOPLE = table("users.csv", person="person", id="visit", spelled="user:{}")
HOMES = table("homes_of_users.csv", person="person", spelled="user:{}")
