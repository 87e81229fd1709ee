"""The Dockerfile and docker-compose.yml, as far as they can be checked without a Docker engine."""

import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
import yaml

from expunge_service.cli.checks import _broker
from expunge_service.infra.broker.notify import QUEUE, consumer, notify_one, publisher
from expunge_service.infra.settings import API_SECRETS, Settings
from expunge_workers.main import NEEDED

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE)["services"]


def test_every_variable_is_a_setting_or_belongs_to_another_image(services: dict[str, Any]) -> None:
    ours = {f"EXPUNGE_{name.upper()}" for name in Settings.model_fields}
    for service in services.values():
        given = {name for name in service.get("environment", {}) if name.startswith("EXPUNGE_")}
        assert given <= ours | {"EXPUNGE_API_KEY"}, "which the command line reads"


def test_no_password_has_a_default() -> None:
    interpolated = re.findall(r"\$\{([^}]*)\}", COMPOSE)
    assert interpolated
    words = set(interpolated) - {"name"}  # of the loop in the header
    chosen = {each.partition(":-")[0] for each in words if ":-" in each}
    places = {"EXPUNGE_STORE", "EXPUNGE_PRIVATE_STORE", "EXPUNGE_KEY_FOLDER"}
    assert chosen == places | {"EXPUNGE_WORKER_MEMORY"}, "no password has a default"
    required = words - {each for each in words if ":-" in each}
    assert required and all(re.fullmatch(r"EXPUNGE_[A-Z]+_PASSWORD:\?choose one", each) for each in required)


def test_the_api_can_open_neither_states_nor_vectors(services: dict[str, Any]) -> None:
    api = services["api"]
    private = {"EXPUNGE_KEY_STORE_URL", "EXPUNGE_KEY_FOLDER", "EXPUNGE_PRIVATE_STORE"}
    assert private <= set(services["worker"]["environment"])
    assert not private & set(api["environment"])
    assert api["volumes"] == ["store:/var/lib/expunge/store:ro", "./recipes:/opt/recipes:ro"]


@pytest.mark.parametrize("name", ["api", "worker", "gpu-worker", "updater", "gpu-updater", "scheduler"])
def test_a_container_holds_the_secret_files_that_its_process_reads(
    services: dict[str, Any], tmp_path: Path, name: str
) -> None:
    kind = services[name]["command"][-1]
    settings = Settings(home=tmp_path)
    read = {getattr(settings, each).name for each in {"api": API_SECRETS, **NEEDED}[kind]}
    assert set(services[name]["secrets"]) == read


