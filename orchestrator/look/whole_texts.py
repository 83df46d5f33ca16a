"""The texts of a rollout, beside those of its steps, that its page shows cut: whole."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look.missing import NotThereError

_WHOLE = {
    "instruction": """SELECT t.body -> 'files' ->> 'instruction.md' FROM rollouts r JOIN groups g ON g.group_id = r.group_id
                        JOIN tasks t ON t.task_id = g.task_id WHERE r.run_id = :run AND r.rollout_id = :rollout""",
    "answer": "SELECT answer FROM attempts WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt",
    "log": "SELECT log FROM attempts WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt",
    "verdict.log": "SELECT log FROM verdicts WHERE run_id = :run AND rollout_id = :rollout AND revision = :number",
    "verdict.check": """SELECT tests -> CAST(:check AS int) ->> 'message' FROM verdicts
                         WHERE run_id = :run AND rollout_id = :rollout AND revision = :number""",
}


async def whole_text(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, part: str
) -> str | None:
    """A text of a rollout that its page cut. `part`: instruction, answer or log (of that attempt), verdict.R.log or verdict.R.check.N of
    revision R; None for what names no such part. Raises NotThereError."""
    words = part.split(".")
    numbers = words[1::2]
    name = ".".join(words[::2])
    if name not in _WHOLE or len(numbers) != name.count(".") + ("check" in name) or not all(
        number.isascii() and number.isdigit() and len(number) < 5 for number in numbers
    ):  # fmt: skip
        return None
    asked = {"run": run_id, "rollout": rollout_id, "attempt": attempt}
    asked |= dict(zip(("number", "check"), map(int, numbers), strict=False))
    found = await connection.scalar(text(_WHOLE[name]), asked)
    if found is None:
        raise NotThereError(f"rollout {rollout_id}, attempt {attempt} has no text {part!r} in this run")
    return str(found)
