"""The chart and Compose run the same service: each difference between them stands here with its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from expunge_service.infra.settings import API_SECRETS, Settings
from expunge_workers.main import NEEDED
from tests.docs.test_chart import EVERYTHING, PRODUCTION, given, named, needs_helm, over, pods, rendered
from tests.harness import helm

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
INSTALL = (ROOT / "docs" / "install.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
FILES = ["pepper", "sealing.key", "signing.key", "session.key"]
IN_FOLDERS = over(EVERYTHING, {"worker": {"resources": {"limits": {"memory": "8Gi"}}}}) | {"settings": {}}
PAIRS = {
    "api": ("api", "api"),
    "worker": ("worker", "worker"),
    "updater": ("updater", "worker"),
    "scheduler": ("scheduler", "scheduler"),
    "migrate": ("migrate", "migrate"),
    "gpu-worker": ("gpu-worker", "worker"),
    "gpu-updater": ("gpu-updater", "worker"),
    "admin": ("admin", "admin"),
    "backup": ("nightly", "backup"),
    "doctor": ("nightly", "doctor"),
}
"""each process: the service of Compose, and the pod of the chart"""
BUCKET = ("REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "ALLOW_HTTP")
OPERATORS = ("admin", "backup", "doctor")
COMPUTE = ("worker", "updater", "gpu-worker", "gpu-updater")
SERVERS = {
    "postgres": "the chart names a server of yours: networkPolicy.egress.database",
    "keys": "the same: networkPolicy.egress.keyStore",
    "redis": "the same: networkPolicy.egress.broker",
    "prometheus": "a cluster has one, which finds the API by ServiceMonitor or annotations",
    "alertmanager": "a cluster has one, to which its Prometheus sends the alerts of PrometheusRule",
    "grafana": "a cluster has one, whose sidecar finds the ConfigMap of the dashboard",
}
Facts = dict[str, Any]


def image() -> dict[str, str]:
    """Return the variables that the Dockerfile gives every process."""
    (text,) = re.findall(r"^ENV (PATH(?:.|\\\n)*?[^\\])$", DOCKERFILE, re.MULTILINE)
    return dict(re.findall(r"(EXPUNGE_\w+)=(\S+)", text))


def of_secret(name: str, kind: str) -> set[str]:
    """Return what docs/install.md puts into a Secret: files, or variables (``literal``)."""
    (line,) = re.findall(rf"kubectl create secret generic {name} +(--.*)$", INSTALL, re.MULTILINE)
    return set(re.findall(rf"--from-{kind}=([^ =]+)", line))


def seconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def default(text: str) -> str:
    """Return what Compose reads where .env says nothing."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def gibibytes(text: str) -> str:
    """Return a memory limit as both write it."""
    return default(text).lower().removesuffix("i")


