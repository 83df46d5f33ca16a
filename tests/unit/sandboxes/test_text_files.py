"""Text as people's editors save it: the mark and the line ends of Windows are no content, other encodings are named."""

import bz2
import codecs
import gzip
import lzma
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaffolds.scaffold_toml import from_toml

from orchestrator.deploy.cluster.reading import load as load_topology
from orchestrator.settings.config import load as load_config
from orchestrator.tasks.harbor import Task
from sandboxes.text_files import is_script, left_text, read_text, read_toml, script_of, text_of

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0\ufeff"))


@given(text=TEXTS)
def test_a_mark_and_the_line_ends_of_windows_do_not_change_what_is_read(text: str) -> None:
    as_windows = text.replace("\n", "\r\n").encode("utf-8-sig")
    assert text_of(as_windows, "a") == text == text_of(text.encode(), "a")
    assert script_of(b"\n" + text.encode(), "a") == b"\n" + text.encode(), (
        "a script without CRLF keeps its bytes"
    )


@given(text=TEXTS.filter(bool), encoding=st.sampled_from(("utf-16", "utf-32")))
def test_another_encoding_is_refused_by_its_name(text: str, encoding: str) -> None:
    for read in (text_of, script_of):
        with pytest.raises(ValueError, match=rf"^some file is {encoding.upper()} text: save it as UTF-8$"):
            read(text.encode(encoding), "some file")


def test_utf_16_without_a_mark_and_latin_1_are_refused_too() -> None:
    with pytest.raises(ValueError, match=r"a.toml looks like UTF-16 text"):
        text_of("name = 'a'".encode("utf-16-le"), "a.toml")
    with pytest.raises(ValueError, match=r"a.toml is not UTF-8 text \(byte 11\): save it as UTF-8"):
        text_of(codecs.BOM_UTF8 + b"name = '\xe9'", "a.toml")
    assert text_of(b"bytes \0 of two kinds", "a") == "bytes \0 of two kinds", "a NUL alone names no encoding"


def test_a_script_of_windows_is_started_by_its_first_line(tmp_path: Path) -> None:
    written = codecs.BOM_UTF8 + b"#!/bin/sh\r\nset -e\r\necho started\r\n"
    assert is_script(written)
    script = tmp_path / "script"
    script.write_bytes(script_of(written, "script"))
    script.chmod(0o755)
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"started\n"


@pytest.mark.parametrize("first", [b"#!/bin/bash", b"#!/bin/bash\r", b"# an installer"])
@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_what_a_script_carries_after_its_text_travels_unchanged(
    tmp_path: Path, first: bytes, packed: Callable[[bytes], bytes]
) -> None:
    content = random.Random(3).randbytes(200_000)
    payload = packed(content)
    assert b"\r\n" in payload
    end = b"\r\n" if first.endswith(b"\r") else b"\n"
    head = first.rstrip(b"\r") + end + b'tail -n +4 "$0" > "$1"' + b"\r\n" + b"exit 0" + end
    path = tmp_path / "install.sh"
    path.write_bytes(script_of(head + payload, "install.sh", by_shell=True))
    subprocess.run(["bash", path, tmp_path / "got"], check=True)
    assert (tmp_path / "got").read_bytes() == payload


def test_a_script_in_another_encoding_without_a_payload_is_text() -> None:
    script = "#!/bin/sh\n# Prüfung\r\necho 1\r\n\x1a".encode("latin-1")
    assert script_of(script, "a.sh") == script.replace(b"\r\n", b"\n")
    marked = b"#!/bin/sh\ncut -d '\x01' a\r\necho 1\r\n"
    assert script_of(marked, "a.sh") == marked.replace(b"\r\n", b"\n")


def test_a_return_that_a_script_of_unix_holds_is_kept() -> None:
    wanted = b"#!/bin/sh\nprintf 'a\r\n' > windows.txt\n"
    assert script_of(wanted, "script") == wanted


def test_invalid_toml_is_refused_by_a_sentence_that_names_the_file_once(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(codecs.BOM_UTF8 + b"[a]\r\nb = 1\r\n")
    assert read_toml(file) == {"a": {"b": 1}} and read_text(file) == "[a]\nb = 1\n"
    for content in (b"[a", b"a = " + b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{file} is not valid TOML: "):
            read_toml(file)


ODD_TOML = (
    (b"a = 1\rb = 2\r", "ends its lines in CR alone: save it with the line ends of Unix (LF)"),
    (b"a = 1\r", "ends its lines in CR alone: save it with the line ends of Unix (LF)"),
    (b"# a\na = 1\rb = 2\r", "has a CR without LF in line 2: save it with the line ends of Unix (LF)"),
    (codecs.BOM_UTF8 * 2 + b"a = 1\n", "has more than one byte order mark: save it as UTF-8 without one"),
)


@pytest.mark.parametrize(("content", "wrong"), ODD_TOML)
def test_what_tomllib_calls_an_invalid_statement_is_refused_by_its_name_at_every_border(
    content: bytes, wrong: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    for reader in (read_toml, load_config, load_topology, from_toml):
        with pytest.raises(ValueError, match=rf"^{re.escape(f'{file} {wrong}')}$"):
            reader(file)
    files = {"task.toml": content, "instruction.md": b"do it\n", "tests/test.sh": b"true\n"}
    with pytest.raises(ValueError, match=rf"^task.toml {re.escape(wrong)}$"):
        Task.from_files(files)


@pytest.mark.parametrize("end", [b"\x1a", b"\n\x1a", b"\r\n\x1a\x1a\x1a", b" \x1a\r\n"])
def test_the_ctrl_z_at_the_end_of_a_file_of_dos_is_left_out(end: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b'[run]\r\nname = "dos"' + end)
    assert load_config(tmp_path / "a.toml").run.name == "dos"
    settings = b'[metadata]\r\nname = "dos"' + end
    task = Task.from_files({"task.toml": settings, "instruction.md": b"do it\n", "tests/test.sh": b"true\n"})
    assert task.name == "dos"
    with pytest.raises(ValueError, match="is not valid TOML"):
        (tmp_path / "a.toml").write_bytes(b"a = 1\n\x1ab = 2\n")
        read_toml(tmp_path / "a.toml")


@given(text=TEXTS, encoding=st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-32")))
def test_what_a_program_left_is_read_in_the_encoding_of_its_mark(text: str, encoding: str) -> None:
    assert left_text(text.encode(encoding)) == text
