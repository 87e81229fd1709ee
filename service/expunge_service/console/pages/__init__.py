"""The pages' addresses, one file a page. Each asks for a session; what its key may not read is not on the page."""

from expunge_service.console.pages import (
    audit,
    certificate,
    consumers,
    decision,
    dossier,
    find,
    holds,
    keys,
    missing,
    model,
    models,
    overview,
    people,
    request,
    requests,
    sessions,
    webhooks,
)

ROUTERS = tuple(
    page.router
    for page in (
        sessions,
        find,
        models,
        overview,
        requests,  # before the page of one request: its fixed addresses are no ids
        certificate,
        decision,
        request,
        model,
        holds,
        people,
        consumers,
        audit,
        keys,
        webhooks,
        dossier,
        missing,  # last: it takes every address that is left
    )
)
