"""The closed lists of the record, as small integers in the database and words outside of it."""

from django.db import models


class HolderKind(models.IntegerChoices):
    TENANT = 1, "tenant"
    SERVICE = 2, "service"
    UNATTRIBUTED = 3, "unattributed"


class LevelKind(models.IntegerChoices):
    """What a level counts (domain.md section 3). `waiting` is derived and never stored as a fact."""

    CAPACITY = 1, "capacity"
    RESERVATION = 2, "reservation"
    OCCUPANCY = 3, "occupancy"
    PENDING = 4, "pending"


class ServiceClass(models.IntegerChoices):
    NONE = 0, ""
    GUARANTEED = 1, "guaranteed"
    PREEMPTIBLE = 2, "preemptible"


class Purpose(models.IntegerChoices):
    NONE = 0, ""
    WARMUP = 1, "warmup"
    LOAD_TEST = 2, "load_test"
    DRILL = 3, "drill"


class WorkloadKind(models.IntegerChoices):
    NONE = 0, ""
    BATCH = 1, "batch"
    SERVING = 2, "serving"


class EventType(models.IntegerChoices):
    """`ledger.<label>.v1` of events.md."""

    CAPACITY = 1, "capacity"
    RESERVATION = 2, "reservation"
    OCCUPANCY = 3, "occupancy"
    PENDING = 4, "pending"
    PREEMPTION = 5, "preemption"
    RESUME = 6, "resume"
    REQUEST = 7, "request"
    USAGE = 8, "usage"
    REJECTION = 9, "rejection"
    QUOTA = 10, "quota"
    CORRECTION = 11, "correction"


class Outcome(models.IntegerChoices):
    OK = 1, "ok"
    ABORTED = 2, "aborted"
    ERROR = 3, "error"
    TIMEOUT = 4, "timeout"
    PREEMPTED = 5, "preempted"
    AGGREGATED = 6, "aggregated"  # pre-aggregated usage states no outcome


class Unit(models.IntegerChoices):
    GPU_US = 1, "gpu_us"
    AMOUNT_MICRO = 2, "amount_micro"


class AccountKind(models.IntegerChoices):
    TENANT = 1, "tenant"
    POOL = 2, "pool"
    PLATFORM = 3, "platform"
    CONVERSION = 4, "conversion"
    SUSPENSE = 5, "suspense"


class PeriodState(models.IntegerChoices):
    OPEN = 1, "open"
    REVIEW = 2, "review"
    CLOSED = 3, "closed"


class Role(models.TextChoices):
    FINANCE = "finance"
    PLATFORM = "platform"
    AUDITOR = "auditor"
    TENANT_ADMIN = "tenant_admin"
    TENANT_VIEWER = "tenant_viewer"
    INGEST = "ingest"  # service accounts that may only write events
