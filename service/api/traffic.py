"""Rate, errors and duration of the API's calls in this process, by route. Nothing in it names a caller or a person.

A call is named by its route's template, never by its address, so there are as many series as routes. Durations are
counted in buckets alone: an exact sum would tell how long one search took, and so perhaps what it found.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from expunge.service.infra.tracing import METHODS, NO_ROUTE
from expunge.service.models.tallies import BEYOND

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""upper edges in seconds"""


class Traffic:
    """The calls that one process has answered."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._answers: Counter[tuple[str, str, str]] = Counter()
        self._bounds: dict[tuple[str, ...], Counter[str]] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        place = bisect_left(BOUNDS, seconds)
        bound = str(BOUNDS[place]) if place < len(BOUNDS) else BEYOND
        with self._guard:
            self._answers[method, route, f"{status // 100}xx"] += 1
            self._bounds.setdefault((method, route), Counter())[bound] += 1

    def metrics(self) -> Iterator[Metric]:
        """Yield the counter of answers and the histogram of durations. Of several processes take the sum."""
        with self._guard:
            answers = sorted(self._answers.items())
            bounds = {key: Counter(inside) for key, inside in sorted(self._bounds.items())}
        text = "Calls that this process answered, by route and class of status"
        total = CounterMetricFamily("expunge_http_requests", text, labels=["method", "route", "status"])
        for labels, count in answers:
            total.add_metric(list(labels), count)
        text = "From the arrival of a call to the beginning of its answer"
        seconds = HistogramMetricFamily("expunge_http_request_seconds", text, labels=["method", "route"])
        yield from (total, filled(seconds, bounds, BOUNDS))


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


def filled(
    family: HistogramMetricFamily, series: Mapping[tuple[str, ...], Counter[str]], bounds: tuple[float, ...]
) -> Metric:
    """Add one sample for each series: its labels, and the values in each bucket.

    The sum counts every value as its bucket's upper bound (the last one beyond it). An exact sum would reveal a single
    value to anyone who reads it before and after.
    """
    for labels, inside in series.items():
        edges = [*((str(float(bound)), float(bound)) for bound in bounds), (BEYOND, float(bounds[-1]))]
        below = accumulate(inside[edge] for edge, _ in edges)
        total = sum(inside[edge] * bound for edge, bound in edges)
        family.add_metric(list(labels), [(edge, count) for (edge, _), count in zip(edges, below, strict=True)], total)
    return family
