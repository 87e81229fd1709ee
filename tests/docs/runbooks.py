"""The API's page /runbooks, made from the alerts' section of the docs: ``python -m tests.docs.runbooks`` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from markdown import markdown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "runbooks.md"
PAGE = ROOT / "service" / "expunge_service" / "console" / "templates" / "runbooks.html"
_HEAD = """\
{# made by python -m tests.docs.runbooks #}
{% extends "base.html" %}
{% block title %}Runbooks{% endblock %}
{% block bar %}<nav aria-label="Pages"><a href="/">Overview</a></nav>{% endblock %}
{% block main %}{% endblock %}
{% block content %}
<h1>Runbooks</h1>
<p>What to do about each alert of <code>dashboards/alerts.yml</code>.</p>
"""


def page() -> str:
    """Return the template: what each alert means and what to do, under the alert's name in small letters."""
    section = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1]
    plain = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", section)  # the other pages are not served here
    alerts = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", plain, re.MULTILINE)
    shown = [
        f'<section id="{name.lower()}">\n<h2>{name}</h2>\n{markdown(means)}\n{markdown(do)}\n</section>\n'
        for name, means, do in alerts
    ]
    return _HEAD + "".join(shown) + "{% endblock %}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
