"""The instruction of a task, as pages and exports show it."""


def instruction_of(row: str) -> str:
    """SQL: the instruction of a row of `tasks`; of a task with steps, theirs in order with an empty line between them. Null: its client
    sent it in blobs."""
    step = f"{row}.body -> 'files' ->> ('steps/' || (s.step ->> 'name') || '/instruction.md')"
    steps = f"jsonb_array_elements({row}.settings -> 'steps') WITH ORDINALITY AS s(step, n)"
    of_steps = f"(SELECT string_agg({step}, chr(10) || chr(10) ORDER BY s.n) FROM {steps})"
    return f"coalesce({row}.body -> 'files' ->> 'instruction.md', {of_steps})"
