"""The values that plug-ins receive and give.

A process signal of the group `penstock.process_signals` is called as `signal(step, before)`, with a `RecordedStep` each. A factory of the group
`penstock.policies` is a `QueuePolicyFactory`: it makes a `QueuePolicy`, which receives each queue position as a `QueueRow`.
"""

from orchestrator.contracts.states import GroupState
from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
from orchestrator.scheduling.queue_policies import QueuePolicy, QueuePolicyFactory
from orchestrator.scheduling.window import QueueRow

__all__ = [
    "GroupState",
    "ParsedAction",
    "QueuePolicy",
    "QueuePolicyFactory",
    "QueueRow",
    "RecordedStep",
    "ToolCall",
    "ToolResult",
]
