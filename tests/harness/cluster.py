"""What Helm asks of a cluster before it installs, answered over HTTP: which kinds there are, and which Secrets.

It stores nothing. So ``helm install --dry-run=server`` runs against it, and template functions that look objects up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from typing import Any

KINDS = {
    "api/v1": {"Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts"},
    "apis/apps/v1": {"Deployment": "deployments"},
    "apis/batch/v1": {"Job": "jobs", "CronJob": "cronjobs"},
    "apis/policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "apis/networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
}
"""the kinds of the chart without what is optional, by the path of their group"""
MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def answering(secrets: Mapping[str, str]) -> Iterator[str]:
    """Answer for a cluster whose Secrets these are, by name with their resourceVersion; give the kubeconfig.

    Their content is another at each look: what depends on it shows.
    """

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = _answer(self.path.partition("?")[0].strip("/"), secrets)
            body = json.dumps(found or MISSING).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "here", "user": {}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
                "current-context": "here",
            }
        )
    finally:
        server.shutdown()
        server.server_close()


def _answer(path: str, secrets: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what the cluster has under a path; None: nothing."""
    if path == "version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        groups = [path.removeprefix("apis/") for path in KINDS if path.startswith("apis/")]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(each) for each in groups]}
    if path in KINDS:
        return {"kind": "APIResourceList", "groupVersion": _version(path), "resources": _resources(path)}
    if path == "openapi/v3":
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in KINDS}}
    if (described := path.removeprefix("openapi/v3/")) in KINDS:
        return _described(described)
    above, _, name = path.rpartition("/")
    if above.endswith("/secrets") and name in secrets:
        metadata = {"name": name, "namespace": "default", "resourceVersion": secrets[name]}
        return {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": {"other": token_hex(8)}}
    return None


def _version(path: str) -> str:
    return path.partition("/")[2]


def _group(version: str) -> dict[str, Any]:
    named = {"groupVersion": version, "version": "v1"}
    return {"name": version.partition("/")[0], "versions": [named], "preferredVersion": named}


def _resources(path: str) -> list[dict[str, Any]]:
    return [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": ["get", "list"]}
        for kind, plural in KINDS[path].items()
    ]


def _described(path: str) -> dict[str, Any]:
    """Say of each kind that the cluster itself finds unknown fields: Helm then leaves that to it."""
    group = _version(path).rpartition("/")[0]
    paths = {
        f"/{path}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "responses": {},
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind},
            }
        }
        for kind, plural in KINDS[path].items()
    }
    return {
        "openapi": "3.0.0",
        "info": {"title": "here", "version": "1"},
        "components": {"schemas": {}},
        "paths": paths,
    }