def of_compose(process: str) -> Facts:
    name = PAIRS[process][0]
    service = COMPOSE[name]
    facts: Facts = {"process": service["command"]}
    if name == "nightly":
        facts["process"] = re.search(rf"expunge ({process}[^|\n]*?)(?: \|\||$)", service["command"][0])[1].split()  # type: ignore[index]
    if name == "admin":
        facts["process"] = "waits for commands" if service.get("profiles") == ["admin"] else service["command"]
    variables = image() | {k: default(v or "") for k, v in service.get("environment", {}).items()}
    facts |= {f"variable {k}": address(k, v) for k, v in variables.items()}
    mounts = [each.split(":") for each in service.get("volumes", [])] + [["", each] for each in service["tmpfs"]]
    facts |= {f"place {path}": "read only" if mode == ["ro"] else "written" for _, path, *mode in mounts}
    secrets = service.get("secrets", [])
    if "place /run/secrets" in facts:
        secrets = FILES
    facts |= {f"secret {each}": True for each in secrets}
    facts["probe"] = probe(service.get("healthcheck", {}).get("test", []))
    facts["end"] = seconds(service["stop_grace_period"])
    facts["memory"] = gibibytes(str(service["mem_limit"]))
    facts["read-only root"] = service["read_only"]
    facts["capabilities"] = service["cap_drop"] == ["ALL"]
    facts["no new privileges"] = service["security_opt"] == ["no-new-privileges:true"]
    facts["user"] = int(re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[0])
    facts["card"] = bool(service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices"))
    facts["image"] = service["image"]
    return facts


def of_chart(process: str) -> Facts:
    name = PAIRS[process][1]
    card = {"enabled": process.startswith("gpu-"), "updater": True}
    made = rendered(over(IN_FOLDERS, {"image": {"repository": "expunge"}, "worker": {"gpu": card}}))
    pod = pods(made)[name]
    (container,) = [each for each in pod["containers"] if each["name"] == process.removeprefix("gpu-")]
    facts: Facts = {"process": container.get("args", "waits for commands")}
    (source,) = [each["secretRef"]["name"] for each in container["envFrom"]]
    variables = image() | given(container) | dict.fromkeys(of_secret(source, "literal"), "")
    facts |= {f"variable {k}": address(k, v) for k, v in variables.items()}
    facts |= {
        f"place {each['mountPath']}": "read only" if each.get("readOnly") else "written"
        for each in container["volumeMounts"]
        if each["name"] != "secrets"
    }
    (files,) = [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "secrets"]
    facts |= {f"secret {each}": True for each in of_secret(files, "file")}
    facts["probe"] = probe(container.get("livenessProbe"))
    facts["end"] = pod.get("terminationGracePeriodSeconds", 30)
    facts["memory"] = gibibytes(container["resources"]["limits"]["memory"])
    walls = container["securityContext"]
    facts["read-only root"] = walls["readOnlyRootFilesystem"]
    facts["capabilities"] = walls["capabilities"] == {"drop": ["ALL"]}
    facts["no new privileges"] = walls["allowPrivilegeEscalation"] is False
    facts["user"] = pod["securityContext"]["runAsUser"]
    facts["card"] = "nvidia.com/gpu" in container["resources"]["limits"]
    facts["image"] = container["image"]
    return facts


def address(name: str, value: str) -> str:
    """Return the value, but of an address only that there is one: each installation has its own."""
    return "" if name.endswith("_URL") and name != "EXPUNGE_URL" else value


def probe(asked: Any) -> str | None:
    """Return what a probe asks, however it asks."""
    text = str(asked or "")
    if found := re.search(r"8750(/\w+)|'path': '(/\w+)", text):
        return f"GET {found[1] or found[2]}"
    if found := re.search(r"find /tmp/\S*heartbeat -newermt \W+(\d+) seconds", text):
        return f"a heartbeat of the last {found[1]} seconds"
    return text or None


def told(processes: tuple[str, ...], *facts: str) -> set[tuple[str, str]]:
    return {(process, fact) for process in processes for fact in facts}


DIFFERENCES = {
    "a pod has a folder of its own there, which goes with it; Compose has a volume, which migrate makes": told(
        ("api", *COMPUTE, "scheduler"), "place /var/lib/expunge"
    ),
    "Kubernetes puts an account of its own into /run/secrets": told(tuple(PAIRS), "variable EXPUNGE_SECRETS"),
    "a Secret cannot be written: docs/install.md says how rotate-key is run": told(OPERATORS, "place /run/secrets"),
    "the API reads no data: it is not told where they are": told(("api",), "variable EXPUNGE_DATA"),
    "worker and updater of a pod share its /tmp, so each has a file of its own": told(
        (*COMPUTE, "scheduler"), "variable EXPUNGE_HEARTBEAT_FILE"
    ),
    "a pod says that its worker has groups, and which device each container has": told(
        COMPUTE, "variable EXPUNGE_PLACES"
    )
    | told(("worker", "updater", *OPERATORS), "variable EXPUNGE_DEVICE"),
    "calls come for a while after the Service was told, and downloads may end": told(("api",), "end"),
    "nobody waits for what it does not do: it waits for commands": told(("admin",), "end"),
    "a command takes the key from the shell that starts the container; in the chart a Secret may have it": told(
        OPERATORS, "variable EXPUNGE_API_KEY"
    ),
    "the name of the API's Service begins with the release's": told(OPERATORS, "variable EXPUNGE_URL"),
    "it computes no model: in Compose it has the lines of a worker": told(("scheduler",), "memory"),
    "credentials of a bucket are keys of your Secrets (environment), or the machine's role": told(
        tuple(PAIRS), *(f"variable AWS_{name}" for name in BUCKET)
    ),
    "a Job has no probe: one that fails is seen as such": told(("backup", "doctor"), "probe"),
}


@needs_helm
@pytest.mark.parametrize("process", PAIRS)
def test_each_difference_of_a_process_has_its_reason(process: str) -> None:
    theirs, ours = of_compose(process), of_chart(process)
    differing = {(process, fact) for fact in theirs.keys() | ours.keys() if theirs.get(fact) != ours.get(fact)}
    reasons = {pair for pairs in DIFFERENCES.values() for pair in pairs if pair[0] == process}
    shown = {fact: (theirs.get(fact), ours.get(fact)) for _, fact in differing ^ reasons}
    assert shown == {}, "Compose and the chart; a pair that does not differ has a reason no more"


@needs_helm
def test_each_service_and_each_pod_is_paired_or_has_its_reason() -> None:
    assert COMPOSE.keys() == {service for service, _ in PAIRS.values()} | SERVERS.keys()
    assert pods(rendered(EVERYTHING)).keys() == {pod for _, pod in PAIRS.values()} | {"opendsr"}, (
        "opendsr is a program that Compose leaves to its own host: docs/connectors.md"
    )


@needs_helm
def test_the_secret_files_of_a_pod_are_those_that_its_process_reads(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for process, wanted in {"api": API_SECRETS, **NEEDED}.items():
        read = {getattr(settings, each).name for each in wanted}
        assert {name for name in FILES if of_chart(process).get(f"secret {name}")} == read


@needs_helm
def test_a_worker_is_given_the_same_time_to_give_its_claim_back_everywhere() -> None:
    for process in (*COMPUTE, "scheduler"):
        assert of_compose(process)["end"] == of_chart(process)["end"]
    api = named(rendered(PRODUCTION), "Deployment", "expunge-api")["spec"]["template"]["spec"]
    pause = int(api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert api["terminationGracePeriodSeconds"] >= pause + of_compose("api")["end"]


def test_what_is_compared_does_differ_where_it_should() -> None:
    if not helm.IS_HERE:
        pytest.skip(helm.MISSING)
    assert of_chart("api")["probe"] == of_compose("api")["probe"] == "GET /healthz"
    assert of_chart("worker")["secret sealing.key"] and "secret sealing.key" not in of_chart("api")
    assert of_chart("gpu-worker")["card"] and not of_chart("worker")["card"]
    assert of_chart("gpu-worker")["image"].endswith("-cuda")
