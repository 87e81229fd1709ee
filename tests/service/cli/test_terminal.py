"""The terminal as people use it: completion, short ids, lists, several servers, exit codes, and what it imports."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from expunge_client.cli.main import ADMINISTER, EVERYDAY, GONE, app, grouped
from expunge_client.cli.output import due_in
from expunge_client.cli.summaries import SUMMARIES
from tests.service.cli.test_cli import ROOT, Site, expunge, here, site

__all__ = ["site"]
FIRST, SECOND = "ab12" + "0" * 28, "ab34" + "0" * 28


def row(request_id: str, status: str = "queued", **more: Any) -> dict[str, Any]:
    facts = {"due_at": None, "completed_at": None, "reason": None, "title": None, "remedy": None, "models": []}
    return {"id": request_id, "status": status, "received_at": "2026-11-01T00:00:00Z"} | facts | more


def page(*rows: dict[str, Any]) -> tuple[int, object]:
    return 200, {"data": list(rows), "next_cursor": None, "has_more": False}


def keys(site: Site) -> dict[str, str]:
    return {"EXPUNGE_URL": site.url, "EXPUNGE_API_KEY": "k"}


def test_the_version_is_said(tmp_path: Path) -> None:
    done = expunge("--version", home=tmp_path)
    assert done.returncode == 0 and done.stdout.split()[0] == "expunge"


def test_help_shows_the_everyday_commands_and_a_line_for_each_other_group(tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    for line in here("--help", home=tmp_path).stdout.splitlines():
        if line.endswith(":") and line[:1].isalpha():
            found[line[:-1]] = section = []
        elif line[:2] == "  " and line[2:3] not in ("", " ") and found:
            section.append(re.split("  +", line.strip())[0])
    assert list(found)[:3] == ["Options", EVERYDAY, ADMINISTER]
    assert len(found[EVERYDAY]) == 25 and {"up", "find", "requests verify", "models retire"} <= set(found[EVERYDAY])
    assert {"models remove-consumer", "holds", "run", "backup"} <= set(found[ADMINISTER])
    assert "lab" in found["Add-ons"]


def test_the_summaries_are_those_that_the_commands_give() -> None:
    commands = typer.main.get_command(app)
    found: dict[str, dict[str, str]] = {title: {} for title in SUMMARIES}
    for title, names in grouped().items():
        for name in names:
            for section, words, text in commands.summaries(typer.Context(commands), title, name):
                found[section][words] = text
    assert found == SUMMARIES


LOADED = """
import sys
from expunge_client.cli.main import main
sys.argv[1:] = ["--help"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_help_loads_no_command() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True, text=True)
    assert "Everyday:" in done.stdout
    assert not {"expunge", "fastapi", "expunge_client.cli.commands"} & set(done.stderr.split())


def test_a_command_or_option_of_before_is_refused_with_its_new_name(site: Site, tmp_path: Path) -> None:
    for words, told in GONE.items():
        noun, _, rest = words.partition(" ")
        typed = [noun, "add", "m", rest, "1"] if rest.startswith("--") else words.split()
        done = here(*typed, home=tmp_path, **keys(site))
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.splitlines()[:2] == [f"error: There is no `expunge {words}` any more.", f" hint: {told}"]
    assert site.calls == []


def test_every_command_prints_json_and_a_list_csv(site: Site, tmp_path: Path) -> None:
    site.answers = [(200, {"id": FIRST, "reason": "=1", "lifted_at": None})]
    assert json.loads(here("holds", "list", FIRST, "--json", home=tmp_path, **keys(site)).stdout)["id"] == FIRST
    cells = csv.reader(io.StringIO(here("holds", "list", FIRST, "--csv", home=tmp_path, **keys(site)).stdout))
    assert list(cells) == [["id", FIRST], ["reason", "'=1"], ["lifted_at", ""]]
    assert "lifted_at" in here("holds", "list", FIRST, home=tmp_path, **keys(site)).stdout, (
        "one call's form ends with it"
    )


