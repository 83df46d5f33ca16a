"""The values that plug-ins receive: a process signal of the group `penstock.process_signals` is called as `signal(step, before)`."""

from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult

__all__ = ["ParsedAction", "RecordedStep", "ToolCall", "ToolResult"]
