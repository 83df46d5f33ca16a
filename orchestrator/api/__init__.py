"""The public Python API: publish tasks, register scaffolds, read trajectories, evaluate; `orchestrator.api.testing` starts small runs in tests.

    async with connect("runs/first") as run:
        published = await run.publish("tasks/hello")
        await run.wait(published)
        async for trajectory in run.trajectories(submissions=published):
            print(trajectory.task, trajectory.succeeded, len(trajectory.steps))

Public are: this module, `orchestrator.api.testing`, `orchestrator.api.plugins`, the scaffold protocol (`scaffolds.base`, `scaffolds.declare`,
`scaffolds.at_once`, `scaffolds.seen`, `scaffolds.tcp`, `scaffolds.context.base`) and the sandbox port (`sandboxes.base`). Everything else is private:
it changes without notice.
Everything here is async and runs on asyncio, except `register_scaffold`, an ordinary function. Errors are one sentence each: `ArgumentError`
(an argument of a call; it is a ConfigurationError), `ConfigurationError` (a ValueError), `NotFoundError` (a LookupError), `ServiceError`; the
base of all is `PenstockError`. A task that cannot be used raises ValueError, a wait that takes too long TimeoutError.
"""

from orchestrator.api.connection import connect
from orchestrator.api.filters import TrajectoryFilters
from orchestrator.api.published import Published
from orchestrator.api.run import Run
from orchestrator.api.scaffolds import ScaffoldLike, register_scaffold
from orchestrator.api.trajectory import Step, Trajectory
from orchestrator.contracts.errors import (
    ArgumentError,
    ConfigurationError,
    NotFoundError,
    PenstockError,
    ServiceError,
)
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState, StepKind
from orchestrator.queries.attempts import RecordedReward, RecordedVerdict, ToolExecution, TrainedBatch
from orchestrator.queries.evaluations import Evaluation, EvaluationPoint, LeftOut, Unscored
from orchestrator.queries.submitted import SubmittedGroup
from orchestrator.tasks.harbor import Task

__all__ = [
    "ArgumentError",
    "ConfigurationError",
    "Evaluation",
    "EvaluationPoint",
    "FailureClass",
    "Finish",
    "GroupState",
    "LeftOut",
    "NotFoundError",
    "ParseStatus",
    "PenstockError",
    "Published",
    "Purpose",
    "RecordedReward",
    "RecordedVerdict",
    "RolloutState",
    "Run",
    "ScaffoldLike",
    "ServiceError",
    "Step",
    "StepKind",
    "SubmittedGroup",
    "Task",
    "ToolExecution",
    "TrainedBatch",
    "Trajectory",
    "TrajectoryFilters",
    "Unscored",
    "connect",
    "register_scaffold",
]
