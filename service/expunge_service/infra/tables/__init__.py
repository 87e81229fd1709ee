"""The tables. One schema for SQLite and PostgreSQL."""

from expunge_service.infra.tables.installation import (
    ActorName,
    ApiKey,
    AuditEntry,
    ClaimedPlace,
    Consent,
    EndedSession,
    Heartbeat,
    Lease,
    LogCheck,
    Restoration,
    SweptFile,
    TreeHead,
    TreeNode,
)
from expunge_service.infra.tables.models import (
    BudgetEntry,
    CalibrationOrder,
    Consumer,
    Erasure,
    Generation,
    GenerationPart,
    HoldoutPerson,
    Membership,
    MembershipBlock,
    Model,
    PhaseSeconds,
    Removal,
    Spelling,
    StoredVector,
    Tally,
    TrainedPart,
    Version,
    WorkUnit,
)
from expunge_service.infra.tables.record import Record, Serial
from expunge_service.infra.tables.requests import (
    Certificate,
    DeletionRequest,
    Hold,
    IdempotencyKey,
    SuppressionEntry,
    Task,
    WebhookDelivery,
    WebhookEndpoint,
)
