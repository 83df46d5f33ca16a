"""Rewards of groups with process signals of plug-ins, computed in another process: whatever a signal does to that process costs the signal alone.

A signal that crashes native code, takes all memory or holds the interpreter lock (a regular expression can, for days) would end or block the whole
orchestrator. Its group would do so again after every restart. A process is kept for the next group. It ends with this process, or by an alarm of the
kernel, which needs no interpreter.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from orchestrator.pool.groups import TerminalGroup
from orchestrator.rewards.process import plugin_signals
from orchestrator.rewards.settings import RewardSettings
from orchestrator.roles.reward import RewardedGroup, reward_group
from orchestrator.settings.reward import ProcessSignal
from orchestrator.settings.timeouts import timeouts

SHARE: Final = 1 / 2
"""Of `timeouts.rewards_s` for signals of plug-ins. The rest is for the rewards without them."""
END_S: Final = 1.0
"""For a process that has no more input to end by itself."""
KILLED_FIRST: Final = "1000"
"""oom_score_adj: a lack of memory ends this process before any other."""


def reward_group_apart(
    group: TerminalGroup, kept: Collection[int], settings: RewardSettings, noise: float | None = None
) -> RewardedGroup:
    """`reward_group`; without the signals of plug-ins, and with a sentence about them, if their process ends or takes too long. It blocks: call it in
    a thread."""
    job = _Job(
        path=sys.path,
        limit_s=timeouts().rewards_s * SHARE,
        group=group,
        kept=[*kept],
        settings=settings,
        noise=noise,
    )
    try:
        return _in_process(job)
    except _Ended as ended:
        names = plugin_signals(settings)
        left = {name: each for name, each in settings.process.items() if name not in names}
        rewarded = reward_group(group, kept, replace(settings, process=left), noise)
        sentence = f"process signal {' or '.join(names)}: {ended}"
        return replace(rewarded, failed=(*rewarded.failed, sentence))


class _Ended(Exception):
    """Why a process has no answer."""


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `reward_group`, with the search path for plug-ins and the seconds that it may take."""

    path: list[str]
    limit_s: float
    group: TerminalGroup
    kept: list[int]
    settings: RewardSettings
    noise: float | None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One of both."""

    rewarded: RewardedGroup | None = None
    problem: str | None = None


def _signal(kind: type, value: Any) -> Any:
    return ProcessSignal.model_validate(value)


_encoded = msgspec.msgpack.Encoder(enc_hook=ProcessSignal.model_dump).encode
_job = msgspec.msgpack.Decoder(_Job, dec_hook=_signal).decode
_answer = msgspec.msgpack.Decoder(_Answer).decode


def _send(pipe: IO[bytes], raw: bytes) -> None:
    """Raises OSError if the other process has ended."""
    pipe.write(len(raw).to_bytes(8, "big") + raw)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes:
    """Raises EOFError if the other process has ended."""
    size = int.from_bytes(_exactly(pipe, 8), "big")
    return _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    raw = pipe.read(size)
    if len(raw) < size:
        raise EOFError("it has ended")
    return raw


_idle: list[subprocess.Popen[bytes]] = []
"""Processes that wait for a group: as many as there were groups at a time."""


def _in_process(job: _Job) -> RewardedGroup:
    try:
        raw = _encoded(job)
    except (ValueError, OverflowError, RecursionError) as error:  # only JSON can represent it
        raise _Ended(f"the group cannot be sent to another process: {error}") from None
    process = _process()
    assert process.stdin is not None and process.stdout is not None
    try:
        _send(process.stdin, raw)
        answer = _answer(_received(process.stdout))
    except (OSError, EOFError) as error:
        _end(process)
        raise _Ended(_why(process.returncode, job.limit_s, error)) from None
    _idle.append(process)
    if answer.rewarded is None:
        raise _Ended(answer.problem)
    return answer.rewarded


def _process() -> subprocess.Popen[bytes]:
    """One that waits, or a new one."""
    while _idle:
        process = _idle.pop()
        if process.poll() is None:
            return process
        _end(process)
    command = [sys.executable, "-m", __name__]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise _Ended(f"no process can be started: {error.strerror}") from None


def _why(status: int, limit_s: float, error: Exception) -> str:
    if status == -signal.SIGALRM:
        return f"the group takes longer than {limit_s:g} s, half of timeouts.rewards_s"
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}"
    return f"its process ended with status {status} ({type(error).__name__})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that waits or is ending; after a while by force: a plug-in may have threads."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # what it has not read is lost
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    process.kill()
    process.wait()


def close() -> None:
    """End the processes that wait."""
    while _idle:
        _end(_idle.pop())


atexit.register(close)


def main() -> None:
    """The process. Answers jobs until its input ends."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # a signal may print
    # A terminal sends it to all its processes: the orchestrator ends, and then this one has no more input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    while True:
        try:
            job = _job(_received(jobs))
        except EOFError:
            return
        sys.path[:] = job.path
        signal.setitimer(signal.ITIMER_REAL, job.limit_s)
        try:
            answer = _Answer(rewarded=reward_group(job.group, job.kept, job.settings, job.noise))
        except BaseException as error:  # noqa: BLE001  # a signal may raise anything
            answer = _Answer(problem=f"{type(error).__name__}: {error}"[:500])
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, _encoded(answer))


if __name__ == "__main__":
    main()
