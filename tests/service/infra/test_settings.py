"""Settings: where they come from, which secrets they demand, and that each is documented."""

from __future__ import annotations

import os
import re
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from expunge_client.cli.main import app
from expunge_service.infra.files import Files
from expunge_service.infra.pseudonyms import Pepper, digest, new_id
from expunge_service.infra.settings import (
    API_SECRETS,
    GONE,
    LEAST_DIFFERENT_BYTES,
    Settings,
    SettingsError,
    adopt_secret,
    ensure_secrets,
    next_secret,
    read_secret,
)
from expunge_workers.main import main as workers_main

ROOT = Path(__file__).parents[3]
SECRETS = ("sealing_key_file", "pepper_file", "signing_key_file", "session_key_file")


def test_every_setting_is_documented_with_its_default_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's defaults are set as variables, which must change no setting."""
    page = (ROOT / "docs" / "settings.md").read_text()
    shown = dict(re.findall(r"^\| `EXPUNGE_([A-Z_]+)` \| `?([^`|]*)`?[^|]*\|", page, re.MULTILINE))
    assert shown.keys() == {name.upper() for name in Settings.model_fields}
    assert shown["HOME"] == str(Settings.model_fields["home"].default)
    of_the_source = Settings(home=tmp_path).model_dump()
    for name in shown.keys() - {"HOME", "REGULATION"}:  # a file's content is the default of the second
        monkeypatch.setenv(f"EXPUNGE_{name}", shown[name].strip().replace("$HOME", str(tmp_path)))
    assert Settings(home=tmp_path).model_dump() == of_the_source


def test_what_is_not_set_lies_in_the_home_by_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPUNGE_HOME", "here")
    monkeypatch.setenv("EXPUNGE_STORE", "/elsewhere")
    settings = Settings()
    assert settings.home == tmp_path / "here"
    assert settings.database_url == f"sqlite:///{tmp_path}/here/expunge.db"
    assert settings.pepper_file == tmp_path / "here" / "secrets" / "pepper"
    assert settings.store == Path("/elsewhere")


def test_the_regulation_that_was_answered_lies_in_the_home_and_a_variable_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings(home=tmp_path).regulation is None
    assert "regulation" not in Settings(home=tmp_path).model_fields_set
    (tmp_path / "regulation").write_text("uk-gdpr\n")
    assert Settings(home=tmp_path).regulation == "uk-gdpr"
    monkeypatch.setenv("EXPUNGE_REGULATION", "none")
    assert Settings(home=tmp_path).regulation is None
    assert "regulation" in Settings(home=tmp_path).model_fields_set


@pytest.mark.parametrize("name", GONE)
def test_a_variable_that_is_no_setting_any_more_ends_the_start_with_the_way_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What it says to set exists."""
    monkeypatch.setenv(f"EXPUNGE_{name}", "1")
    with pytest.raises(SettingsError, match=f"EXPUNGE_{name} is no setting any more") as refused:
        Settings(home=tmp_path)
    variables = {f"EXPUNGE_{each.upper()}" for each in Settings.model_fields}
    named = set(re.findall(r"EXPUNGE_[A-Z_]+", str(refused.value))) - {f"EXPUNGE_{name}"}
    assert named <= variables and (named or "It is fixed now" in str(refused.value))


@pytest.mark.parametrize(
    ("told", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("3.5", 3.5), ("0", 0)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, seconds: float
) -> None:
    monkeypatch.setenv("EXPUNGE_CANCEL_WINDOW", told)
    assert Settings(home=tmp_path).cancel_window == seconds


@pytest.mark.parametrize("told", ["-1", "1w", "an hour", "h", "-1h"])
def test_what_is_no_duration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("EXPUNGE_GRACE", told)
    with pytest.raises(SettingsError, match="EXPUNGE_GRACE"):
        Settings(home=tmp_path)


WRONG = {
    "HEARTBEAT_FILE": "/etc/passwd/worker.heartbeat",
    "TIME_ZONE": "Europe/Atlantis",
    "MODE": "live",
    "HOME": "/etc/passwd",
    "DATABASE_URL": "mysql://me:canary@host/x",
    "BROKER_URL": "me:canary@host",
    "STORE": "gs://me:canary@bucket",
    "PRIVATE_STORE": "s3://me:canary@bucket",
    "KEY_STORE_URL": "postgresql://me:canary@host:port/x",
    "KEY_FOLDER": "/etc/passwd/keys",
    "SECRETS": "/etc/passwd",
    "RECIPES": "/etc/passwd",
    "DATA": "/etc/passwd",
    "SOURCES": '{"crm": {"password": "canary"}}',
    "DEVICE": "cuda:x",
    "LISTEN": "8750",
    "URL": "me:canary@host",
    "REGULATION": "iso",
    "CANCEL_WINDOW": "1w",
    "LARGE_REQUEST": "many",
    "GRACE": "nonsense",
    "FOUR_EYES": "all",
    "CONSOLE": "perhaps",
    "LOG_LEVEL": "TRACE",
    "TENANTS": "Them!",
    "PLACES": "cpu",
    "ACTOR_PROXY": "10.0.0.5",
    "LOG_ORIGIN": "my log",
    "TRIAL_SECONDS": "-1",
    "SAMPLE_BYTES": "2GB",
    "RATE": "nan",
    "ADMISSION": "drop list",
    "RUNNER": "ray@s3://me:canary@bucket",
    "VERIFY_URL": "me:canary@host",
}


@pytest.mark.parametrize("name", [each.upper() for each in Settings.model_fields])
def test_a_wrong_value_is_told_in_one_line_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The variable stands first, pydantic's words and a password nowhere."""
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    monkeypatch.setenv(f"EXPUNGE_{name}", WRONG[name])
    with pytest.raises(SettingsError) as caught:
        Settings()
    line = str(caught.value)
    assert "\n" not in line and line.startswith(f"EXPUNGE_{name}: ")
    assert re.search(r"Write|1 to 63|1 to 31|is none of", line)
    assert not re.search(r"pydantic|Input should|canary", line)