def test_a_short_id_is_enough_where_one_request_has_it(site: Site, tmp_path: Path) -> None:
    site.answers = [page(row(FIRST)), page(), (200, row(FIRST))]
    done = here("requests", "show", "ab1", home=tmp_path, **keys(site))
    assert done.returncode == 0, done.stderr
    paths = [path.partition("/v1/deletion-requests")[2] for _, path, _ in site.calls]
    assert paths == ["?id_prefix=ab1", "?case_id=ab1", f"/{FIRST}"]


def test_a_case_is_enough_where_it_has_one_request(site: Site, tmp_path: Path) -> None:
    site.answers = [page(row(FIRST)), (200, row(FIRST, case_id="C-101"))]
    done = here("requests", "show", "C-101", home=tmp_path, **keys(site))
    assert done.returncode == 0 and "case C-101" in done.stdout, done.stderr
    paths = [path.partition("/v1/deletion-requests")[2] for _, path, _ in site.calls]
    assert paths == ["?case_id=C-101", f"/{FIRST}"]
    site.answers = [page(row(FIRST)), page(row(SECOND, "blocked"))]
    done = here("requests", "cancel", "ab12", home=tmp_path, **keys(site))
    assert done.returncode == 2 and "'ab12' names 2 deletion requests." in done.stderr, (
        "one id's digits, and another's case"
    )
    site.answers = [page()]
    done = here("requests", "show", "C-9", home=tmp_path, **keys(site))
    assert done.returncode == 1 and "or the case 'C-9'" in done.stderr


def test_a_certificate_is_fetched_by_a_short_id(site: Site, tmp_path: Path) -> None:
    site.answers = [page(row(FIRST)), page(), (200, {"payload": "signed"})]
    done = here("certificate", "show", "ab1", "--out", str(tmp_path / "certificate.json"), home=tmp_path, **keys(site))
    assert done.returncode == 0, done.stderr
    assert site.calls[-1][1] == f"/v1/deletion-requests/{FIRST}/certificate"
    assert json.loads((tmp_path / "certificate.json").read_text()) == {"payload": "signed"}


def test_a_whole_id_is_not_looked_up(site: Site, tmp_path: Path) -> None:
    site.answers = [(200, row(FIRST))]
    here("requests", "show", FIRST, home=tmp_path, **keys(site))
    assert [path for _, path, _ in site.calls] == [f"/v1/deletion-requests/{FIRST}"]


def test_of_several_requests_the_choices_are_shown_and_nothing_is_changed(site: Site, tmp_path: Path) -> None:
    site.answers = [page(row(FIRST), row(SECOND, "blocked")), page()]
    done = here("requests", "cancel", "ab", home=tmp_path, **keys(site))
    assert done.returncode == 2
    assert "ab1200000000 (queued" in done.stderr and "ab3400000000 (blocked" in done.stderr
    assert {method for method, _, _ in site.calls} == {"GET"}
    site.answers = [page()]
    done = here("holds", "lift", "cd", home=tmp_path, **keys(site))
    assert done.returncode == 1 and "No hold has an id that begins with 'cd'" in done.stderr


def test_a_list_says_why_and_how_long_there_is(site: Site, tmp_path: Path) -> None:
    due = (datetime.now(UTC) + timedelta(days=3, hours=2, minutes=5)).isoformat()
    site.answers = [page(row(FIRST, "blocked", reason="unverified", due_at=due), row(SECOND, "completed", due_at=due))]
    done = here("requests", "list", home=tmp_path, **keys(site))
    head, first, second = done.stdout.splitlines()
    assert "reason" in head and "due in" in head
    assert "unverified" in first and "3 d 2 h" in first
    assert "3 d" not in second, "a completed request is not due"
    assert "`expunge requests show ID` says what to do" in done.stderr
    site.answers = [page(row(SECOND, "completed", due_at=due))]
    assert here("requests", "list", home=tmp_path, **keys(site)).stderr == ""


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(61, "1 h 1 min"), (-61, "late by 1 h 1 min"), (-2 * 1440, "late by 2 d 0 h"), (5, "0 h 5 min")],
)
def test_what_is_late_is_said_to_be(minutes: int, text: str) -> None:
    due = datetime.now(UTC) + timedelta(minutes=minutes, seconds=1 if minutes > 0 else -1)
    assert due_in(row(FIRST, due_at=due.isoformat())) == text


