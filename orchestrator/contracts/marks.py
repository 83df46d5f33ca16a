"""Closed sets of words about steps: how one finished, how it parsed, why it is marked, why it branches, which budget is
spent; and the name of the agent that takes them.

Rows hold the plain strings; a member equals its string. A message's `finish` and `parse` must be members. Its reasons of marks and branches are
plain strings, because a newer gateway may know more of them.
"""

from enum import StrEnum

MAIN_AGENT = "main"
"""The agent that takes a step when a scaffold names none."""


class Finish(StrEnum):
    """Why an action ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ReplyFinish(StrEnum):
    """Why a reply ended, in OpenAI's words, as programs and scaffolds read it. It differs from `Finish`: a reply with tool calls ends by them, and
    no program receives an aborted action. `orchestrator.gateway.messages.requests.Reply` maps one to the other."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class ParseStatus(StrEnum):
    """Whether an action is a message with well-formed tool calls."""

    OK = "ok"
    ILL_FORMED = "ill_formed"


class MarkReason(StrEnum):
    """Why a step does not train; a `cut_off` one trains where its advantage is negative (`rewards.returns`)."""

    UNDELIVERED = "undelivered"  # its reply did not reach the client
    VERSION_SUSPECT = "version_suspect"  # a server named a policy version that it cannot have used
    AUXILIARY = "auxiliary"  # a title, a summary, …: not the agent's own conversation
    DRIFT = "drift"  # the record differs from the server's ids
    SIDE_CONVERSATION = "side_conversation"  # a conversation that the scaffold did not start
    CUT_OFF = "cut_off"  # a clock ended the attempt while it was generated


class BranchReason(StrEnum):
    """Why a step does not continue another one (ops/guides/wires.md)."""

    SIBLING = "sibling"
    REWRITTEN = "rewritten"
    SHORTENED = "shortened"
    TOOLS = "tools"
    NEW_CONVERSATION = "new_conversation"
    FOREIGN_TURN = "foreign_turn"
    CLOSED = "closed"
    PER_REQUEST = "per_request"


BRANCH_REASONS = frozenset(BranchReason)


class BudgetKind(StrEnum):
    """The budget of a session that refuses a call."""

    TURNS = "turns"
    CONTEXT = "context"
    TOKENS = "tokens"
    AUXILIARY_CALLS = "auxiliary calls"
    AUXILIARY_TOKENS = "auxiliary tokens"
