"""What the help says of each command, as constants: to read it of all of them takes a second.

The tests hold this equal to what the commands say. A command that is not here is loaded.
"""

from __future__ import annotations

EVERYDAY, ADMINISTER = "Everyday", "Administer"
SUMMARIES = {
    EVERYDAY: {
        "check": "Check a recipe (PATH) in seconds; --measure: what each method costs on it, in minutes.",
        "delete": "Delete a person from every model, or from those that --model names.",
        "find": "Find a person: the requests about the person, and the models trained on the person.",
        "status": "Show whether the service works, its models, and which requests are open, blocked or late.",
        "up": "Start API, worker, updater and scheduler; keep them running until Ctrl-C.",
        "versions": "List the published versions of a model, with what each one claims.",
        "certificate verify": "Check a certificate offline: signature, proofs, files, and the person it names.",
        "certificate show": "Print the certificate of a completed request as JSON: a DSSE envelope over an in-toto...",
        "models add": "Register a model: train or import it, and publish its first version.",
        "models list": "List all models.",
        "models show": "Show one model: status, policy, version, measurements, budget and consumers.",
        "models retrain": "Train a model again under its name, after a dry run.",
        "models port": "Train a live model by the rows that its rewritten recipe now defines, after a dry run.",
        "models policy": "Show or change a model's policy.",
        "models retire": "Stop serving a model permanently: its requests end with it, its state and keys are...",
        "requests list": "List all deletion requests, newest first.",
        "requests show": "Show one request and what each model did.",
        "requests cancel": "Cancel a request with which no worker has begun.",
        "requests verify": "Confirm the requester's identity and continue.",
        "requests reject": "Reject an unverified request.",
        "requests same-person": "Delete the person with the right id: the request's id is another spelling of it.",
        "requests other-person": "Go on with the id as it is written: those with nearly the same id are other people.",
        "requests approve": "Approve a request that removes unusually many samples.",
        "requests retry": "Retry a blocked request, after fixing its cause.",
        "requests extend": "Extend the deadline by what the regulation allows, once: the GDPR two months.",
    },
    ADMINISTER: {
        "models remove-consumer": "Remove a consumer that no longer serves the model.",
        "backup": "Copy the database while it runs.",
        "doctor": "Look at secrets, stores, disk, broker, database, clocks, processes, recipes and...",
        "drain": "Let workers give back what they hold and take no work, before a machine is stopped.",
        "init": "Write the example recipes into a folder, to start from.",
        "login": "Keep a service and its key, which is read from standard input.",
        "logout": "Forget a service and its key.",
        "migrate": "Bring the database to the schema of this release; in development also create missing...",
        "restore": "Apply the versions again that were published after the backup.",
        "audit": "The audit log: list, verify, export, rotate-key.",
        "holds": "Legal holds: place, list, lift.",
        "keys": "API keys: create, list, rotate, revoke.",
        "run": "One process alone, in the foreground: api, worker, updater, scheduler.",
        "webhooks": "Webhooks: add, list, remove.",
    },
    "Add-ons": {
        "drop": "California's deletion lists (DROP): import, match, status, export.",
        "lab": "Measure methods on a recipe, and attack claims: evaluate, attack.",
        "opendsr": "Take requests by OpenDSR 2.0: serve.",
        "registry": "Give versions to other systems: bundle, push.",
    },
}