def test_csv_holds_every_row_and_computes_nothing(site: Site, tmp_path: Path) -> None:
    evil = '=HYPERLINK("http://evil","x")'
    holds = [{"id": FIRST, "reason": evil, "created_at": "2026", "lifted_at": None}]
    site.answers = [page(*holds, {"id": SECOND, "reason": 'a, "b"\nc', "created_at": "2026", "lifted_at": "2027"})]
    done = here("holds", "list", "--csv", home=tmp_path, **keys(site))
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [each["reason"] for each in rows] == ["'" + evil, 'a, "b"\nc']
    assert rows[0]["id"] == FIRST and rows[0]["lifted_at"] == ""


def test_blocked_has_an_exit_code_of_its_own(site: Site, tmp_path: Path) -> None:
    remedy = {"action": "Verify it.", "by": "privacy officer"}
    told = {"reason": "unverified", "title": "Nobody has confirmed it.", "remedy": remedy}
    blocked = row(FIRST, "blocked", **told, actions=[{"command": "expunge requests verify ID"}])
    for status, code in (("blocked", 4), ("cancelled", 1)):
        answers = [(202, blocked | {"status": status}), (200, blocked | {"status": status})]
        site.answers = [*answers]
        done = here("delete", "--subject", "ada", "--wait", "--verbose", home=tmp_path, **keys(site))
        assert done.returncode == code, done.stderr
        assert "Nobody has confirmed it." in done.stderr
        site.answers = [*answers]
        brief = here("delete", "--subject", "ada", "--wait", home=tmp_path, **keys(site))
        assert (brief.returncode, brief.stdout.splitlines()[1].split(maxsplit=4)[:4]) == (
            code, ["Nobody", "has", "confirmed", "it."],
        )  # fmt: skip
        assert brief.stdout.endswith("Verify it. (privacy officer)\n                  expunge requests verify ID\n")


def test_waiting_for_an_update_in_a_week_says_so_at_once_and_how_to_hurry(site: Site, tmp_path: Path) -> None:
    why = "Waits for the model's next update on 4 December 2026 at 04:07 UTC, with all who wait."
    part = {"model": "trees", "status": "queued", "reason": "awaiting_batch", "title": why}
    part |= {"remedy": {"action": "To do it now, retry.", "by": "operator"}, "actions": [{"command": "retry IT"}]}
    later = part | {"model": "words", "title": why.replace("4 December", "6 December")}
    waiting, done = row(FIRST, models=[part, later]), part | {"status": "completed", "reason": None, "title": None}
    site.answers = [(202, waiting), (200, waiting), (200, waiting), (200, row(FIRST, "completed", models=[done]))]
    told = here("delete", "--subject", "ada", "--wait", "--verbose", home=tmp_path, **keys(site))
    assert told.returncode == 0, told.stderr
    both = f"trees: {why}\nwords: {later['title']}\n hint: To do it now, retry. (operator)\n       retry IT\n"
    assert told.stderr.count(both) == told.stderr.count("Waits for") // 2 == 1


def test_status_shows_what_is_open_late_and_blocked(site: Site, tmp_path: Path) -> None:
    late, soon, later = ((datetime.now(UTC) + timedelta(days=days)).isoformat() for days in (-2, 3, 9))
    site.answers = [
        page(row(FIRST, "blocked", reason="unverified", due_at=late)),
        page(row(FIRST, "running", due_at=later)),
        page(row(SECOND, due_at=soon)),
        (200, {"status": "ready", "workers": 2}),
        page({"name": "digits", "status": "live"}),
    ]
    done = here("status", "--json", home=tmp_path, **keys(site))
    found = json.loads(done.stdout)
    assert (
        found["open"] == {"blocked": 1, "running": 1, "queued": 1}
        and found["late"] == 1
        and found["models"] == {"live": 1}
    )
    assert found["ready"] == "yes, with 2 worker(s)" and found["next_due"] == soon
    assert [each["id"] for each in found["blocked"]] == [FIRST]


