"""Rate, errors and duration of the API's calls in this process, by route. It names neither caller nor person.

A call is named by its route's template, never by its address, so there are as many series as routes.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from expunge_service.infra.tracing import METHODS, NO_ROUTE

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""upper edges in seconds"""
_ROUNDED = (*BOUNDS, math.nextafter(BOUNDS[-1], math.inf))
disable_created_metrics()  # type: ignore[no-untyped-call]  # ``_created`` would double the series, and tell when each was first called


class Traffic:
    """The calls that one process has answered. Of several processes take the sum."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        text = "Calls that this process answered, by route and class of status"
        self._answers = Counter("expunge_http_requests", text, ["method", "route", "status"], registry=self.registry)
        text = "From the arrival of a call to the beginning of its answer"
        self._seconds = Histogram(
            "expunge_http_request_seconds", text, ["method", "route"], buckets=BOUNDS, registry=self.registry
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call; its duration as its bucket's edge: an exact sum would tell how long one search took."""
        self._answers.labels(method, route, f"{status // 100}xx").inc()
        self._seconds.labels(method, route).observe(_ROUNDED[bisect_left(BOUNDS, seconds)])


class Measured:
    """ASGI middleware that counts every call when its answer begins."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._traffic.count(method, route_of(scope), message["status"], time.perf_counter() - start)
            await send(message)

        await self._app(scope, receive, counted)


def route_of(scope: Scope) -> str:
    """Return the template of the route that answers this call; ``none`` where no route does."""
    return str(getattr(scope.get("route"), "path_format", NO_ROUTE))
