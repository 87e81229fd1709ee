"""The Helm chart, rendered by Helm's own engine and judged by Kubernetes' own schemas. No cluster has run it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import expunge
from expunge_client.cli.main import app
from expunge_connect.opendsr.commands import commands
from expunge_service.api.views.metrics import TABLE
from expunge_service.cli.commands import doctor
from tests.harness import helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "expunge"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
IN_A_POD = {"Deployment", "Job", "CronJob"}
OWN_KINDS = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}
"""of KEDA and of the Prometheus operator: Kubernetes has no schema of them"""
PRIVATE = {"EXPUNGE_PRIVATE_STORE", "EXPUNGE_KEY_FOLDER"}
needs_helm = pytest.mark.skipif(not helm.IS_HERE, reason=helm.MISSING)
Object = dict[str, Any]


def over(values: Object, more: Object) -> Object:
    """Return the values with more of them, as Helm lays one file over another."""
    made = deepcopy(values)
    for name, value in more.items():
        made[name] = over(made[name], value) if isinstance(value, dict) and isinstance(made.get(name), dict) else value
    return made


def server(port: int) -> list[Object]:
    return [{"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"protocol": "TCP", "port": port}]}]


def peer(namespace: str) -> list[Object]:
    return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]


REACHED = {"database": server(5432), "keyStore": server(5433), "broker": server(6379)}
LEAST: Object = {"networkPolicy": {"callers": peer("ingress"), "egress": REACHED}}
"""the defaults, with the answers that only an operator has"""
PRODUCTION: Object = yaml.safe_load((CHART.parent / "production.yaml").read_text())
GPU = over(PRODUCTION, yaml.safe_load((CHART.parent / "gpu.yaml").read_text()))
EVERYTHING = over(
    over(GPU, LEAST),
    {
        "keda": {"enabled": True},
        "opendsr": {"url": "https://dsr.example.com", "callers": peer("ingress")},
        "admin": {"replicas": 1},
        "api": {"scrapeAnnotations": True},
        "storage": {"data": {"claim": "expunge-data"}}
        | {name: {"url": ""} for name in ("store", "privateStore", "keyFolder")},
    },
)
ALL = {"default": LEAST, "production": PRODUCTION, "gpu": GPU, "everything": EVERYTHING}
every_values = pytest.mark.parametrize("values", ALL.values(), ids=ALL)


@cache
def _objects(values: str) -> str:
    return json.dumps(helm.rendered(CHART, json.loads(values)))


def rendered(values: Object) -> list[Object]:
    made: list[Object] = json.loads(_objects(json.dumps(values)))
    return made


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def template(made: Object) -> Object:
    """Return the pod's template of a Deployment, Job or CronJob."""
    spec = made["spec"]["jobTemplate"]["spec"] if made["kind"] == "CronJob" else made["spec"]
    found: Object = spec["template"]
    return found


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return the pods by the name of what makes them, without the release's."""
    made = [each for each in objects if each["kind"] in IN_A_POD]
    return {each["metadata"]["name"].removeprefix("expunge-"): template(each)["spec"] for each in made}


