"""mini-swe-agent, the program of that name from PyPI, with its own loop, inside the sandbox.

    host                                   inside, without network
    requirements.lock, installed    ─bind→ /opt/mini                       the program and its dependencies, byte-compiled
    inside/*                        ─copy→ /home/agent/.mini               its three extension points:
                                             start.py                        its command line
                                             penstock_model.py               --model-class: the gateway's socket
                                             penstock_bash.py                --environment-class: commands as in `shell`,
                                             penstock_observation.py           and the view of them (scaffolds.observation)
                                             mini.yaml, attempt.yaml         its configuration: templates; task and limits
    harvest                         ←read─ /home/agent/.mini/trajectory.json

The policy ends an attempt, and answers, with the program's own marker::

    echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 'the answer'

The command's output after the marker is the final message; `done` if a task needs no answer. Anything but a call of `bash` is a fault
of the policy.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from sandboxes.base import ExecResult, File, KilledBy, PathRefused, Sandbox
from scaffolds import observation
from scaffolds.base import AgentLimits, BlackBoxDefaults, Endpoint, Fault, Hints, Launch, Program, TaskView
from scaffolds.declare import scaffold
from scaffolds.programs import PYTHON, binds_of

VERSION: Final = "2.4.6"
PROGRAM: Final = "/opt/mini"
PLACE: Final = "/home/agent/.mini"
TRAJECTORY: Final = f"{PLACE}/trajectory.json"
SUBMIT: Final = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo "

_INSIDE: Final = Path(__file__).with_name("inside")
_OBSERVATION: Final = Path(observation.__file__)
_PROGRAM: Final = Program(
    name="mini-swe-agent", kind="python", lock=Path(__file__).with_name("requirements.lock"), inside=PROGRAM
)
_MAX_TRAJECTORY: Final = 64 << 20


def environment(gateway: Endpoint) -> dict[str, str]:
    """The variables that the program needs. `penstock_bash` hides them from its commands."""
    return {
        "PYTHONPATH": PROGRAM,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8:replace",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": f"{PLACE}/global",
        "TYPER_STANDARD_TRACEBACK": "1",
        "OPENAI_BASE_URL": gateway.base_url,
        "OPENAI_API_KEY": gateway.token,
        "PENSTOCK_GATEWAY_SOCKET": gateway.socket,
    }


@scaffold(
    name="mini-swe-agent",
    version=VERSION,
    wire="chat",
    program=_PROGRAM,
    check=Hints(finish=f"{SUBMIT}done"),
    env=tuple(environment(Endpoint(base_url="", token="", socket=""))),
)
class MiniSweAgent(BlackBoxDefaults):
    """See the module. Derive from it and set `config` to use other templates."""

    config: ClassVar[Path] = _INSIDE / "mini.yaml"

    def __init__(self) -> None:
        self._status = ""
        self._detail = ""

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        attempt = {
            "run": {"task": task.instruction},
            # Its clock runs on while it waits for the platform. The attempt's own clocks end it.
            "agent": {"step_limit": limits.turns, "wall_time_limit_seconds": 0},
            "environment": {
                "timeout": math.ceil(limits.tool_timeout_s),
                "observation_characters": limits.observation_characters,
                "observation_lines": limits.observation_lines,
            },
        }
        return {
            **{f"{PLACE}/{path.name}": File(path.read_bytes()) for path in sorted(_INSIDE.glob("*.py"))},
            f"{PLACE}/penstock_observation.py": File(_OBSERVATION.read_bytes()),
            f"{PLACE}/mini.yaml": File(self.config.read_bytes()),
            f"{PLACE}/attempt.yaml": File(as_yaml(attempt).encode()),
        }

    def binds(self) -> Mapping[Path, str]:
        return binds_of(_PROGRAM)

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        settings = ("-c", f"{PLACE}/mini.yaml", "-c", f"{PLACE}/attempt.yaml", "-o", TRAJECTORY)
        classes = (
            "--model-class",
            "penstock_model.GatewayModel",
            "--environment-class",
            "penstock_bash.Bash",
        )
        command = ("--yolo", "--exit-immediately", "--model", "policy", *classes, *settings)
        return Launch(argv=(PYTHON, "-S", f"{PLACE}/start.py", *command), env=environment(gateway))

    def harvested(self) -> Sequence[str]:
        return [TRAJECTORY]

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        """The submission, or None."""
        self._status = self._detail = ""
        try:
            trajectory = json.loads(await sandbox.get(TRAJECTORY, max_bytes=_MAX_TRAJECTORY))
            info, last = trajectory["info"], trajectory["messages"][-1]
            self._status, submission = str(info["exit_status"]), str(info["submission"])
            self._detail = str(last["content"])[:200] if last["role"] == "exit" else ""
        except (OSError, PathRefused, ValueError, KeyError, IndexError, TypeError, RecursionError):
            return None  # the program did not get that far, or the policy wrote there: `classify` decides
        return submission.removesuffix("\n") if self._status == "Submitted" and ended.ok else None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        """Classify by the exit status in the trajectory."""
        if answer is not None:
            return None
        match ended.killed_by:
            case KilledBy.TIMEOUT:
                return Fault("timeout", "the program's time ended")
            case KilledBy.MEMORY | KilledBy.CPU | KilledBy.DISK | KilledBy.OUTPUT | KilledBy.CALLER:
                return Fault("infra", f"limit of {ended.killed_by.value} reached")
        match self._status:
            case "LimitsExceeded":
                return Fault("policy", "turns" if self._detail == self._status else self._detail)
            case "RepeatedFormatError":
                return Fault("policy", "ill_formed: not a call of bash with a command")
            case "TimeExceeded":
                return Fault("timeout", "the program's time ended")
            case "" | "Submitted":
                return Fault("infra", f"it ended early, exit code {ended.exit_code}: {_last_line(ended)}")
        return Fault("infra", f"{self._status}: {self._detail}")


def submission(answer: str) -> str:
    """The command by which a policy ends with `answer`, which contains no single quote."""
    return f"{SUBMIT}'{answer}'"


def as_yaml(value: Any) -> str:
    """JSON that every YAML reader parses to the same value: characters that YAML forbids in a text or treats as line breaks are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", text
    )


def _last_line(ended: ExecResult) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it printed nothing"
