"""What the help says of each command, as constants: to read it of all of them takes a second.

The tests hold this equal to what the commands say. A command that is not here is loaded.
"""

from __future__ import annotations

EVERYDAY, ADMINISTER = "Everyday", "Administer"
SUMMARIES = {
    EVERYDAY: {
        "check": "Check a recipe (PATH) in seconds; --measure: what each method costs on it, in minutes.",
        "delete": "Forget a person in every model, or in those that --model names.",
        "find": "Find a person: every request that concerns them, and every model that holds them or...",
        "status": "Show whether the service works, its models, and which requests are open, blocked or late.",
        "up": "Start API, worker, updater and scheduler; keep them running until Ctrl-C.",
        "versions": "List the published versions of a model, with what each one claims.",
        "certificate verify": (
            "Check a certificate without service and database: its signature, its proofs, its files,..."
        ),
        "certificate show": "Print the certificate of a completed request as JSON: a DSSE envelope over an in-toto...",
        "models add": "Register a model: it is trained (or imported), its first version published, and a dry...",
        "models list": "List all models.",
        "models show": "Show one model: status, policy, version, what preparation measured, its budget, and who...",
        "models retrain": "Train a model again under its name: a dry run first, then a new generation, and the...",
        "models policy": "Change what may change of a model's policy, or show it.",
        "models retire": "Stop serving a model permanently: its requests end with it, its state and keys are...",
        "requests list": "List all deletion requests, newest first.",
        "requests show": "Show one request and what each model did.",
        "requests cancel": "Cancel a request inside its cancel window.",
        "requests verify": "Continue an unverified request: it does come from the person it names.",
        "requests reject": "Turn an unverified request down.",
        "requests approve": "Let a request go on that is blocked because it removes unusually many samples.",
        "requests retry": "Retry a blocked request, after fixing its cause.",
        "requests extend": "Extend the deadline by what the regulation allows, once: the GDPR two months.",
    },
    ADMINISTER: {
        "models publish": "Publish a first version that was withheld for its accuracy.",
        "models remove-consumer": "Remove a consumer that no longer serves the model.",
        "backup": "Copy the database while it runs.",
        "doctor": "Look at secrets, stores, disk, broker, database, clocks, processes, recipes and...",
        "init": "Write the example recipes into a folder, to start from.",
        "login": "Keep a service and its key, which is read from standard input.",
        "logout": "Forget a service and its key.",
        "migrate": "Bring the database to the schema of this release; in development also create missing...",
        "restore": "Take up what was published since the backup that was put back.",
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
