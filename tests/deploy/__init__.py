"""``python -m tests.deploy``: the project's own Dockerfile and docker-compose.yml, run by a real Docker engine.

Base images come from a registry where one answers, else they are made of Debian's packages.
"""
