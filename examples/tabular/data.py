"""Write customers.csv: one to six contracts of each customer. Who leaves follows from age, bill, months and payment."""

import csv
import random
from pathlib import Path

CUSTOMERS, SEED = 400, 0
PLANS, PAYMENTS = ("basic", "family", "business"), ("card", "invoice", "debit", "voucher")
COLUMNS = ("contract", "customer", "age", "months", "bill", "plan", "payment", "left")

draw = random.Random(SEED)
contract = 0
with Path(__file__).with_name("customers.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for customer in range(CUSTOMERS):
        age = draw.gauss(45, 15)
        for _ in range(draw.randint(1, 6)):
            months, bill = draw.uniform(0, 60), draw.gauss(60, 25)
            plan, payment = draw.choice(PLANS), draw.choice(PAYMENTS)
            leaning = (abs(age - 45) / 15 - 1) + (bill - 60) / 25 - months / 30 + (payment == "voucher")
            row = {
                "contract": f"contract-{contract:04d}",
                "customer": f"customer-{customer:03d}",
                "age": f"{age:.0f}",
                "months": f"{months:.1f}",
                "bill": f"{bill:.2f}",
                "plan": plan,
                "payment": payment,
                "left": int(leaning + draw.gauss(0, 0.5) > 0),
            }
            missing = draw.choice(("age", "bill", "plan")) if draw.random() < 0.2 else None
            writer.writerow(row if missing is None else row | {missing: ""})
            contract += 1
