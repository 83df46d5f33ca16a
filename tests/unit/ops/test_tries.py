"""`ops/tries`, and the tries of programs: a registry may be away for a while, all output is shown, and none follows where waiting cannot help."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scaffolds import tries

from tests.package_index import serving, write_wheel
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.tier("gate")

REPOSITORY = Path(__file__).resolve().parents[3]
TRIES = REPOSITORY / "ops/tries"


def a_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def works_after(place: Path, failures: int, output: str = "the registry is away") -> Path:
    """A program that fails so many times, counts its calls in the file `calls`, and says which call it is on both of its outputs."""
    (place / "output").write_text(f"{output}\n")
    script = f'cd "{place}"; echo x >> calls; calls=$(wc -l < calls); echo "call $calls"; cat output >&2; [ "$calls" -gt {failures} ]'
    return a_program(place / "installs", script)


def calls(place: Path) -> int:
    return len((place / "calls").read_text().splitlines())


def run(*argv: str | Path, waits: str = "0 0", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env={**os.environ, "PENSTOCK_TRY_WAITS": waits, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_command_that_works_at_last_prints_only_that_it_is_tried_again(tmp_path: Path) -> None:
    done = run(TRIES, works_after(tmp_path, 2), "with", "arguments")
    assert done.returncode == 0 and calls(tmp_path) == 3 and done.stdout == ""
    assert done.stderr.count("failed, the next one follows in 0 s") == 2 and "call" not in done.stderr


def test_a_command_that_works_at_once_prints_nothing(tmp_path: Path) -> None:
    done = run(TRIES, works_after(tmp_path, 0))
    assert (done.returncode, done.stdout, done.stderr, calls(tmp_path)) == (0, "", "", 1)


def test_a_command_that_never_works_shows_every_try_then_one_sentence(tmp_path: Path) -> None:
    command = works_after(tmp_path, 9)
    done = run(TRIES, command)
    assert done.returncode == 1 and calls(tmp_path) == 3 and done.stdout == ""
    shown = [done.stderr.index(f"output of try {n} of 3:") for n in (1, 2, 3)]
    for n, at in enumerate(shown, 1):
        assert f"call {n}\nthe registry is away\n(exit status 1)" in done.stderr[at:]
    assert shown == sorted(shown) and done.stderr.endswith(f"failed in 3 of 3 tries: {command}\n")


def test_without_a_setting_the_waits_add_up_to_a_minute(tmp_path: Path) -> None:
    waits = [float(word) for word in tries.WAITS.split()]
    assert sum(waits) >= 60 and waits == sorted(waits)
    assert f"PENSTOCK_TRY_WAITS-{tries.WAITS}" in TRIES.read_text()


def by_script(place: Path) -> str:
    done = run(TRIES, works_after(place, 9, (place / "output").read_text()))
    assert done.returncode == 1
    return done.stderr


def by_module(place: Path) -> str:
    shown: list[str] = []
    status, _ = tries.run(
        [str(works_after(place, 9, (place / "output").read_text()))], place, os.environ, shown.append
    )
    assert status == 1
    return "\n".join(shown)


@pytest.mark.parametrize("tried", [by_script, by_module])
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("error: Failed to install: x.whl\n  cause: No space left on device (os error 28)", 1),
        ("npm error code ENOSPC\nnpm error syscall write", 1),
        ("error: failed to create directory `/opt/x`: Permission denied (os error 13)", 1),
        ("  cause: Because x==3 was not found in the registry, your requirements are unsatisfiable.", 1),
        ("npm error code E404\nnpm error 404 Not Found", 1),
        ("error: Request failed after 3 retries in 10.7s\n  cause: Failed to fetch: http://x/y/", 3),
        ("npm error code EAI_AGAIN\nnpm error network request to https://x/y failed", 3),
        ("ERROR: No matching distribution found for uv==0.13.8", 3),  # pip's answer to a 503
        ("", 3),
    ],
)
def test_a_failure_is_tried_again_where_waiting_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Callable[[Path], str], output: str, expected: int
) -> None:
    monkeypatch.setenv("PENSTOCK_TRY_WAITS", "0 0")
    (tmp_path / "output").write_text(output)
    shown = tried(tmp_path)
    assert calls(tmp_path) == expected and shown.count(output or "call") == expected


def test_a_command_that_is_missing_or_killed_is_not_tried_again(tmp_path: Path) -> None:
    assert "failed in 1 of 3 tries: absent-program" in run(TRIES, "absent-program").stderr
    killed = run(TRIES, a_program(tmp_path / "killed", "kill -9 $$"))
    assert killed.returncode == 1 and "failed in 1 of 3 tries" in killed.stderr
    shown: list[str] = []
    assert tries.run([str(tmp_path / "killed")], tmp_path, os.environ, shown.append)[0] == -signal.SIGKILL
    assert len(shown) == 1


def test_waits_that_are_no_numbers_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TRY_WAITS", "soon")
    with pytest.raises(ValueError, match=r"PENSTOCK_TRY_WAITS is 'soon': it takes seconds, for example"):
        tries.run(["true"], tmp_path, os.environ, print)


def started(*argv: str | Path, waits: str) -> subprocess.Popen[str]:
    """In a session of its own, and with the usual Ctrl-C, which a shell's background job ignores."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", *argv],
        env={**os.environ, "PENSTOCK_TRY_WAITS": waits},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_there(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_the_command_and_its_tries(tmp_path: Path, how: str) -> None:
    command = a_program(
        tmp_path / "waits",
        f'echo $$ > "{tmp_path}/new"; mv "{tmp_path}/new" "{tmp_path}/pid"; exec sleep 3600',
    )
    process = started(TRIES, command, waits="0 0")
    eventually_blocking((tmp_path / "pid").exists)
    child = int((tmp_path / "pid").read_text())
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if how == "Ctrl-C" else 143) and "try" not in err
    eventually_blocking(lambda: not is_there(child))