def test_servers_have_names_and_their_keys_go_to_them_alone(site: Site, tmp_path: Path) -> None:
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    added = here("login", "prod", site.url, home=tmp_path, typed="exp_secret\n", **config)
    assert added.returncode == 0, added.stderr
    file = tmp_path / "config" / "expunge" / "servers.json"
    assert file.stat().st_mode & 0o777 == 0o600
    site.answers = [(200, {"data": [], "next_cursor": None, "has_more": False, "workers": 1})]
    named = here("--server", "prod", "status", "--json", home=tmp_path, **config)
    assert json.loads(named.stdout)["others"] == ["prod"] and "exp_secret" not in named.stdout
    site.answers = [page()]
    other = {"EXPUNGE_URL": "http://127.0.0.1:1", "EXPUNGE_API_KEY": "other"}
    for choice, more in ((["--server", "prod"], {}), ([], {"EXPUNGE_SERVER": "prod"})):
        done = here(*choice, "models", "list", home=tmp_path, **config, **other, **more)
        assert done.returncode == 0, done.stderr
    assert {headers["Authorization"] for _, _, headers in site.calls} == {"Bearer exp_secret"}
    done = here("--server", "test", "models", "list", home=tmp_path, **config)
    assert done.returncode == 2 and "Known: prod" in done.stderr
    assert here("logout", "prod", home=tmp_path, **config).returncode == 0
    assert "exp_secret" not in file.read_text()


