"""The steps in their order: the first useful result comes early, what breaks most comes last."""

from tests.deploy.step import Step
from tests.deploy.steps import alerts, breaks, end, operator, places, proxy, start, upgrade, workers

STEPS: tuple[Step, ...] = (
    *start.STEPS,
    *workers.STEPS,
    *breaks.STEPS,
    *operator.STEPS,
    *proxy.STEPS,
    *alerts.STEPS,
    *places.STEPS,
    *upgrade.STEPS,
    *end.STEPS,
)
