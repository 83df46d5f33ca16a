"""What a build reads of a Dockerfile before buildah does: its bases."""

import json

import pytest

from sandboxes.base import ImageRefused
from sandboxes.images import recipe
from sandboxes.images.architecture import machine

TEXT = f"""# syntax=docker/dockerfile:1
ARG VERSION=3.11
ARG EMPTY

FROM --platform=linux/{machine()} python:${{VERSION}} AS Build
RUN echo FROM nothing \\
  FROM here
from build
FROM \\
  debian:12
FROM scratch
FROM ${{EMPTY:-debian:12}}
COPY --from=build /a /b
"""


def test_the_bases_are_the_images_that_no_earlier_stage_is() -> None:
    _, stages = recipe.read(TEXT.encode())
    assert recipe.bases(stages) == ["python:3.11", "debian:12"]
    assert [(stage.line, stage.alias) for stage in stages] == [
        (4, "build"),
        (7, ""),
        (8, ""),
        (10, ""),
        (11, ""),
    ]


def test_bases_are_renamed_and_variables_declared_in_every_stage() -> None:
    lines, stages = recipe.read(TEXT.encode())
    written = recipe.written(lines, stages, lambda name: f"local/{name}", ["A", "B"]).decode().splitlines()
    assert [line for line in written if line.startswith("FROM")] == [
        "FROM local/python:3.11 AS build", "FROM build", "FROM local/debian:12", "FROM scratch", "FROM local/debian:12",
    ]  # fmt: skip
    assert written.count("ARG A B") == 5 and written[-1] == "COPY --from=build /a /b"
    assert "  FROM here" in written


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("RUN true\nFROM debian:12", "must begin with FROM"),
        ("", "must begin with FROM"),
        ("FROM", "must begin with FROM"),
        ("FROM a b", "line 1: FROM must be"),
        ("FROM --platform=windows/amd64 x", "line 1: FROM has"),
        ("FROM --other=1 x", "line 1: FROM has"),
    ],
)
def test_a_dockerfile_that_cannot_be_built_here_is_refused(text: str, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        recipe.read(text.encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ImageRefused, match="not UTF-8"):
        recipe.read(b"FROM \xff")


DOCUMENTS = """\
FROM debian:12
RUN <<EOF
from os import path
FROM nothing
EOF
RUN --network=none python3 <<'A' && cat <<-B >/x \\
  && true
from a import b
A
\tword
\tB
COPY <<EOF /srv/a
hi $NAME
EOF
COPY --chmod=755 <<EOF /srv/b
hi
EOF
RUN echo 1<<2
COPY x /y
"""


def test_here_documents_become_arguments_of_a_shell_and_each_line_keeps_its_number() -> None:
    lines, stages = recipe.read(DOCUMENTS.encode())
    assert [stage.image for stage in stages] == ["debian:12"] and len(lines) == len(DOCUMENTS.splitlines())
    assert lines[1:5] == ['RUN ["/bin/sh", "-c", "from os import path\\nFROM nothing\\n"]', "", "", ""]
    word, flag, rest = lines[5].split(" ", 2)
    assert (word, flag) == ("RUN", "--network=none")
    assert json.loads(rest)[2] == (
        "python3 <<'A' && cat <<-B >/x \\\n  && true\nfrom a import b\nA\n\tword\n\tB\n"
    )
    assert json.loads(lines[11].removeprefix("RUN "))[2] == (
        "mkdir -p /srv && cat >/srv/a <<EOF\nhi $NAME\nEOF\n"
    )
    assert lines[14:17] == ["COPY --chmod=755 <<EOF /srv/b", "hi", "EOF"], "as it was"
    assert lines[17:] == ["RUN echo 1<<2", "COPY x /y"]
