"""deploy/: the Helm chart, the systemd units and the proxy's sample, as far as tools on this machine can tell.

Helm's own binary was never found here, so the chart is rendered by Go's template engine and sprig (helm_render/main.go)
where Debian's packages golang-go and golang-github-masterminds-sprig-dev are installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import expunge
from expunge.service.infra.settings import Settings
from expunge_connect.opendsr.commands import commands
from tests.harness.certificates import self_signed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "expunge"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SPRIG = Path("/usr/share/gocode/src/github.com/Masterminds/sprig")
VALIDATOR = os.environ.get("EXPUNGE_TEST_KUBERNETES_VALIDATE") or shutil.which("kubernetes-validate")
OWN_KINDS = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}
"""of KEDA and of the Prometheus operator: Kubernetes has no schema of them"""
PRIVATE = {"EXPUNGE_PRIVATE_STORE", "EXPUNGE_KEY_FOLDER"}


def everything() -> dict[str, Any]:
    """The values with all that is off turned on."""
    values = json.loads(json.dumps(VALUES))
    for part in ("keda", "serviceMonitor", "rules", "dashboard"):
        values[part]["enabled"] = True
    values["rules"]["runbooks"] = "http://127.0.0.1:8750/runbooks"
    values["opendsr"]["url"] = "https://dsr.example.com"
    values["worker"]["gpu"] |= {"enabled": True, "tag": f"{expunge.__version__}-cuda"}
    values["networkPolicy"]["callers"] = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    values["networkPolicy"]["egress"] = [{"ports": [{"protocol": "TCP", "port": 5432}]}]
    return values


def in_buckets() -> dict[str, Any]:
    """The values with all places in buckets, and nothing optional."""
    values = json.loads(json.dumps(VALUES))
    for place in ("store", "privateStore", "keyFolder"):
        values["storage"][place]["url"] = f"s3://bucket/{place}"
    return values


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None or not SPRIG.is_dir():
        pytest.skip("unverified here: apt-get install golang-go golang-github-masterminds-sprig-dev")
    built = tmp_path_factory.mktemp("helm") / "render"
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    command = ["go", "build", "-o", built, Path(__file__).parent / "helm_render" / "main.go"]
    subprocess.run(command, check=True, env=environment | {"GOCACHE": str(built.parent / "cache")})
    return built


def render(renderer: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    named = {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]}
    context = {"Values": values, "Chart": named, "Release": {"Name": "expunge", "Service": "Helm"}}
    command = [renderer, CHART]
    made = subprocess.run(command, input=json.dumps(context), check=True, capture_output=True, text=True).stdout
    return [each for text in json.loads(made).values() for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="module")
def objects(renderer: Path) -> list[dict[str, Any]]:
    return render(renderer, everything())


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"].removeprefix("expunge-"): each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in {"Deployment", "Job"}
    }


def given(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(DEPLOY.rglob("*")) if path.is_file() and not path.is_symlink()}


def test_every_variable_is_a_setting_and_every_port_the_default_one() -> None:
    connected = set(re.findall(r"EXPUNGE_[A-Z_]*[A-Z]", (ROOT / "docs" / "connectors.md").read_text()))
    ours = {f"EXPUNGE_{name.upper()}" for name in Settings.model_fields} | connected
    for path, text in sources().items():
        assert set(re.findall(r"EXPUNGE_[A-Z_]*[A-Z]", text)) <= ours, path
        assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) <= {"8750"}, path
    assert Settings.model_fields["listen"].default == f"127.0.0.1:{VALUES['api']['port']}"
    assert COMPOSE["api"]["ports"] == ["127.0.0.1:8750:8750"]


def test_the_chart_has_the_release_the_rules_and_the_dashboard_of_this_repository() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == expunge.__version__
    assert COMPOSE["api"]["image"] == f"{VALUES['image']['repository']}:{expunge.__version__}"
    for name, place in {"alerts.yml": "alerts.yml", "expunge.json": "grafana/dashboards/expunge.json"}.items():
        assert (CHART / "files" / name).resolve() == ROOT / "dashboards" / place


def test_the_scaler_asks_for_metrics_that_there_are() -> None:
    text = (CHART / "templates" / "worker.yaml").read_text()
    asked = set(re.findall(r"\((expunge_\w+)\)", text))
    assert len(asked) == 2
    source = (ROOT / "service" / "api" / "views" / "metrics.py").read_text()
    assert all(f'"{name}"' in source for name in asked)


def test_each_process_of_compose_is_one_of_the_chart_and_a_worker_host_has_two(objects: list[dict[str, Any]]) -> None:
    found = {name: [each["name"] for each in pod["containers"]] for name, pod in pods(objects).items()}
    assert found == {
        "api": ["api"],
        "migrate": ["migrate"],
        "opendsr": ["opendsr"],
        "scheduler": ["scheduler"],
        "worker": ["worker", "updater"],
    }
    for pod in pods(objects).values():
        for container in pod["containers"]:
            name = container["name"]
            if name != "opendsr":
                words = [name] if name == "migrate" else ["run", name]
                assert container["args"] == words == COMPOSE[name]["command"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["securityContext"]["runAsUser"] == 10001 and pod["enableServiceLinks"] is False


def test_no_process_is_given_what_another_one_holds(objects: list[dict[str, Any]]) -> None:
    found = pods(objects)
    (api,) = found["api"]["containers"]
    assert not PRIVATE & set(given(api)), "it can open neither states nor vectors"
    (store,) = [each for each in api["volumeMounts"] if each["name"] == "store"]
    assert store["readOnly"] is True
    (scheduler,) = found["scheduler"]["containers"]
    assert set(given(scheduler)) >= PRIVATE
    for container in found["worker"]["containers"]:
        assert set(given(container)) >= PRIVATE
    secret = {
        name: next(each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "secrets")
        for name, pod in found.items()
    }
    assert len(set(secret.values())) == 5
    (opendsr,) = found["opendsr"]["containers"]
    assert opendsr["envFrom"] == [{"secretRef": {"name": "expunge-opendsr-environment"}}], "no database, no store"


def test_opendsr_is_a_program_that_calls_the_api_by_its_service(objects: list[dict[str, Any]]) -> None:
    (container,) = pods(objects)["opendsr"]["containers"]
    program, *words = container["args"]
    called = CliRunner().invoke(commands, [*words, "--help"])
    assert (program, called.exit_code) == ("opendsr", 0), called.output
    assert container["ports"] == [{"name": "opendsr", "containerPort": int(words[-1])}]
    assert given(container)["EXPUNGE_URL"] == f"http://expunge-api:{VALUES['api']['port']}"
    policies = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}
    (into_api,), (out,) = policies["expunge-opendsr-calls"]["ingress"], policies["expunge-opendsr"]["egress"]
    assert into_api["from"][0]["podSelector"] == policies["expunge-opendsr"]["podSelector"]
    assert out["to"][0]["podSelector"] == policies["expunge-api"]["podSelector"]
    assert policies["expunge-opendsr"]["ingress"] == [], "who names no callers lets nobody in"


def test_only_the_worker_gets_the_gpu(objects: list[dict[str, Any]]) -> None:
    worker, updater = pods(objects)["worker"]["containers"]
    assert worker["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 1}
    assert (given(worker)["EXPUNGE_DEVICE"], given(updater)["EXPUNGE_DEVICE"]) == ("cuda", "cpu")
    assert "nvidia.com/gpu" not in updater["resources"]["limits"]
    assert worker["image"] == updater["image"] == f"expunge:{expunge.__version__}-cuda"


def test_an_updater_takes_the_place_of_the_workers_models_where_it_is_given_a_gpu(renderer: Path) -> None:
    values = everything()
    values["worker"] |= {"places": "west"}
    values["worker"]["gpu"]["updater"] = True
    for container in pods(render(renderer, values))["worker"]["containers"]:
        assert (given(container)["EXPUNGE_DEVICE"], given(container)["EXPUNGE_PLACES"]) == ("cuda", "west")
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_volumes_and_mounts_agree_with_folders_and_with_buckets(renderer: Path, objects: list[dict[str, Any]]) -> None:
    for made in (objects, render(renderer, in_buckets())):
        for name, pod in pods(made).items():
            volumes = {each["name"] for each in pod["volumes"]}
            used = {each["name"] for container in pod["containers"] for each in container["volumeMounts"]}
            assert used == volumes, name
    (scheduler,) = pods(made)["scheduler"]["containers"]
    assert given(scheduler)["EXPUNGE_KEY_FOLDER"] == "s3://bucket/keyFolder"
    assert {each["kind"] for each in made} == {
        "Deployment", "Job", "NetworkPolicy", "Service", "ServiceAccount"
    }, "what is optional is off"  # fmt: skip
    (closed,) = [each for each in made if each["metadata"]["name"] == "expunge-api" and each["kind"] == "NetworkPolicy"]
    assert closed["spec"]["ingress"] == [], "who names no callers lets nobody in"


def test_rules_and_dashboard_arrive_whole(objects: list[dict[str, Any]]) -> None:
    by_kind = {each["kind"]: each for each in objects if each["metadata"]["name"] != "expunge-opendsr"}
    assert by_kind["PrometheusRule"]["spec"] == yaml.safe_load((ROOT / "dashboards" / "alerts.yml").read_text())
    dashboard = (ROOT / "dashboards" / "grafana" / "dashboards" / "expunge.json").read_text()
    assert json.loads(by_kind["ConfigMap"]["data"]["expunge.json"]) == json.loads(dashboard)
    (endpoint,) = by_kind["ServiceMonitor"]["spec"]["endpoints"]
    service = by_kind["Service"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")
    wanted = by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()


def test_the_runbooks_are_where_the_values_say(renderer: Path) -> None:
    values = everything()
    values["rules"]["runbooks"] = "https://expunge.example.com/runbooks"
    (rules,) = [each["spec"] for each in render(renderer, values) if each["kind"] == "PrometheusRule"]
    led = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    assert led[0] == "https://expunge.example.com/runbooks#expungedeadlinemissed"
    assert all(each.startswith(values["rules"]["runbooks"] + "#") for each in led)


def test_kubernetes_own_schemas_admit_every_object(renderer: Path, tmp_path: Path) -> None:
    if VALIDATOR is None:
        pytest.skip("unverified here: pip install kubernetes-validate (EXPUNGE_TEST_KUBERNETES_VALIDATE names it)")
    found = [each for values in (everything(), in_buckets()) for each in render(renderer, values)]
    theirs = [each for each in found if each["kind"] not in OWN_KINDS]
    assert len(theirs) == 23
    (tmp_path / "good.yaml").write_text(yaml.safe_dump_all(theirs))
    command = [VALIDATOR, "--strict", "--quiet"]
    subprocess.run([*command, tmp_path / "good.yaml"], check=True)
    theirs[0]["spec"]["replica"] = 2
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump_all(theirs[:1]))
    judged = subprocess.run([*command, tmp_path / "bad.yaml"], check=False, capture_output=True)
    assert judged.returncode != 0, "the schema does judge"


def test_helm_lint() -> None:
    if shutil.which("helm") is None:
        pytest.skip("unverified here: there is no helm")
    subprocess.run(["helm", "lint", "--strict", CHART], check=True)


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("unverified here: there is no systemd-analyze")
    program = tmp_path / "expunge"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    units = []
    for name in ("expunge@.service", "expunge-migrate.service"):
        unit = tmp_path / name.replace("@", "@api")
        unit.write_text((DEPLOY / "systemd" / name).read_text().replace("/opt/expunge/bin/expunge", str(program)))
        units.append(unit)
    judged = subprocess.run(["systemd-analyze", "verify", *units], check=False, capture_output=True, text=True)
    ours = [line for line in judged.stderr.splitlines() if "expunge" in line]
    assert (judged.returncode, ours) == (0, []), judged.stderr


def test_nginx_reads_the_sample(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("unverified here: there is no nginx")
    key, certificate = self_signed(tmp_path, "expunge.example.com")
    sample = (DEPLOY / "nginx" / "expunge.conf").read_text()
    sample = sample.replace("/etc/ssl/expunge/fullchain.pem", str(certificate))
    sample = sample.replace("/etc/ssl/expunge/privkey.pem", str(key)).replace("/var/log/nginx", str(tmp_path))
    text = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {sample} }}"
    (tmp_path / "nginx.conf").write_text(text)
    judged = subprocess.run([nginx, "-t", "-c", tmp_path / "nginx.conf"], check=False, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stderr
