"""Write orders.parquet: four orders of each customer. Whether one is sent back follows from things, city and age."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

PEOPLE, EACH, THINGS, MOST, SEED = 1200, 4, 80, 8, 0
CITIES = ("Bonn", "Cork", "Lima", "Lyon", "Oslo", "Rome")

random, count = np.random.default_rng(SEED), PEOPLE * EACH
age, city = random.integers(18, 80, size=count), random.integers(len(CITIES), size=count)
things = [random.choice(THINGS, size=size, replace=False) for size in random.integers(1, MOST + 1, size=count)]
worth, place = random.normal(size=THINGS), random.normal(size=len(CITIES))
score = np.array([3.0 * worth[bought].mean() for bought in things]) + place[city] + (age - 45) / 20
sent_back = score + 0.3 * random.normal(size=count) > 0
columns = {
    "customer": [f"customer-{row // EACH:04d}" for row in range(count)],
    "age": [None if row % 6 == 0 else int(years) for row, years in enumerate(age)],
    "city": [CITIES[number] for number in city],
    "things": [bought.astype(np.int16) for bought in things],
    "sent_back": sent_back,
}
pa.parquet.write_table(
    pa.table(columns), Path(__file__).with_name("orders.parquet"), compression="zstd", compression_level=19
)