def test_every_process_and_command_ends_with_the_line_of_a_wrong_value(tmp_path: Path) -> None:
    modules = [("expunge_workers.main", name) for name in ("worker", "updater", "scheduler", "restore")]
    modules += [("expunge_workers.doctor",), ("expunge_service.serve",), ("expunge_client.cli.main", "doctor")]
    environment = os.environ | {"EXPUNGE_HOME": str(tmp_path), "EXPUNGE_GRACE": "nonsense"}
    started = [
        subprocess.Popen([sys.executable, "-P", "-m", *each], env=environment, stderr=subprocess.PIPE, text=True)
        for each in modules
    ]
    told = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
    line = "EXPUNGE_GRACE: 'nonsense' is refused. Write seconds, or a number with its unit: 90s, 15m, 12h, 7d."
    assert {(text.strip(), code) for text, code in told[:-1]} == {(line, 1)}
    assert line in " ".join(told[-1][0].split()) and told[-1][1] == 2


def test_two_wrong_values_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_GRACE", "x")
    monkeypatch.setenv("EXPUNGE_RATE", "0")
    with pytest.raises(SettingsError, match=r"EXPUNGE_GRACE: 'x' is refused.*EXPUNGE_RATE: '0' is refused"):
        Settings()


def test_the_api_listens_where_one_setting_says(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).address == ("127.0.0.1", 8750)
    assert Settings(home=tmp_path, listen="[::1]:80").address == ("::1", 80)
    for wrong in ("8750", "127.0.0.1", "127.0.0.1:", ":8750", "127.0.0.1:65536", "127.0.0.1:-1"):
        with pytest.raises(SettingsError, match="EXPUNGE_LISTEN"):
            Settings(home=tmp_path, listen=wrong)


