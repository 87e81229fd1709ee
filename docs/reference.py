"""Fills docs/api.md from the OpenAPI description, and docs/cli.md from the commands; a hook of properdocs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROUTES, COMMANDS = "<!-- every route -->", "<!-- every command -->"
FOR_ALL = ("--help", "--json", "--csv")
BOOSTS = {"privacy-officer.md": 3, "backup.md": 2} | dict.fromkeys(
    ("api.md", "cli.md", "reasons.md", "settings.md", "glossary.md", "results.md", "how-it-works.md"), 0.1
)
"""how much a page's matches weigh in the search; a page that is not named: 1"""
METHODS = ("get", "head", "post", "put", "patch", "delete")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with every route or command in place of its mark."""
    # a reader looks for what to do, and finds the guides first
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    else:
        page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri, 1)}
    if page.file.src_uri == "api.md":
        return markdown.replace(ROUTES, "\n".join(routes(description())))
    if page.file.src_uri == "cli.md":
        return markdown.replace(COMMANDS, "\n".join(commands()))
    return markdown


def commands() -> Iterator[str]:
    """Markdown: a section for each group of commands, an entry for each command with its options."""
    import typer  # noqa: PLC0415 (only this page needs the commands, which load every package)

    from expunge_client.cli.main import app, grouped  # noqa: PLC0415

    root: Any = typer.main.get_command(app)
    for title, names in grouped().items():
        yield f"\n## {title}\n"
        for name in names:
            yield from _command(name, root.get_command(None, name))


def _command(name: str, command: Any) -> Iterator[str]:
    parts = getattr(command, "commands", {})
    for part, each in parts.items():
        yield from _command(f"{name} {part}", each)
    if parts:
        return
    taken = "".join(
        f" {each.metavar or each.name.upper()}" for each in command.params if each.param_type_name == "argument"
    )
    yield f"\n### `expunge {name}{taken}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    for each in command.params:
        if each.param_type_name == "option" and not set(each.opts) & set(FOR_ALL):
            yield f"- `{' '.join((*each.opts, *each.secondary_opts))}`: {' '.join((each.help or '').split())}"


def description() -> dict[str, Any]:
    """What /openapi.json would answer; no server is started and nothing is kept."""
    from expunge_service.app import create_app  # noqa: PLC0415 (only this page needs it)
    from expunge_service.infra.settings import Settings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as home:
        described: dict[str, Any] = create_app(Settings(home=Path(home))).openapi()
    return described


def routes(described: dict[str, Any]) -> Iterator[str]:
    """Markdown: a section for each tag, an entry for each call, and the schemas that they name."""
    calls = [
        (call.get("tags", ["other"])[0], path, method, call)
        for path, each in described["paths"].items()
        for method, call in each.items()
        if method in METHODS
    ]
    for tag in dict.fromkeys(tag for tag, *_ in calls):
        yield f"\n## {tag}\n"
        for _, path, method, call in (each for each in calls if each[0] == tag):
            yield from _call(path, method, call)
    yield "\n## Schemas\n"
    for name, schema in sorted(described.get("components", {}).get("schemas", {}).items()):
        yield from _schema(name, schema)


def _call(path: str, method: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"\n### `{method.upper()} {path}`\n"
    yield f"{call.get('summary', '')}. {call.get('description', '')}".strip(" .") + ".\n"
    for each in call.get("parameters", []):
        need = "" if each.get("required") else ", optional"
        yield f"- `{each['name']}` ({each['in']}{need}): {kind(each.get('schema', {}))}"
    content = call.get("requestBody", {}).get("content", {})
    for media, body in content.items():
        yield f"- body, `{media}`: {kind(body.get('schema', {}))}"
    yield "\n| answer | |\n|---|---|"
    for code, answer in call.get("responses", {}).items():
        shown = [kind(body.get("schema", {})) for body in answer.get("content", {}).values()]
        yield f"| {code} | {answer.get('description', '')} {' or '.join(dict.fromkeys(shown))} |"
    yield ""


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n"
    if schema.get("description"):
        yield schema["description"] + "\n"
    for example in schema.get("examples", []):
        yield f"For example: `{json.dumps(example)}`\n"
    fields = schema.get("properties", {})
    if not fields:
        yield f"One of {kind(schema)}.\n"
        return
    yield "| field | type | |\n|---|---|---|"
    for field, each in fields.items():
        need = "required" if field in schema.get("required", []) else ""
        text = " ".join(str(each.get("description", "")).split()).replace("|", "\\|")
        yield f"| `{field}` | {kind(each)} | {text or need} |"


def kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    return str(schema.get("const", schema.get("format", schema.get("type", "anything"))))
