"""Every command that the operators' pages name, in the operator container; then a backup that is put back."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.deploy.programs import ran, tried
from tests.deploy.project import ROOT, eventually
from tests.deploy.promises import MODEL
from tests.deploy.step import Check, Step

PAGES = ("install.md", "backup.md", "runbooks.md")
ELSEWHERE = {
    "up": "all processes on one machine, without containers",
    "run": "the command of the containers api, worker, updater and scheduler",
    "--server": "an option, tried with `login`",
    "--install-completion": "of the operator's own shell",
}
"""what the pages name and no operator runs in the container"""
TRIAL = "trial"
REGISTERED_SECONDS = 180.0
AFTER_BACKUP = 5
HEARTBEATS_SECONDS = 90.0


def named_commands(text: str) -> set[str]:
    """Return the commands of a page that begin with ``expunge``, as `models show` or `doctor`, without arguments.

    A word that is written in capitals is an argument.
    """
    found = set()
    for line in re.findall(r"(?:`|^ {4})expunge ([^`\n]+)", text, re.MULTILINE):
        words = []
        for word in line.split()[:2]:
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            words.append(word)
        head = " ".join(words) or line.split()[0]
        found.add(words[0] if words and words[0] in ALONE else head)
    return found


ALONE = {"backup", "doctor", "drain", "init", "login", "migrate", "restore", "run", "up"}
"""commands without a second word"""


@dataclass
class Operator:
    """The operator container, kept running while commands are run in it, and what was run."""

    check: Check
    container: str
    ran: set[str] = field(default_factory=set)

    def __call__(self, *words: str, given: str | None = None, ends: tuple[int, ...] = (0,), says: str = "") -> str:
        """Run `expunge WORDS` and return what it printed. It must end with one of ``ends``, and say ``says``."""
        head = words[0] if words[0] in ALONE else " ".join(words[:2])
        line = ["docker", "exec", "-i", self.container, "expunge", *words]
        done = subprocess.run(line, input=given or "", capture_output=True, text=True, timeout=300, check=False)
        told = f"`expunge {' '.join(words)}` ended with {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        assert done.returncode in ends, told
        assert says in done.stdout + done.stderr, told
        self.ran.add(head)
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@contextmanager
def operator(check: Check) -> Iterator[Operator]:
    """Start the service `admin` with the API key in its environment, and keep it while the block runs."""
    check.project.environment["EXPUNGE_API_KEY"] = check.promises.key
    container = check.project.compose("run", "--detach", "--entrypoint", "sleep", "admin", "3600").split()[-1]
    try:
        yield Operator(check, container)
    finally:
        tried("docker", "rm", "-f", container)


def commands(check: Check) -> str:
    """Run each command of the pages."""
    with operator(check) as expunge:
        installation(expunge)
        models(expunge)
        requests(expunge)
        access(expunge)
        logs(expunge)
    named = set().union(*(named_commands((ROOT / "docs" / page).read_text()) for page in PAGES))
    missed = sorted(named - expunge.ran - RESTORING - {each for each in named if each.split()[0] in ELSEWHERE})
    assert not missed, f"the pages name what the check did not run: {', '.join(missed)}"
    return f"{len(expunge.ran)} commands of {', '.join(PAGES)} run in the operator container"


RESTORING = {"restore"}
"""run by the step `restore`"""


def installation(expunge: Operator) -> None:
    """What looks at the installation and changes nothing of it, or takes back what it changed."""
    expunge("doctor", ends=(0,))
    expunge("drain", "--wait", says="drained")
    expunge("drain", "--undo", "--wait", says="taking work")
    expunge("migrate")
    expunge("init", "/tmp/recipes")
    expunge("login", "here", "http://api:8750", given=f"{expunge.check.promises.key}\n")
    expunge("--server", "here", "models", "list", says=MODEL)
    expunge("backup", "/backups")


def models(expunge: Operator) -> None:
    """Register a model for trial, look at it, change its policy, train it again, retire it."""
    expunge("models", "add", TRIAL, "--recipe", "lasting", "--method", "retrain", "--batch", "0")
    expunge("models", "show", TRIAL, says=TRIAL)
    expunge("models", "policy", TRIAL, "--batch", "1d")
    expunge("models", "policy", TRIAL, "--fallback", "retrain")
    expunge("models", "policy", TRIAL, "--set", "max_accuracy_drop=0.2")
    expunge("models", "retrain", TRIAL, "--dry-run")
    expunge("models", "retrain", TRIAL, "--yes")
    with expunge.check.promises.client() as client:
        found = client.current(MODEL)
        assert found is not None
        client.report(MODEL, "shop", found[1]["number"])
    expunge("models", "remove-consumer", MODEL, "shop")
    expunge("models", "retire", TRIAL, "--yes")


def requests(expunge: Operator) -> None:
    """Requests that wait for a decision or are blocked, and the ways out."""
    promises = expunge.check.promises
    with promises.client() as client:
        first, second, third, fourth, fifth = promises.people(5)
        near = [client.delete(subject_id=each.upper(), models=[MODEL]) for each in (first, second)]
        waiting = [client.delete(subject_id=each, verified=False, models=[MODEL]) for each in (third, fourth)]
        expunge("requests", "same-person", near[0]["id"], "--subject", first)
        expunge("requests", "other-person", near[1]["id"])
        expunge("requests", "verify", waiting[0]["id"])
        expunge("requests", "reject", waiting[1]["id"], "--reason", "The requester is somebody else.")
        expunge("requests", "show", waiting[0]["id"])
        blocked(expunge, fifth)


def blocked(expunge: Operator, who: str) -> None:
    """Have a request blocked because its recipe was changed; put the recipe back and retry."""
    recipe = expunge.check.project.recipes / f"{MODEL}.py"
    kept = recipe.read_text()
    try:
        recipe.write_text(kept.replace("epochs=10", "epochs=11"))
        with expunge.check.promises.client() as client:
            request = client.delete(subject_id=who, models=[MODEL])
            eventually(lambda: client.request(request["id"])["status"], lambda status: status == "blocked", 90)
            expunge("requests", "list", "--status", "blocked", says=request["id"][:4])
    finally:
        recipe.write_text(kept)
    expunge("requests", "retry", request["id"])
    with expunge.check.promises.client() as client:
        client.wait(request["id"], 90)


def access(expunge: Operator) -> None:
    """Keys, holds, and receivers of webhooks."""
    made = expunge.json("keys", "create", "--role", "viewer", "--label", "deploy-check-2")
    after = expunge("keys", "rotate", made["id"]).split("_")[1]  # the prefix of the key, which is shown once
    for key in (made["id"], after):  # the first one too: in its overlap, without a successor, it would rightly ring
        expunge("keys", "revoke", key)
    hold = expunge.json("holds", "place", "--subject", expunge.check.promises.people(1)[0], "--reason", "A lawsuit.")
    expunge("holds", "lift", hold["id"])
    # production sends to https outside of this machine alone: here there is no such receiver, and the command says so
    expunge("webhooks", "list", "0123", ends=(1,))
    expunge("webhooks", "remove", "0123", ends=(1,))
    expunge("drop", "match", ends=(1, 2))


def logs(expunge: Operator) -> None:
    """The audit log, and its new key, after which certificates are signed by that."""
    expunge("audit", "export", "/tmp/log.jsonl")
    expunge("audit", "verify", "--file", "/tmp/log.jsonl")
    expunge("audit", "verify")
    expunge("audit", "rotate-key")
    promises = expunge.check.promises
    shown = ran("docker", "exec", expunge.container, "cat", "/var/lib/expunge/log.vkey").strip()
    assert shown != promises.log_key
    promises.log_key = shown
    # a secret of Compose is one file, mounted as it was when the container started: the new one comes with a start
    expunge.check.project.compose("restart", "api", "scheduler")
    expunge.check.project.await_ready()
    promises.delete(promises.people(1))


def restore(check: Check) -> str:
    """Put a backup back from which deletions are missing, and follow the page to its end."""
    promises, project = check.promises, check.project
    with operator(check) as expunge:
        promises.kept()
        expunge("backup", "/backups/before.dump")
        later = promises.people(AFTER_BACKUP)
        promises.delete(later)
        promises.kept()
        expunge("audit", "export", "/backups/log.jsonl")
        put_back(check, "before.dump")
        expunge("migrate")
        # the backup is so young that it says of workers that they lived a moment ago: the command asks to wait 30 s
        words = ("restore", "--log", "/backups/log.jsonl", "--json")
        report = json.loads(eventually(lambda: expunge(*words, ends=(0, 1)), bool, HEARTBEATS_SECONDS))
        project.compose("start", "api")
        said = refused_write(check)
        expunge("restore", "--confirm")
        project.compose("up", "--detach", "--no-recreate", *check.services())
        project.await_ready()
        lost = set(report["requests_lost"])
        again = [case for case in later if promises.ids[case] in lost]
        promises.delete(again)
        promises.kept()
        expunge("audit", "verify")
        expunge("doctor")
    return f"{AFTER_BACKUP} deletions after the backup, {len(again)} sent again; while it was restored: {said}"


def put_back(check: Check, file: str) -> None:
    """Run the commands that docs/backup.md prints: stop the processes, and put the backup into an empty database."""
    text = (ROOT / "docs" / "backup.md").read_text().partition("## Restore")[2]
    lines = [each.strip() for each in re.findall(r"^ {8}docker compose .*$", text, re.MULTILINE)]
    assert any("pg_restore" in each for each in lines), f"docs/backup.md prints no way to put a backup back: {lines}"
    script = "\n".join(lines).replace("docker compose", " ".join(check.compose_command)).replace("FILE", file)
    ran("bash", "-ec", script, folder=check.project.folder, environment=check.project.environment)


def refused_write(check: Check) -> str:
    """Return what a write is answered while the restore is not confirmed."""

    def look() -> str:
        try:
            answer = httpx.post(
                f"{check.promises.url}/v1/deletion-requests",
                json={"subject_id": "nobody-1"},
                headers={"Authorization": f"Bearer {check.promises.key}", "Idempotency-Key": "deploy-check-refused"},
                trust_env=False,
            )
        except httpx.TransportError:
            return ""
        return f"{answer.status_code} {answer.json().get('code')}"

    said = eventually(look, bool, 60)
    assert said == "503 read_only", said
    return said


STEPS = (
    Step(
        "commands",
        "Each command of the operators' pages is run in the operator container.",
        150,
        commands,
        ("own-recipe",),
    ),
    Step("restore", "A backup is put back, and the log brings what it lacks.", 120, restore, ("own-recipe",)),
)
