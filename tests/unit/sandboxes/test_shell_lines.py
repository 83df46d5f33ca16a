"""The commands of a shell script end in LF, whatever editors made of them; CRLF that a command writes stays."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.shell_lines import flaw, for_a_shell, with_line_feeds
from sandboxes.text_files import script_of

COMMANDS = (
    "echo one # it's a comment",
    "printf '%s\\n' \"$# ${#HOME} don't\"",
    "cat <<'EOF' <<-\"LAST\"\nit's $HOME\nEOF\n\tlast\n\tLAST",
    "if [ $((1 << 2)) = 4 ]; then\n  echo four; fi",
    'echo "a $(printf %s "b")" \\\n  c',
    "cat <<< here",
    "printf %s 'two\nlines'",
    "echo $'it\\'s'",
    "",
)


def run(script: bytes) -> tuple[int, bytes]:
    done = subprocess.run(["bash", "-c", 'eval "$(cat)"'], input=script, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


@given(commands=st.lists(st.tuples(st.sampled_from(COMMANDS), st.booleans()), max_size=8))
def test_a_script_of_mixed_line_ends_is_the_script_of_unix(commands: list[tuple[str, bool]]) -> None:
    """Commands that were saved by editors of Windows, between others."""
    mixed = b"#!/bin/bash\n" + b"".join(
        f"{text}\n".replace("\n", "\r\n" if windows else "\n").encode() for text, windows in commands
    )
    unix = b"#!/bin/bash\n" + b"".join(f"{text}\n".encode() for text, _ in commands)
    assert script_of(mixed, "test.sh") == with_line_feeds(mixed) == unix


def test_each_of_these_commands_is_one_that_bash_runs() -> None:
    for text in COMMANDS:
        assert run(f"{text}\n".encode())[0] == 0, text


@pytest.mark.parametrize(
    "content",
    [
        b"printf 'a\r\nb\r\n' > a\n",
        b"cat > a <<EOF\nb\r\nc\r\nEOF\n",
        b'x="\r\n"\n',
        b"cat <<-A <<B\nb\r\n\tA\nd\r\nB\n",
        b"# a\nawk '\r\n' b\n",
        b"cat <<EOF\nnever ended\r\n",
    ],
)
def test_what_a_command_of_unix_holds_keeps_its_returns(content: bytes) -> None:
    assert with_line_feeds(b"echo 1\r\n" + content) == b"echo 1\n" + content


def test_only_shell_scripts_are_read_as_such() -> None:
    for first in (
        "#!/bin/sh",
        "#!/usr/bin/env bash",
        "#! /bin/dash -e",
        "#!/usr/bin/env -S bash -eu",
        "#!/bin/bash -e\r",
    ):
        assert for_a_shell(f"{first}\n".encode()), first
    for first in ("#!/usr/bin/env python3", "#!/bin/bashful", "#!/bin/sed -f", "echo 1", ""):
        assert not for_a_shell(f"{first}\n".encode()), first
    python = b"#!/usr/bin/env python3\nprint(1)\r\n"
    assert script_of(python, "a.py", by_shell=True) == python
    assert script_of(b"echo\nexit\r\n", "a.sh", by_shell=True) == b"echo\nexit\n"
    assert script_of(b"echo\nexit\r\n", "a") == b"echo\nexit\r\n"


def test_what_no_shell_reads_is_named() -> None:
    for script in (b"echo 1\recho 2\r", b"#!/bin/sh\recho 1\r", b"#!/bin/sh\necho 1\recho 2"):
        assert flaw(script) == "ends its lines in CR alone: save it with the line ends of Unix (LF)", script
    for script in (b"\0echo 1\n", b"#!/bin/sh\n\0\n", b"echo \0 1"):
        assert str(flaw(script)).startswith("has a NUL byte in its first lines"), script
    for script in (
        b"",
        b"echo 1",
        b"#!/bin/sh\r\necho 1\r\n",
        b"echo 1\nexit 0\n\0\0\r",
        b"printf 'a\r'\nexit\n",
    ):
        assert flaw(script) is None, script


@given(script=st.binary() | st.text("'\"\\$()<#\r\nEOF- ").map(str.encode))
def test_no_other_byte_changes(script: bytes) -> None:
    assert with_line_feeds(script).replace(b"\r\n", b"\n") == script.replace(b"\r\n", b"\n")
