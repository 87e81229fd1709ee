"""Where the wheel's packages lie: pyproject.toml lists houses well, but not that examples/ is data of ``expunge``."""

from setuptools import find_packages, setup

HOUSES = ("service", "workers", "migrations")

setup(
    packages=[
        "expunge",
        "expunge.examples",
        *find_packages(include=["unlearning", "unlearning.*"]),
        *(package for house in HOUSES for package in find_packages(house)),
    ],
    package_dir={"expunge.examples": "examples"} | {f"expunge_{house}": f"{house}/expunge_{house}" for house in HOUSES},
)
