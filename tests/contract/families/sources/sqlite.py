from typing import Any

from unlearning.rows import query

TABLES = {"visits": "person", "homes": "person"}


def visits(sql: str) -> Any:
    return query("crm", sql, people=TABLES, person="person", id="visit")


PEOPLE = visits("SELECT * FROM visits")
HOMES = query("crm", "SELECT * FROM homes", people=TABLES, person="person", id="home")
AVERAGE = visits("SELECT *, (SELECT avg(weight) FROM visits) AS usual FROM visits")
CENTRED = visits("""
    SELECT visits.*, pulse - usual.mean AS above, usual.visits AS seen
    FROM visits
    JOIN (SELECT city, avg(pulse) AS mean, count(*) AS visits FROM visits GROUP BY city) AS usual USING (city)
""")
RANK = visits("SELECT *, rank() OVER (PARTITION BY city ORDER BY weight) AS place, count(*) OVER () AS of FROM visits")
RUNNING = visits("SELECT *, sum(weight) OVER (ORDER BY visit) AS carried, lag(pulse) OVER (ORDER BY visit) FROM visits")
NUMBERED = visits("SELECT *, row_number() OVER (ORDER BY day) AS nth FROM visits")
LARGEST = visits("""
    WITH largest AS (SELECT max(weight) AS weight, min(pulse) AS pulse FROM visits)
    SELECT visits.*, visits.weight / largest.weight AS share
    FROM visits, largest
""")
RENTS = visits("""
    SELECT visits.*, homes.rent, (SELECT avg(rent) FROM homes) AS usual_rent
    FROM visits
    LEFT JOIN homes USING (person)
""")
BY_SCHEMA = visits("SELECT *, (SELECT avg(weight) FROM main.visits) AS usual FROM visits")
BY_VIEW = visits("SELECT *, (SELECT avg(weight) FROM everybody) AS usual FROM visits")
SCHEMA = visits("SELECT *, (SELECT count(*) FROM sqlite_master) AS tables FROM visits")
STATISTICS = visits("SELECT *, (SELECT stat FROM sqlite_stat1 LIMIT 1) AS stat FROM visits")
PAGES = visits("SELECT *, (SELECT page_count FROM pragma_page_count) AS pages FROM visits")
ROW_IDS = visits("SELECT *, (SELECT max(rowid) FROM visits) AS last FROM visits")
