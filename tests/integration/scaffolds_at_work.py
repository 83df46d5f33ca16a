"""Scaffolds that exist for the tests."""

from scaffolds.base import Context, Llm, TaskView
from scaffolds.declare import scaffold

from sandboxes.base import Sandbox


@scaffold(name="broken", version="1")
class Broken:
    """Fails in a way that nobody foresaw."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        return str(1 / 0)