def given(container: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def refusal(values: Object) -> str:
    with pytest.raises(helm.RefusedValues) as caught:
        helm.rendered(CHART, values)
    return str(caught.value)


def reaches(objects: list[Object], component: str) -> set[int | str]:
    """Return the ports that the policies let a component's pods call, but for name look-ups."""
    found: set[int | str] = set()
    for policy in (each["spec"] for each in objects if each["kind"] == "NetworkPolicy"):
        chosen = policy["podSelector"]
        labels = {"app.kubernetes.io/name": "expunge", "app.kubernetes.io/instance": "expunge"}
        labels["app.kubernetes.io/component"] = component
        wants = [
            (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In")
            for each in chosen.get("matchExpressions", [])
        ]
        if chosen["matchLabels"].items() <= labels.items() and all(wants):
            found |= {port["port"] for rule in policy.get("egress", []) for port in rule["ports"]}
    return found - {53, 5353}


def test_the_chart_has_the_release_of_this_repository() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == expunge.__version__


def test_the_scaler_asks_for_metrics_that_there_are() -> None:
    text = (CHART / "templates" / "worker.yaml").read_text()
    asked = set(re.findall(r"\((expunge_\w+)\)", text))
    assert len(asked) == 2
    assert asked <= {name for group in TABLE for name in group.texts}


@needs_helm
def test_what_only_an_operator_can_say_is_asked_for_in_sentences_all_at_once() -> None:
    lines = refusal({}).splitlines()
    assert "the values lack 4 answers:" in lines[0]
    asked = [line.partition(": ")[0] for line in lines[1:] if line]
    egress = [f"networkPolicy.egress.{name}" for name in ("broker", "database", "keyStore")]
    assert asked == [*egress, "networkPolicy.callers"]
    assert "no process would reach the server of EXPUNGE_DATABASE_URL. Name it in egress rules" in lines[2]


@needs_helm
@pytest.mark.parametrize(
    "name, more",
    [
        ("networkPolicy.egress.buckets", {"storage": {"store": {"url": "s3://bucket/store"}}}),
        ("networkPolicy.scrapers", {"serviceMonitor": {"enabled": True}}),
        ("networkPolicy.scrapers", {"api": {"scrapeAnnotations": True}}),
        ("networkPolicy.callers", {"networkPolicy": {"callers": []}}),
        ("opendsr.callers", {"opendsr": {"url": "https://dsr.example.com"}}),
        ("storage.keyFolder", {"storage": {"keyFolder": {"claim": ""}}}),
        ("storage.recipes", {"storage": {"recipes": {"claim": ""}}}),
        ("rules.runbooks", {"rules": {"enabled": True}}),
    ],
)
def test_a_choice_that_needs_another_answer_is_refused_without_it(name: str, more: Object) -> None:
    first, second, *_ = refusal(over(LEAST, more)).splitlines()
    assert first.endswith("the values lack 1 answers:") and re.match(rf"{re.escape(name)}: .*[Nn]ame .*\.$", second)


@needs_helm
def test_a_name_or_kind_of_value_that_there_is_not_is_refused() -> None:
    for wrong in (
        {"wroker": {"replicas": 2}},
        {"worker": {"replicsa": 2}},
        {"worker": {"replicas": "two"}},
        {"admin": {"replicas": 2}},
        {"api": {"readiness": "/metrics"}},
        {"settings": {"EXPUNGE_STORE": "s3://elsewhere"}},
        {"settings": {"expunge_rate": 10}},
        {"storage": {"store": {"url": "gs://bucket"}}},
    ):
        assert "at '" in refusal(over(LEAST, wrong)), wrong


def test_the_schema_of_the_values_has_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Object, judged: Object, path: str) -> None:
        if "properties" in judged:
            assert values.keys() == judged["properties"].keys() - {"global"}, path
            assert judged["additionalProperties"] is False, path
            for name, value in values.items():
                inner = judged["properties"][name]
                if isinstance(value, dict):
                    compare(value, inner, f"{path}.{name}")

    compare(VALUES, schema, "")


@needs_helm
def test_the_settings_that_are_refused_are_those_that_the_chart_or_a_secret_gives() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    refused = set(schema["properties"]["settings"]["propertyNames"]["not"]["enum"])
    ours = {
        name
        for pod in pods(rendered(over(EVERYTHING, {"settings": {}}))).values()
        for container in pod["containers"]
        if container["name"] != "opendsr"
        for name in given(container)
    }
    secret = {"EXPUNGE_DATABASE_URL", "EXPUNGE_KEY_STORE_URL", "EXPUNGE_BROKER_URL", "EXPUNGE_SOURCES"}
    set_by_people = set(PRODUCTION["settings"])
    assert refused == (ours - set_by_people) | secret


@needs_helm
@every_values
def test_helm_lint_finds_nothing(values: Object) -> None:
    assert helm.faults(CHART, values) == []


@pytest.mark.skipif(not helm.LIBRARY, reason=helm.MISSING)
def test_a_packaged_chart_has_the_files_that_are_links_here(tmp_path: Path) -> None:
    package = Path(importlib.import_module("helm_python").package(CHART, destination=tmp_path))
    assert package.suffix == ".tgz" and helm.rendered(package, PRODUCTION) == rendered(PRODUCTION)


@needs_helm
@every_values
def test_kubernetes_own_schemas_admit_every_object(values: Object) -> None:
    """Those of the oldest Kubernetes that Chart.yaml admits, and of the newest that the package has."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("unverified here: pip install kubernetes-validate")
    judge = importlib.import_module("kubernetes_validate")
    (oldest,) = re.findall(r">=(\d+\.\d+)\.", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    theirs = [each for each in rendered(values) if each["kind"] not in OWN_KINDS]
    assert len(theirs) > 15
    for version in (oldest, judge.latest_version()):
        for each in theirs:
            judge.validate(each, version, strict=True)
    wrong = named(theirs, "Deployment", "expunge-api")
    wrong["spec"]["replica"] = 2
    with pytest.raises(judge.ValidationError):
        judge.validate(wrong, oldest, strict=True)


@needs_helm
@every_values
def test_lists_that_kubernetes_merges_by_name_have_each_name_once(values: Object) -> None:
    """Server-side apply, which Helm 4 uses, refuses a second one. The schemas do not see it."""
    for pod in pods(rendered(values)).values():
        for container in pod["containers"]:
            for listed, key in ((container["env"], "name"), (container["volumeMounts"], "mountPath")):
                names = [each[key] for each in listed]
                assert len(names) == len(set(names))
        assert len({each["name"] for each in pod["volumes"]}) == len(pod["volumes"])


@needs_helm
@every_values
def test_every_selector_chooses_the_pods_of_its_object_alone(values: Object) -> None:
    made = rendered(values)
    labels = {
        each["metadata"]["name"]: template(each)["metadata"]["labels"] for each in made if each["kind"] in IN_A_POD
    }
    for each in made:
        name = each["metadata"]["name"]
        if each["kind"] in {"Deployment", "PodDisruptionBudget"}:
            wanted = each["spec"]["selector"]["matchLabels"]
        elif each["kind"] == "Service":
            wanted = each["spec"]["selector"]
        else:
            continue
        assert [other for other, its in labels.items() if wanted.items() <= its.items()] == [name]
    for pod_name, pod in pods(made).items():
        for spread in pod.get("topologySpreadConstraints", []):
            assert spread["labelSelector"]["matchLabels"].items() <= labels[f"expunge-{pod_name}"].items()


@needs_helm
@every_values
def test_volumes_and_mounts_agree_and_every_process_is_walled_in(values: Object) -> None:
    for name, pod in pods(rendered(values)).items():
        volumes = {each["name"] for each in pod["volumes"]}
        used = {each["name"] for container in pod["containers"] for each in container["volumeMounts"]}
        assert used == volumes, name
        assert pod["securityContext"]["runAsUser"] == 10001 and pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            walls = container["securityContext"]
            assert walls["readOnlyRootFilesystem"] is True and walls["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


@needs_helm
def test_what_is_optional_is_off_by_default() -> None:
    kinds = {each["kind"] for each in rendered(LEAST)}
    assert kinds == {
        "CronJob", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"
    }  # fmt: skip


@needs_helm
def test_no_process_is_given_what_another_one_holds() -> None:
    found = pods(rendered(EVERYTHING))
    (api,) = found["api"]["containers"]
    assert not PRIVATE & set(given(api)), "it can open neither states nor vectors"
    (store,) = [each for each in api["volumeMounts"] if each["name"] == "store"]
    assert store["readOnly"] is True
    secret = {
        name: next(each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "secrets")
        for name, pod in found.items()
    }
    assert len({secret[name] for name in ("api", "worker", "scheduler", "migrate", "opendsr")}) == 5
    assert {secret[name] for name in ("admin", "backup", "doctor", "migrate")} == {"expunge-migrate"}
    (opendsr,) = found["opendsr"]["containers"]
    assert opendsr["envFrom"] == [{"secretRef": {"name": "expunge-opendsr-environment"}}], "no database, no store"


@needs_helm
def test_each_process_reaches_what_it_needs_and_nothing_else() -> None:
    egress = {name: server(1000 + at) for at, name in enumerate(VALUES["networkPolicy"]["egress"])}
    port = {name: rules[0]["ports"][0]["port"] for name, rules in egress.items()}
    made = rendered(over(EVERYTHING, {"networkPolicy": {"egress": egress, "webhooks": False}}))
    every = {port["database"], port["broker"], port["buckets"], port["others"]}
    private = every | {port["keyStore"], port["sources"]}
    assert reaches(made, "api") == every, "the key store is out of its reach"
    for component in ("worker", "scheduler", "migrate"):
        assert reaches(made, component) == private
    assert reaches(made, "admin") == private | {"http"}
    assert reaches(made, "opendsr") == {"http"}
    assert reaches(rendered(EVERYTHING), "scheduler") - {5432, 5433, 6379} == {443}, "webhooks"
    names = named(made, "NetworkPolicy", "expunge-processes")["spec"]["egress"][0]
    assert {(each["protocol"], each["port"]) for each in names["ports"]} == {
        (protocol, port) for protocol in ("TCP", "UDP") for port in (53, 5353)
    } and "to" not in names


@needs_helm
def test_callers_scrapers_and_the_operator_call_the_api_and_nothing_else_is_called() -> None:
    made = rendered(PRODUCTION)
    policies = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "NetworkPolicy"}
    assert [name for name, spec in policies.items() if spec.get("ingress")] == ["expunge-api"]
    assert policies["expunge-processes"]["policyTypes"] == ["Ingress", "Egress"]
    (calls,) = policies["expunge-api"]["ingress"]
    assert calls["from"] == peer("ingress-nginx") + peer("monitoring") + [calls["from"][-1]]
    assert calls["from"][-1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "admin"


@needs_helm
def test_opendsr_is_a_program_that_calls_the_api_by_its_service() -> None:
    made = rendered(EVERYTHING)
    (container,) = pods(made)["opendsr"]["containers"]
    program, *words = container["args"]
    called = CliRunner().invoke(commands, [*words, "--help"])
    assert (program, called.exit_code) == ("opendsr", 0), called.output
    assert container["ports"] == [{"name": "opendsr", "containerPort": int(words[-1])}]
    assert given(container)["EXPUNGE_URL"] == f"http://expunge-api:{VALUES['api']['port']}"
    policies = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "NetworkPolicy"}
    (into_api,) = policies["expunge-opendsr-calls"]["ingress"]
    assert into_api["from"][0]["podSelector"] == policies["expunge-opendsr"]["podSelector"]
    _, out = policies["expunge-opendsr"]["egress"]
    assert out["to"][0]["podSelector"] == policies["expunge-api"]["podSelector"]


@needs_helm
def test_only_the_worker_gets_the_gpu_and_a_new_pod_waits_for_the_card() -> None:
    made = rendered(GPU)
    worker, updater = pods(made)["worker"]["containers"]
    assert worker["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 1}
    assert (given(worker)["EXPUNGE_DEVICE"], given(updater)["EXPUNGE_DEVICE"]) == ("cuda", "cpu")
    assert "nvidia.com/gpu" not in updater["resources"]["limits"]
    assert worker["image"] == updater["image"] == f"registry.example.com/expunge:{expunge.__version__}-cuda"
    assert named(made, "Deployment", "expunge-worker")["spec"]["strategy"] == {"type": "Recreate"}
    assert pods(made)["worker"]["tolerations"] == GPU["worker"]["tolerations"]
    rolled = named(rendered(PRODUCTION), "Deployment", "expunge-worker")["spec"]["strategy"]
    assert rolled["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    chosen = pods(rendered(over(GPU, {"worker": {"gpu": {"tag": "mine"}}})))["worker"]["containers"][0]
    assert chosen["image"] == "registry.example.com/expunge:mine"


@needs_helm
def test_an_updater_takes_the_place_of_the_workers_models_where_it_is_given_a_gpu() -> None:
    values = over(GPU, {"worker": {"places": "west", "gpu": {"updater": True}}})
    for container in pods(rendered(values))["worker"]["containers"]:
        assert (given(container)["EXPUNGE_DEVICE"], given(container)["EXPUNGE_PLACES"]) == ("cuda", "west")
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@needs_helm
def test_a_probe_without_a_port_finds_a_heartbeat_that_is_old_or_missing(tmp_path: Path) -> None:
    found = pods(rendered(PRODUCTION))
    containers = [*found["worker"]["containers"], *found["scheduler"]["containers"]]
    files = [given(each)["EXPUNGE_HEARTBEAT_FILE"] for each in containers]
    assert files == ["/tmp/worker.heartbeat", "/tmp/updater.heartbeat", "/tmp/scheduler.heartbeat"]
    for container, file in zip(containers, files, strict=True):
        asked = container["livenessProbe"]["exec"]["command"]
        assert asked == container["startupProbe"]["exec"]["command"] and file in asked[-1]
        here = tmp_path / Path(file).name
        command = [*asked[:-1], asked[-1].replace(file, str(here))]
        answers = [subprocess.run(command, check=False, capture_output=True).returncode]
        here.touch()
        answers.append(subprocess.run(command, check=False).returncode)
        os.utime(here, (time.time() - 61, time.time() - 61))
        answers.append(subprocess.run(command, check=False).returncode)
        assert answers == [1, 0, 1]


@needs_helm
def test_pods_roll_when_a_setting_changes() -> None:
    changed = over(PRODUCTION, {"settings": {"EXPUNGE_RATE": 50}})
    before, after = rendered(PRODUCTION), rendered(changed)
    for name in ("api", "worker", "scheduler"):
        old, new = (template(named(made, "Deployment", f"expunge-{name}")) for made in (before, after))
        assert old != new
        assert given(new["spec"]["containers"][0])["EXPUNGE_RATE"] == "50", "text, as Kubernetes wants it"


@pytest.mark.skipif(not helm.LIBRARY, reason=helm.MISSING)
def test_pods_roll_when_a_secret_changes_that_they_hold_and_no_annotation_has_its_content() -> None:
    secrets = {name: "1" for kind in ("environment", "secretFiles") for name in named_secrets(VALUES[kind])}

    def noted(**changed: str) -> dict[str, str]:
        made = helm.installed(CHART, LEAST, secrets | {name.replace("_", "-"): to for name, to in changed.items()})
        found = {each["metadata"]["name"]: template(each) for each in made if each["kind"] == "Deployment"}
        return {name: each["metadata"]["annotations"]["checksum/secrets"] for name, each in found.items()}

    before = noted()
    assert noted() == before, "no digest of a content, against which who sees a pod could try passwords"

    def rolled(**changed: str) -> set[str]:
        return {name.removeprefix("expunge-") for name, was in before.items() if noted(**changed)[name] != was}

    assert rolled(expunge_api="2") == {"api"}
    assert rolled(expunge_scheduler_environment="2") == {"scheduler"}
    assert rolled(expunge_worker_environment="2") == {"worker", "admin"}


def named_secrets(values: Object) -> set[str]:
    return {each if isinstance(each, str) else each["secret"]["secretName"] for each in values.values()}


@needs_helm
def test_the_commands_of_the_scheduled_jobs_are_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = pods(rendered(over(PRODUCTION, {"admin": {"backup": {"keepDays": 30}}})))
    (backup,), (asked,) = made["backup"]["containers"], made["doctor"]["containers"]
    assert backup["args"] == ["backup", "/backups", "--keep", "30d"] and asked["args"] == ["doctor"]
    assert {each["mountPath"] for each in backup["volumeMounts"]} >= {"/backups"}
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "ask_worker", tuple)
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    (folder := tmp_path / "backups").mkdir()
    words = [str(folder) if each == "/backups" else each for each in backup["args"]]
    assert CliRunner().invoke(app, words).exit_code == 0 and len(list(folder.iterdir())) == 1
    assert "worker" in CliRunner().invoke(app, asked["args"]).output
    none = {"admin": {"backup": {"schedule": ""}, "doctor": {"schedule": ""}}}
    assert "CronJob" not in {each["kind"] for each in rendered(over(PRODUCTION, none))}


def test_the_signing_key_is_replaced_by_the_line_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On files as Kubernetes mounts those of a Secret: links to a folder, and none may be written."""
    (line,) = re.findall(r"kubectl exec \S+ -- sh -ec '(cp .*)'", (ROOT / "docs" / "install.md").read_text())
    home, mounted = tmp_path / "home", tmp_path / "mounted"
    monkeypatch.setenv("EXPUNGE_HOME", str(home))
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    (kept := mounted / "..2026").mkdir(parents=True)
    (mounted / "..data").symlink_to(kept.name)
    for path in (home / "secrets").iterdir():
        (kept / path.name).write_bytes(path.read_bytes())
        (kept / path.name).chmod(0o440)
        (mounted / path.name).symlink_to(f"..data/{path.name}")
    copied = tmp_path / "secrets"
    line = line.replace("/run/secrets/expunge", str(mounted)).replace("/tmp/secrets", str(copied))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", line], check=True, env=os.environ | {"PATH": programs})
    assert (copied / "signing.key").read_text() != (mounted / "signing.key").read_text()
    assert (copied / "pepper").read_text() == (mounted / "pepper").read_text()


@needs_helm
def test_rules_and_dashboard_arrive_whole() -> None:
    made = rendered(over(EVERYTHING, {"rules": {"runbooks": "http://127.0.0.1:8750/runbooks"}}))
    assert named(made, "PrometheusRule", "expunge")["spec"] == yaml.safe_load(
        (ROOT / "dashboards" / "alerts.yml").read_text()
    )
    dashboard = (ROOT / "dashboards" / "grafana" / "dashboards" / "expunge.json").read_text()
    assert json.loads(named(made, "ConfigMap", "expunge-dashboard")["data"]["expunge.json"]) == json.loads(dashboard)
    monitor, service = named(made, "ServiceMonitor", "expunge")["spec"], named(made, "Service", "expunge-api")
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    job = service["metadata"]["labels"][monitor["jobLabel"]]
    assert set(re.findall(r'job="(\w+)"', (ROOT / "dashboards" / "alerts.yml").read_text())) == {job}
    noted = template(named(made, "Deployment", "expunge-api"))["metadata"]["annotations"]
    assert (noted["prometheus.io/port"], noted["prometheus.io/path"]) == ("8750", "/metrics")


@needs_helm
def test_the_runbooks_are_where_the_values_say() -> None:
    rules = named(rendered(PRODUCTION), "PrometheusRule", "expunge")["spec"]
    led = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    assert led[0] == "https://expunge.example.com/runbooks#expungedeadlinemissed"
    assert all(each.startswith(PRODUCTION["rules"]["runbooks"] + "#") for each in led)
