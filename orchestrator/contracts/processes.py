"""The processes of a run, by role. Roles name commands, supervised processes, components in Kubernetes and what failpoints and stall causes blame."""

from enum import StrEnum


class ProcessRole(StrEnum):
    """The role of a process. A process's own name begins with it (`runner-2`, `rollout-server-a-0`)."""

    POSTGRES = "postgres"
    NATS = "nats"
    MIGRATE = "migrate"  # brings the schema up to date, and ends
    ORCHESTRATOR = "orchestrator"
    GATEWAY = "gateway"
    RUNNER = "runner"
    VERIFIER = "verifier"
    TRAINER = "trainer"
    ROLLOUT_SERVER = "rollout-server"
    WEB = "web"


WORKERS = (ProcessRole.RUNNER, ProcessRole.VERIFIER)
"""The roles that start sandboxes."""


class PauseMode(StrEnum):
    """The effect of a rollout server's pause on running requests (SGLang's `/pause_generation`)."""

    ABORT = "abort"  # they end with their tokens so far
    RETRACT = "retract"  # they restart from their tokens
    IN_PLACE = "in_place"  # they continue with their keys and values
