"""The application as it is served: the API, and above it the console, unless ``EXPUNGE_CONSOLE`` leaves it out."""

from __future__ import annotations

from fastapi import FastAPI

from expunge_service.api.app import create_api
from expunge_service.console import mount
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.settings import Settings


def create_app(settings: Settings | None = None, limits: Limits = LIMITS) -> FastAPI:
    """Make the application. Raises what ``create_api`` raises."""
    settings = settings or Settings()
    app = create_api(settings, limits)
    if settings.console:
        mount(app)
    return app