def test_everything_named_exists(services: dict[str, Any]) -> None:
    document = yaml.safe_load(COMPOSE)
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("secrets", [])) <= set(document["secrets"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            made = source in {f"./{folder}" for folder in ("secrets", "backups", "recipes", "data")}
            assert made or ((ROOT / source).exists() if source.startswith(".") else source in document["volumes"]), name


def test_recipes_of_the_operator_are_read_by_all_that_name_or_run_them(services: dict[str, Any]) -> None:
    for name in ("api", "worker", "gpu-worker", "updater", "gpu-updater", "admin", "nightly", "migrate"):
        target = services[name]["environment"]["EXPUNGE_RECIPES"]
        assert f"./recipes:{target}:ro" in services[name]["volumes"], name
    for name in ("worker", "gpu-worker", "updater", "gpu-updater", "admin"):
        assert f"./data:{services[name]['environment']['EXPUNGE_DATA']}:ro" in services[name]["volumes"], name


def test_the_operators_container_has_all_secrets_and_all_places(services: dict[str, Any]) -> None:
    admin, worker = services["admin"], services["worker"]
    named = {name: value for name, value in worker["environment"].items() if name != "EXPUNGE_HEARTBEAT_FILE"}
    assert set(named.items()) <= set(admin["environment"].items())
    in_its_home = {"spool:/var/lib/expunge/spool"}  # the worker has no home that it can write to
    assert {*worker["volumes"]} - in_its_home <= {*admin["volumes"]}
    assert "./secrets:" + admin["environment"]["EXPUNGE_SECRETS"] in admin["volumes"], (
        "rotate-key replaces a file there"
    )
    assert {"home:/var/lib/expunge", "./backups:/backups"} <= set(admin["volumes"])
    assert (admin["profiles"], admin["restart"]) == (["admin"], "no")
    assert "depends_on" not in admin, "a command starts nothing"


def test_no_container_takes_all_memory_or_fills_the_disk_with_its_log(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["mem_limit"], name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_a_database_is_healthy_where_others_reach_it(services: dict[str, Any]) -> None:
    """PostgreSQL's image initialises behind a first server, which answers on its socket alone."""
    for name in ("postgres", "keys"):
        assert "-h 127.0.0.1" in services[name]["healthcheck"]["test"][1]


HEADER = COMPOSE[: COMPOSE.index("\nx-logging: ")]


def test_the_commands_of_the_header_make_all_secrets_and_redis_gets_the_password(
    services: dict[str, Any], tmp_path: Path
) -> None:
    commands = [re.sub("  +# .*", "", line[4:]) for line in HEADER.splitlines() if line.startswith("#   ")]
    first = [each for each in commands if not each.startswith("docker ")]
    if os.geteuid() != 0:  # only root gives files away
        first = [re.sub("-o 10001 -g 10001 ", "", each) for each in first if not each.startswith("chown ")]
    run("set -eu\n" + "\n".join(first), tmp_path, dict(os.environ), {})
    passwords = dict(line.split("=") for line in (tmp_path / ".env").read_text().splitlines())
    asked = {each.partition(":")[0] for each in re.findall(r"\$\{(\w+:\?)", COMPOSE)}
    assert set(passwords) == asked and len(set(passwords.values())) == 4
    assert f">{passwords['EXPUNGE_REDIS_PASSWORD']} " in (tmp_path / "secrets" / "redis.acl").read_text()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()}
    assert modes == dict.fromkeys(("pepper", "sealing.key", "signing.key", "session.key"), 0o600) | {"redis.acl": 0o444}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700 and (tmp_path / ".env").stat().st_mode & 0o77 == 0
    if os.geteuid() == 0:
        user = int(re.search(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1])  # type: ignore[index]
        assert {(tmp_path / "secrets" / name).stat().st_uid for name in ("pepper", "signing.key")} == {user}
        assert (tmp_path / "backups").stat().st_uid == user
    assert {path.name for path in tmp_path.iterdir()} >= {"recipes", "data", "backups"}


WORKER_HOST = yaml.safe_load((ROOT / "compose.worker.yml").read_text())
MORE_FILES = ("compose.worker.yml", "compose.hosts.yml")


def test_a_process_that_beats_is_healthy_and_one_that_hangs_is_not(services: dict[str, Any], tmp_path: Path) -> None:
    beats = tmp_path / "heartbeat"
    test = services["worker"]["healthcheck"]["test"][1].replace("$$", "$")
    file = services["worker"]["environment"]["EXPUNGE_HEARTBEAT_FILE"]
    assert file in test
    command = ["sh", "-c", test.replace(file, str(beats))]

    def healthy() -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert not healthy()
    beats.touch()
    assert healthy()
    os.utime(beats, (time.time() - 90, time.time() - 90))
    assert not healthy()


def test_a_second_host_runs_the_workers_of_the_first(services: dict[str, Any]) -> None:
    own = {"EXPUNGE_PLACES"}
    assert set(WORKER_HOST["services"]) == {"worker", "updater", "gpu-worker", "gpu-updater"}
    for name, theirs in WORKER_HOST["services"].items():
        ours = services[name]
        assert set(theirs["environment"]) - own == set(ours["environment"]), name
        for same in ("image", "build", "command", "secrets", "profiles", "deploy", "stop_grace_period", "mem_limit"):
            assert theirs.get(same) == ours.get(same), (name, same)
        for same in ("read_only", "tmpfs", "cap_drop", "security_opt", "logging", "restart", "healthcheck"):
            assert theirs[same] == ours[same], (name, same)
        targets = [[re.sub(r".*:(?=/)", "", each) for each in made["volumes"]] for made in (theirs, ours)]
        assert targets[0] == targets[1], name
        assert "ports" not in theirs and "depends_on" not in theirs, name


def test_what_a_second_host_needs_is_named_and_required(services: dict[str, Any]) -> None:
    text = (ROOT / "compose.worker.yml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == {"EXPUNGE_DATABASE_URL", "EXPUNGE_KEY_STORE_URL", "EXPUNGE_BROKER_URL"}
    head = text[: text.index("\nx-logging: ")]
    for name in {*re.findall(r"\$\{(\w+)", text), *WORKER_HOST["secrets"]} - {
        "EXPUNGE_WORKER_MEMORY",
        "EXPUNGE_PLACES",
    }:
        assert name in head, name
    opened = yaml.safe_load((ROOT / "compose.hosts.yml").read_text())["services"]
    assert set(opened) == {"postgres", "keys", "redis"} <= set(services)
    ports = {name: each["ports"][0].rsplit(":", 2)[1:] for name, each in opened.items()}
    assert ports == {"postgres": ["5432", "5432"], "keys": ["5433", "5432"], "redis": ["6379", "6379"]}
    for port in ("5432/expunge", "5433/keys", "6379/0"):
        assert f"10.0.0.1:{port}" in head
    assert all(
        "ports" in each and each["ports"][0].startswith("${EXPUNGE_PRIVATE_ADDRESS:?") for each in opened.values()
    )


def test_ports_are_published_on_this_host_alone(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_copies_every_package_and_runs_as_a_number() -> None:
    text = (ROOT / "Dockerfile").read_text()
    packages = {"connect", "expunge", "unlearning", "service", "workers", "migrations", "examples"}
    assert packages <= set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)


def test_hadolint_finds_nothing() -> None:
    linter = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if linter is None:
        pytest.skip("unverified here: there is no hadolint")
    subprocess.run([linter, str(ROOT / "Dockerfile")], check=True)


def test_compose_is_what_the_compose_schema_allows() -> None:
    """The official schema, vendored with its licence beside this test."""
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    # what it calls "id" names its own parts; newer drafts do without
    validator = jsonschema.Draft7Validator(json.loads(json.dumps(schema).replace('"id": "#', '"$comment": "#')))
    for name in MORE_FILES:
        assert [error.message for error in validator.iter_errors(yaml.safe_load((ROOT / name).read_text()))] == [], name
    document = yaml.safe_load(COMPOSE)
    assert [error.message for error in validator.iter_errors(document)] == []
    document["services"]["api"]["depnds_on"] = ["migrate"]
    document["services"]["scheduler"]["restart"] = 3
    assert len(list(validator.iter_errors(document))) == 2, "the schema does judge"


def test_what_must_run_is_looked_at_and_migrations_run_once_before_it(services: dict[str, Any]) -> None:
    for name in ("postgres", "keys", "redis", "api", "worker", "updater", "scheduler", "gpu-worker", "nightly"):
        assert services[name]["healthcheck"]["test"], name
    assert services["migrate"]["command"] == ["migrate"]
    assert services["migrate"]["restart"] == "no"
    for name in ("api", "worker", "gpu-worker", "gpu-updater", "scheduler"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully", name


def test_every_place_gives_a_stopped_worker_the_same_time_and_asks_it_alone(services: dict[str, Any]) -> None:
    """Compose would kill after 10 s, and systemd ask a worker's trainings too: that looks like their failure."""
    ours = {name for name, service in services.items() if str(service["image"]).startswith("expunge:")}
    assert {services[name]["stop_grace_period"] for name in ours} == {"30s"} and {"worker", "updater"} <= ours
    unit = (ROOT / "deploy" / "systemd" / "expunge@.service").read_text().splitlines()
    assert {"TimeoutStopSec=30", "KillMode=mixed"} <= set(unit)
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "expunge" / "values.yaml").read_text())
    assert values["worker"]["terminationGracePeriodSeconds"] == 30


def test_programs_cannot_disagree_which_of_two_merged_parts_wins() -> None:
    """PyYAML 6.0.4 takes the last of a list of parts, 6.0.3 and Docker the first: a worker lost its GPU."""
    assert "<<: [" not in COMPOSE


def test_cuda_is_one_build_argument_away(services: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu$", dockerfile, re.MULTILINE)
    for name in ("gpu-worker", "gpu-updater"):
        assert "cu" in services[name]["build"]["args"]["TORCH_INDEX"]
        assert services[name]["profiles"] == ["gpu"]
        assert services[name]["environment"]["EXPUNGE_DEVICE"] == "cuda"
        assert services[name]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert services["gpu-updater"]["command"] == services["updater"]["command"] != services["gpu-worker"]["command"]


def test_the_broker_works_under_the_access_list_and_no_more_than_that(redis_url: str) -> None:
    """The line that the header gives to Redis, on a real one: Celery's messages pass, the rest is refused."""
    default, ours = re.search(r"printf '(.*?)\\n(.*?)\\n'", HEADER).groups()  # type: ignore[union-attr]
    assert default == "user default off"
    password = secrets.token_hex(8)
    _, name, *rules = ours.replace("%s", password).split()
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", name, *rules)
        try:
            url = redis_url.replace("//", f"//{name}:{password}@")
            assert _broker(url).well
            assert "refuses this user" in _broker(url.replace(password, "wrong")).what
            assert notify_one(publisher(url), "a" * 32)
            with consumer(url).connection() as connection:
                message = connection.SimpleQueue(QUEUE).get(timeout=10)
                assert message.payload[0] == ["a" * 32]
                message.ack()
            with redis.Redis.from_url(url) as user:
                for command in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SHUTDOWN",)):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        user.execute_command(*command)
        finally:
            admin.execute_command("ACL", "DELUSER", name)


def build_steps(dockerfile: str) -> list[tuple[str, str]]:
    """The (instruction, words) of the build stage, lines joined."""
    stage = dockerfile.replace("\\\n", " ").split("\nFROM ")[1]
    lines = [line.strip() for line in stage.splitlines()[1:]]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line and line[0] != "#"]


def nobody() -> dict[str, Any]:
    """Run as nobody where we are root: the steps must not need to be."""
    if os.geteuid():
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def runnable(who: dict[str, Any]) -> str:
    """A Python that this user may run: ours may lie under /root."""
    for path in (sys.executable, *(f"/usr/bin/python3.{minor}" for minor in (13, 12, 11))):
        try:
            done = subprocess.run(
                [path, "-c", "import venv, ensurepip"], check=False, cwd="/", capture_output=True, **who
            )
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip("unverified here: no Python that nobody may run")


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_the_images_install_steps_work_in_a_clean_environment_without_root() -> None:
    """Each COPY and RUN of the build stage, in its order, by nobody; then the entry point, in production mode.

    ``TORCH_INDEX=... pytest -m drill tests/docs/test_deployment.py`` gives the build argument another value.
    The runtime stage (useradd, COPY --from) needs root and an image: it is not exercised here.
    """
    place = Path(f"/tmp/expunge-image-{secrets.token_hex(4)}")  # nobody cannot enter pytest's own folders
    source, target = place / "src", place / "opt"
    for folder in (source, target):
        folder.mkdir(parents=True)
    who = nobody()
    python = runnable(who)
    if who:
        for folder in (place, source, target):
            os.chown(folder, who["user"], who["group"])
    # the build argument: CPU wheels by default, or what this machine can reach
    torch_index = (
        os.environ.get("TORCH_INDEX")
        or re.search(r"^ARG TORCH_INDEX=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    )  # type: ignore[index]
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "PATH"}
    environment = kept | {"HOME": str(place), "PIP_NO_CACHE_DIR": "1", "TORCH_INDEX": torch_index}
    try:
        steps = build_steps((ROOT / "Dockerfile").read_text())
        assert [step for step, _ in steps].count("RUN") == 3
        for step, words in steps:
            if step == "COPY":
                *sources, goal = words.split()
                for name in sources:
                    copy(ROOT / name, source / goal if (ROOT / name).is_dir() else source / goal / name)
            elif step == "RUN":
                command = words.replace("/opt/expunge", str(target / "expunge"))
                command = re.sub(r"^python ", f"{python} ", command)
                run(command, source, environment, who)
        secret = place / "secrets"
        names = "sealing.key pepper signing.key session.key"
        run(
            f"install -d -m 0700 {secret} && for n in {names}; do openssl rand -hex 32 > {secret}/$n; done",
            source,
            environment,
            who,
        )
        ours = {
            "EXPUNGE_MODE": "production",
            "EXPUNGE_HOME": str(place / "home"),
            "EXPUNGE_SECRETS": str(secret),
        }
        run(f"{target}/expunge/bin/expunge migrate", place, environment | ours, who)
        run(
            f"{target}/expunge/bin/python -c 'import expunge_workers.update.run, expunge_service.api.app'",
            place,
            environment | ours,
            who,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def run(command: str, folder: Path, environment: dict[str, str], who: dict[str, Any]) -> None:
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False, **who
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