def complete(words: str, shell: str, home: Path, **environment: str) -> str:
    """Return what a shell gets that completes the last of these words."""
    asked = {"_EXPUNGE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        asked |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    else:
        action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
        asked |= {"_TYPER_COMPLETE_ARGS": words} | action
    return here(home=home, **environment, **asked).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_models_and_requests_are_completed(site: Site, tmp_path: Path, shell: str) -> None:
    site.answers = [page({"name": "digits", "status": "live"}, {"name": "faces", "status": "live"})]
    found = complete("expunge models show d", shell, tmp_path, **keys(site))
    assert "digits" in found and "faces" not in found
    for verb in ("retrain", "policy", "retire"):
        assert "digits" in complete(f"expunge models {verb} d", shell, tmp_path, **keys(site))
    site.answers = [page(row(FIRST))]
    assert FIRST in complete("expunge requests show ab", shell, tmp_path, **keys(site))
    assert site.calls[-1][1] == "/v1/deletion-requests?limit=50&id_prefix=ab"
    site.answers = [page(row(FIRST, reason="a lawsuit", lifted_at=None), row(SECOND, reason="old", lifted_at=None))]
    found = complete("expunge holds lift ab1", shell, tmp_path, **keys(site))
    assert FIRST in found and SECOND not in found
    site.answers = [page(row(FIRST, url="https://example.org/news"))]
    assert FIRST in complete("expunge webhooks remove a", shell, tmp_path, **keys(site))
    site.answers = [page({"name": "shop", "status": "behind"}, {"name": "app", "status": "current"})]
    found = complete("expunge models remove-consumer digits s", shell, tmp_path, **keys(site))
    assert "shop" in found and "app" not in found and site.calls[-1][1] == "/v1/models/digits/consumers"
    assert "requests" in complete("expunge req", shell, tmp_path)
    away = {"EXPUNGE_URL": "http://127.0.0.1:1", "EXPUNGE_API_KEY": "k"}
    assert complete("expunge models show d", shell, tmp_path, **away).strip() in ("", "_files")


def test_bash_takes_the_script_and_completes_with_it(site: Site, tmp_path: Path) -> None:
    """The script of ``--show-completion``, sourced by a real bash."""
    site.answers = [page({"name": "digits", "status": "live"})]
    program = tmp_path / "expunge"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m expunge_client.cli.main "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 expunge --show-completion bash)"\n'
        'COMP_WORDS=(expunge models show d); COMP_CWORD=3\n_expunge_completion expunge d show\necho "${COMPREPLY[@]}"'
    )
    environment = keys(site) | {"PATH": f"{tmp_path}:/usr/bin:/bin", "EXPUNGE_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["digits"], done.stderr


REMOTE = (
    ["status"], ["versions", "m"], ["models", "list"], ["models", "show", "m"],
    ["delete", "--subject", "a"], ["requests", "list"], ["requests", "show", FIRST], ["holds", "list"],
    ["certificate", "show", FIRST], ["webhooks", "list"], ["models", "remove-consumer", "m", "c"],
    ["logout", "n"], ["find", "--subject", "a"], ["requests", "approve", FIRST],
    ["models", "policy", "m"], ["audit", "list"], ["audit", "export", "f"], 
    ["certificate", "verify", "f", "--key", "k"],    ["registry", "bundle", "m", "f"],
)  # fmt: skip


def test_a_remote_command_imports_neither_torch_nor_sqlalchemy(tmp_path: Path) -> None:
    """All of them in one process: what one loads stays, and is seen after it."""
    code = (
        "import io, json, sys\nfrom contextlib import redirect_stdout\n"
        "from expunge_client.cli.main import main\nloaded = {}\n"
        f"for arguments in {REMOTE!r}:\n"
        "    sys.argv = ['expunge', *arguments]\n"
        "    try:\n        with redirect_stdout(io.StringIO()): main()\n"
        "    except SystemExit: pass\n"
        "    loaded[' '.join(arguments)] = sorted({each.partition('.')[0] for each in sys.modules})\n"
        "print(json.dumps(loaded))"
    )
    environment = {"EXPUNGE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {command: set(modules) for command, modules in json.loads(done.stdout).items()}
    assert len(loaded) == len(REMOTE)
    other = {"torch", "numpy", "sqlalchemy", "fastapi", "celery", "redis", "alembic", "pydantic_settings"}
    for command, modules in loaded.items():
        assert {"typer", "httpx"} <= modules, command
        assert not modules & other, command


def test_the_page_is_opened_in_the_browser(site: Site, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {shown}\n')
    program.chmod(0o755)
    site.answers = [(200, {"data": [], "next_cursor": None, "has_more": False, "workers": 1})]
    done = here("status", "--open", home=tmp_path, BROWSER=f"{program} %s", **keys(site))
    assert done.returncode == 0, done.stderr
    assert shown.read_text() == f"{site.url}\n"


def commands_of_all() -> list[tuple[str, Any]]:
    """Every command of every installed package, with its words."""
    root = typer.main.get_command(app)
    found = []
    for names in grouped().values():
        for name in names:
            command = root.get_command(typer.Context(root), name)  # type: ignore[attr-defined]
            parts = getattr(command, "commands", None)
            found += [(f"{name} {part}", each) for part, each in parts.items()] if parts else [(name, command)]
    return found


def test_the_help_has_one_style() -> None:
    """A command: a verb first, at most 20 words, a full stop. An option: a full stop. Each names its subject."""
    vague = re.compile(
        r"\b(who|whom|whose|whoever|nobody|somebody|everybody|everyone|anybody|her|she)\b", re.IGNORECASE
    )
    faults = []
    for words, command in commands_of_all():
        first = re.split(r"(?<=\.)\s", " ".join((command.help or "").split()))[0]
        if not re.match(r"[A-Z][a-z-]+ ", first) or not first.endswith(".") or len(first.split()) > 20:
            faults.append((words, first))
        texts = [getattr(each, "help", "") or "" for each in command.params if each.name != "help"]
        faults += [(words, text) for text in texts if text and not text.rstrip("`").endswith((".", ")"))]
        faults += [(words, text) for text in (first, *texts) if vague.search(text)]
    assert faults == [] and len(commands_of_all()) > 50