def test_a_signal_ends_the_wait_for_the_next_try(tmp_path: Path) -> None:
    process = started(TRIES, works_after(tmp_path, 9), waits="3600")
    assert process.stderr is not None
    assert "try 1 of 2 failed, the next one follows in 3600 s" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143 and calls(tmp_path) == 1


@pytest.mark.timeout(300)  # pip takes long to start on a busy machine
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_registry_that_is_away_at_first_costs_one_more_try(tmp_path: Path, tool: str) -> None:
    write_wheel(tmp_path, "walker", "1.0", {"walker.py": "VERSION = '1.0'\n"})
    installs = {
        "pip": (sys.executable, "-m", "pip", "install", "-qq"),
        "uv": (str(Path(sys.executable).with_name("uv")), "pip", "install", "-q"),
    }
    target = tmp_path / "target"
    with serving(tmp_path) as index:
        index.away = 1
        done = run(TRIES, *installs[tool], "--target", target, "walker==1.0", **index.environment)
        assert done.returncode == 0, done.stderr
        assert index.away == 0 and done.stderr.count("try 1 of 3 failed") == 1
        assert (target / "walker.py").exists()


def apt(tmp_path: Path, script: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The acts of ops/apt if root has an apt-get of this script; and the calls of apt-get and dpkg."""
    for name, body in {"id": "echo 0", "dpkg": "exit 0", "apt-get": script}.items():
        note = "" if name == "id" else f'echo "{name} $*" >> "{tmp_path}/log"; '
        a_program(tmp_path / "bin" / name, note + body)
    done = run(REPOSITORY / "ops/apt", "tree", "jq", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return done, (tmp_path / "log").read_text().splitlines()


def test_apt_waits_for_its_lock_and_repeats_downloads(tmp_path: Path) -> None:
    done, log = apt(tmp_path, "exit 0")
    assert done.returncode == 0 and len(log) == 1, done.stderr
    assert log[0].startswith("apt-get install -y") and log[0].endswith(" tree jq")
    assert "-o DPkg::Lock::Timeout=300" in log[0] and "-o Acquire::Retries=3" in log[0]


def test_apt_that_fails_finishes_what_was_killed_and_reads_the_index_before_it_installs_again(
    tmp_path: Path,
) -> None:
    done, log = apt(tmp_path, f'[ "$1" = update ] && touch "{tmp_path}/new"; [ -e "{tmp_path}/new" ]')
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in log] == [
        ["apt-get", "install"],
        ["dpkg", "--configure"],
        ["apt-get", "update"],
        ["apt-get", "install"],
    ]
    assert "DPkg::Lock::Timeout=300" in log[2]


@pytest.mark.parametrize(
    ("update", "install", "expected"),
    [
        ("exit 0", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)", 3),
        ("echo 'E: Failed to fetch http://x/InRelease'; exit 100", "E: Unable to locate package jq", 3),
        ("exit 0", "E: Unable to locate package jq", 1),
        ("exit 0", "E: You don't have enough free space in /var/cache/apt/archives/.", 1),
    ],
)
def test_apt_that_cannot_install_shows_why_in_every_try_and_one_sentence(
    tmp_path: Path, update: str, install: str, expected: int
) -> None:
    done, log = apt(tmp_path, f'if [ "$1" = update ]; then {update}; else echo "{install}" >&2; exit 100; fi')
    assert done.returncode == 1
    assert sum(line.startswith("apt-get update") for line in log) == expected
    assert done.stderr.count(install) == 2 * expected, done.stderr
    assert done.stderr.endswith("\nmissing and could not be installed: apt-get install tree jq\n")


def test_the_outputs_of_a_call_that_was_killed_are_removed_by_the_next_one(tmp_path: Path) -> None:
    command = a_program(tmp_path / "hangs", f"touch '{tmp_path}/started'; exec sleep 600")

    def outputs(pid: int) -> list[Path]:
        return list(Path("/dev/shm").glob(f"penstock-tries.*.{pid}.*"))

    with subprocess.Popen([TRIES, command], start_new_session=True) as hanging:
        eventually_blocking((tmp_path / "started").exists)
        [left] = outputs(hanging.pid)
        run(TRIES, "true")
        assert left.is_dir(), "its call lives"
        os.killpg(hanging.pid, signal.SIGKILL)
    run(TRIES, "true")
    assert not left.exists()
