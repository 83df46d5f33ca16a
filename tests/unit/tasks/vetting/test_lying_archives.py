"""Archives in a task's files that lie: about sizes, places and numbers. What is read of each is bounded, and the rest of the task is searched."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tasks.vetting import forms
from orchestrator.tasks.vetting.forms import Budget, views
from orchestrator.tasks.vetting.leaks import Readable, search
from orchestrator.tasks.vetting.secrets import Body, Source

SECRET = b"the secret of the whole house is quiet_zebra"
MOST = 4 << 20


def many_names_of_one_text(names: int = 3000) -> bytes:
    """A zip whose directory names the same 64 KiB many times."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b" " * (1 << 16))
    data = file.getvalue()
    end = data.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", data[end + 16 : end + 20])[0]
    entry = data[start:end]
    counts = struct.pack("<HHII", names, names, len(entry) * names, start)
    return data[:start] + entry * names + data[end : end + 8] + counts + data[end + 20 :]


def a_size_below_zero() -> bytes:
    """A tar whose second header is its first again and again."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    header = bytearray(file.getvalue()[:512])
    header[124:136] = b"\xff" * 4 + (-512).to_bytes(8, signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + file.getvalue()[512:]


def a_chain_of_long_names() -> bytes:
    """A tar of 20,000 headers, each the name of the next."""
    info = tarfile.TarInfo("x")
    info.type = tarfile.GNUTYPE_LONGNAME
    return info.tobuf(tarfile.GNU_FORMAT) * 20_000


def a_sparse_file_of_an_exabyte() -> bytes:
    info = tarfile.TarInfo("a")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(1 << 60),
        "GNU.sparse.map": f"0,0,{1 << 60},0",
    }
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def a_bomb() -> bytes:
    return gzip.compress(gzip.compress(bytes(64 << 20)))


def a_pack_of_streams_that_end_at_once() -> bytes:
    return b"PACK\0\0\0\2\xff\xff\xff\xff" + zlib.compress(b"") * 200_000


LYING: list[Callable[[], bytes]] = [
    many_names_of_one_text,
    a_size_below_zero,
    a_chain_of_long_names,
    a_sparse_file_of_an_exabyte,
    a_bomb,
    a_pack_of_streams_that_end_at_once,
]


def body() -> Body:
    return Body(source=Source.ANSWER, name="", lines=frozenset({SECRET}), values=frozenset({b"quiet_zebra"}))


@pytest.mark.parametrize("lying", LYING, ids=lambda make: make.__name__)
def test_what_is_read_of_an_archive_that_lies_is_bounded(lying: Callable[[], bytes]) -> None:
    data, budget = lying(), Budget(MOST)
    decoded = sum(len(view.text) for view in views(data, budget=budget)) - 2 * len(data)
    assert decoded <= 2 * MOST, "each text stands there as it is and reversed"


def test_a_file_that_was_not_read_whole_is_named_and_the_others_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "MAX_DECODED", MOST)
    files = {"/app/a.zip": many_names_of_one_text(), "/app/b.gz": gzip.compress(SECRET)}
    searched = search([body()], Readable(files=files, variables={}))
    assert [suspect.path for suspect in searched.suspects] == ["/app/b.gz"]
    assert searched.cut == ("/app/a.zip",) and "'/app/a.zip'" in searched.note


def whole() -> list[bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", SECRET * 9)
        archive.writestr("c", b"x" * 5000)
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as files:
        info = tarfile.TarInfo("n" * 150)
        info.size = len(SECRET)
        files.addfile(info, io.BytesIO(SECRET))
    return [
        packed.getvalue(),
        tarred.getvalue(),
        gzip.compress(SECRET),
        a_pack_of_streams_that_end_at_once()[:4000],
    ]


@given(
    which=st.integers(0, 3),
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12),
    length=st.floats(0, 1),
)
def test_no_damage_makes_the_search_fail(which: int, places: list[tuple[float, int]], length: float) -> None:
    data = bytearray(whole()[which])
    for place, byte in places:
        data[int(place * len(data))] = byte
    budget = Budget(MOST)
    for _ in views(bytes(data[: int(length * len(data))]), budget=budget):
        pass
