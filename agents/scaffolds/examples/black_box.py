"""A black box as a class: for a program whose files, arguments or results need more than placeholders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxes.base import ExecResult, File, PathRefused, Sandbox
from scaffolds.base import AgentLimits, BlackBoxDefaults, Endpoint, Fault, Launch, TaskView
from scaffolds.declare import scaffold
from scaffolds.tcp import Tcp

ANSWER = "/logs/answer.txt"


@scaffold(name="example-agent", version="1", wire="chat")
class Agent(BlackBoxDefaults):
    def __init__(self) -> None:
        self._tcp = Tcp()

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        program = Path(__file__).with_name("agent.py").read_bytes()
        return {**self._tcp.files(), "/home/agent/agent.py": File(program)}

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        argv = [
            "/usr/bin/python3",
            "/home/agent/agent.py",
            f"{task.instruction}\nYou have {limits.turns} turns.",
        ]
        env = {"OPENAI_BASE_URL": self._tcp.base_url(gateway), "OPENAI_API_KEY": gateway.token}
        return Launch(argv=self._tcp.argv(gateway, argv), env=env)

    def harvested(self) -> Sequence[str]:
        return [ANSWER]

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        try:
            return (await sandbox.get(ANSWER)).decode(errors="replace")
        except (FileNotFoundError, PathRefused):
            return None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        if ended.ok and answer is None:
            return Fault("policy", "no answer")
        return super().classify(ended, answer)