def test_development_makes_missing_secrets_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ensure_secrets(settings)
    made = {name: read_secret(getattr(settings, name)) for name in SECRETS}
    assert len(set(made.values())) == 4
    ensure_secrets(settings)
    for name, secret in made.items():
        path: Path = getattr(settings, name)
        assert read_secret(path) == secret
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_secret_has_its_name_once_it_is_whole_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts at the same time finds no file or all of it; a power cut leaves no empty one."""
    path = tmp_path / "secrets" / "pepper"
    named: list[bool] = []
    sync = os.fsync

    def watched(handle: int) -> None:
        named.append(path.exists())
        sync(handle)

    monkeypatch.setattr("os.fsync", watched)
    assert next_secret(path) == path.with_name("pepper.next")
    adopt_secret(path)
    assert not named[-2] and named[-1]
    path.unlink()
    named.clear()
    ensure_secrets(Settings(home=tmp_path), ["pepper_file"])
    assert named == [False, True], "its bytes, then its name"
    assert [each.name for each in path.parent.iterdir()] == ["pepper"]


def test_of_processes_that_start_together_one_makes_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secrets" / "pepper"
    link = Files.link

    def overtaken(files: Files, source: Path, target: Path) -> None:
        target.write_text("ab" * 32)
        link(files, source, target)

    monkeypatch.setattr(Files, "link", overtaken)
    ensure_secrets(Settings(home=tmp_path), ["pepper_file"])
    assert read_secret(path) == b"\xab" * 32
    assert [each.name for each in path.parent.iterdir()] == ["pepper"]


@pytest.mark.parametrize("name", SECRETS)
def test_production_refuses_to_start_without_a_secret_and_names_it(tmp_path: Path, name: str) -> None:
    ensure_secrets(Settings(home=tmp_path))
    settings = Settings(home=tmp_path, mode="production")
    ensure_secrets(settings)
    getattr(settings, name).unlink()
    with pytest.raises(SettingsError, match=f"EXPUNGE_SECRETS: there is no file {getattr(settings, name)}"):
        ensure_secrets(settings)
    assert not getattr(settings, name).exists()


@pytest.mark.parametrize("content", ["", "zz" * 32, "ab" * 31, "ab" * 33, "\x00"])
def test_a_malformed_secret_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    with pytest.raises(SettingsError, match="EXPUNGE_SECRETS"):
        Pepper.load(path)


@pytest.mark.parametrize("pattern", ["00" * 32, "0123456789abcdef" * 4, b"changeme".hex() * 4])
@pytest.mark.parametrize("name", SECRETS)
def test_production_refuses_a_secret_that_somebody_typed(tmp_path: Path, name: str, pattern: str) -> None:
    ensure_secrets(Settings(home=tmp_path))
    getattr(Settings(home=tmp_path), name).write_text(pattern)
    ensure_secrets(Settings(home=tmp_path))
    with pytest.raises(SettingsError, match=f"{getattr(Settings(home=tmp_path), name)} holds a pattern") as refused:
        ensure_secrets(Settings(home=tmp_path, mode="production"))
    assert pattern not in str(refused.value)


def test_random_secrets_are_never_taken_for_patterns() -> None:
    fewest = min(len(set(secrets.token_bytes(32))) for _ in range(20_000))
    assert fewest >= LEAST_DIFFERENT_BYTES


SECRET_FILES = ("pepper", "sealing.key", "signing.key", "session.key")


@pytest.mark.parametrize(
    "command", ["migrate", "doctor", "audit rotate-key", "audit verify", "keys create", "restore"], ids=str
)
def test_each_command_misses_the_secret_files_that_the_page_lists_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    (row,) = re.findall(rf"^\| `expunge {command}` \| (.*) \|$", page, re.MULTILINE)
    listed = set(SECRET_FILES) if row == "all four" else {name for name in SECRET_FILES if f"`{name}`" in row}
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    monkeypatch.setattr("expunge_service.cli.commands.doctor.ask_worker", tuple)
    monkeypatch.setattr("expunge_service.cli.log_check._versions", list)
    monkeypatch.setattr("expunge_service.cli.log_check._tables", lambda: ([], []))
    monkeypatch.setattr("expunge_service.cli.log_check._served", lambda _: ("", []))
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    monkeypatch.setenv("EXPUNGE_MODE", "production")
    missed = set()
    for name in SECRET_FILES:
        path, aside = tmp_path / "secrets" / name, tmp_path / name
        path.rename(aside)
        done = CliRunner().invoke(app, command.split())
        if f"there is no file {path}" in f"{done.exception} {done.output}":
            missed.add(name)
        aside.rename(path)
    assert missed == listed


def test_a_secret_never_shows_in_a_representation() -> None:
    pepper = Pepper.of(b"\x07" * 32)
    assert "07" * 32 not in repr(pepper)
    assert repr(b"\x07" * 32)[2:-1] not in repr(pepper)
    assert "canary" not in repr(Settings(key_store_url="postgresql://me:canary@127.0.0.1/none"))


def test_digests_differ_by_kind_value_and_pepper() -> None:
    one, two = Pepper.of(b"1" * 32), Pepper.of(b"2" * 32)
    digests = {
        digest(pepper, kind, value) for pepper in (one, two) for kind in ("subject", "sample") for value in ("a", "b")
    }  # type: ignore[arg-type]
    assert len(digests) == 8
    assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in digests)
    assert one.id != two.id
    assert one == Pepper.of(b"1" * 32)
    assert new_id() != new_id()


def test_the_api_starts_in_production_without_the_sealing_key(tmp_path: Path) -> None:
    ensure_secrets(Settings(home=tmp_path))
    settings = Settings(home=tmp_path, mode="production")
    settings.sealing_key_file.unlink()
    ensure_secrets(settings, API_SECRETS)


@pytest.mark.parametrize(("process", "name"), [("worker", "sealing_key_file"), ("scheduler", "signing_key_file")])
def test_worker_and_scheduler_refuse_to_start_in_production_with_a_typed_secret(
    tmp_path: Path, process: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ensure_secrets(Settings(home=tmp_path))
    getattr(Settings(home=tmp_path), name).write_text("00" * 32)
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    monkeypatch.setenv("EXPUNGE_MODE", "production")
    assert workers_main([process]) == 1
    assert re.fullmatch(r"EXPUNGE_SECRETS: .* holds a pattern\. .*\n", capsys.readouterr().err)
