"""The parts of a Dockerfile that a build reads before buildah does: its bases."""

import json
import platform
import subprocess
from pathlib import Path

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
        "FROM local/python:3.11 AS build",
        "FROM build",
        "FROM local/debian:12",
        "FROM scratch",
        "FROM local/debian:12",
    ]
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
        ("FROM --platform=linux/s390x x", "line 1: FROM has"),
        ("FROM --platform=s390x x", "line 1: FROM has"),
        ("FROM --platform=windows x", "line 1: FROM has"),
        ("FROM --platform= x", "line 1: FROM has"),
        ("ARG BASE\nFROM $BASE", r"line 2: FROM \$BASE names no image: give its ARG above FROM a default"),
        ("FROM debian:12\nFROM ${BASE:-}", r"line 2: FROM \$\{BASE:-\} names no image"),
        ("FROM --other=1 x", "line 1: FROM has"),
        ("FROM x\nRUN cat >f <<- EOF\nint main;\nEOF", r"line 3: int is not an instruction: .* <<EOF"),
        ("FROM x\nRUN apt-get update &&\n\n  apt-get install -y gcc", "line 4: apt-get is not an instr"),
        ("FROM x\nCOPPY a b", "line 2: COPPY is not an instruction: correct it"),
    ],
)
def test_a_dockerfile_that_cannot_be_built_here_is_refused(text: str, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        recipe.read(text.encode())


@pytest.mark.parametrize(
    ("before", "written", "image"),
    [
        ("ARG TAG=3.11\nARG IMAGE=python:$TAG", "$IMAGE", "python:3.11"),
        ("ARG NAME=python TAG=3.11 IMAGE=$NAME:$TAG", "${IMAGE}", "python:3.11"),
        ("ARG A='x y' \\\n  # a comment\n  B=\"debian:12\"", "$B", "debian:12"),
        ("arg\tV=\nARG W", '"debian:${V:-12}"', "debian:12"),
        ("ARG V=\nARG W", "debian:${V-13}${W-12}", "debian:12"),
        ("ARG V=1", "debian${V:+:12}${W:+-slim}${W+-x}", "debian:12"),
        ("ARG V=12", "${IMAGE:-debian:${TAG:-$V}}", "debian:12"),
        ("ARG V=12", "deb\\\nian:${V:?unset}", "debian:12"),
        ("ARG V=x-12", "debian:${V#x-}", "debian:${V#x-}"),
        ("", "tool-$TARGETOS-${TARGETARCH}", f"tool-linux-{machine()}"),
    ],
)
def test_from_is_expanded_with_the_arguments_before_it_as_docker_does(
    before: str, written: str, image: str
) -> None:
    lines, stages = recipe.read(f"{before}\nFROM {written} AS one\nRUN true\n".encode())
    assert recipe.bases(stages) == [image]
    built = recipe.written(lines, stages, lambda name: f"local/{name}", []).decode()
    assert f"FROM local/{image} AS one\n" in built


def test_a_stage_that_an_argument_names_keeps_its_shell() -> None:
    text = 'ARG B=One\nFROM debian:12 AS one\nSHELL ["/bin/bash", "-c"]\nFROM $B\nRUN [[ a ]]\n'
    assert scripts(text) == [["/bin/bash", "-c", "[[ a ]]"]]


@pytest.mark.parametrize("text", ["ARG A={x}\nFROM $A", "ARG A={y}\nARG B=$A$A$A\nFROM $B", "FROM {x}"])
def test_a_base_of_more_characters_than_a_name_has_is_refused(text: str) -> None:
    with pytest.raises(ImageRefused, match=r"of more than 4,096 characters: name an image"):
        recipe.read(text.format(x="x" * 5000, y="y" * 4000).encode())


@pytest.mark.parametrize(
    ("machine", "written"),
    [
        ("x86_64", "linux/amd64 linux/x86_64 linux/x86-64 Linux/AMD64 linux/amd64/v2 amd64 x86_64 linux"),
        ("aarch64", "linux/arm64 linux/aarch64 linux/arm64/v8 arm64 aarch64 $BUILDPLATFORM $TARGETPLATFORM"),
    ],
)
def test_a_platform_is_known_in_each_spelling(
    monkeypatch: pytest.MonkeyPatch, machine: str, written: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for each in written.split():
        assert recipe.read(f"FROM --platform={each} x".encode())[1][0].image == "x"


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


TO = '_copied_to={0}; [ ! -d "$_copied_to" ] || _copied_to=$_copied_to/EOF\n'
WRITTEN = '"$_copied_to"'
TOP = '"$TOP/a"'


def test_here_documents_become_arguments_of_a_shell_and_each_line_keeps_its_number() -> None:
    lines, stages = recipe.read(DOCUMENTS.encode())
    assert [stage.image for stage in stages] == ["debian:12"] and len(lines) == len(DOCUMENTS.splitlines())
    assert lines[1:5] == ['RUN ["/bin/sh", "-c", "from os import path\\nFROM nothing\\n"]', "", "", ""]
    word, flag, rest = lines[5].split(" ", 2)
    assert (word, flag) == ("RUN", "--network=none")
    assert json.loads(rest)[2] == (
        "python3 <<'A' && cat <<-B >/x   && true\nfrom a import b\nA\n\tword\n\tB\n"
    )
    assert json.loads(lines[11].removeprefix("RUN "))[2] == (
        f"set -e\n{TO.format('/srv/a')}mkdir -p /srv && cat >{WRITTEN} <<EOF\nhi $NAME\nEOF\n"
    )
    assert json.loads(lines[14].removeprefix("RUN "))[2] == (
        f"set -e\n{TO.format('/srv/b')}mkdir -p /srv && cat >{WRITTEN} <<EOF\nhi\nEOF\nchmod 755 {WRITTEN}\n"
    )
    assert lines[15:17] == ["", ""]
    assert lines[17:] == ["RUN echo 1<<2", "COPY x /y"]


def scripts(text: str) -> list[list[str]]:
    """The programs that stand for the instructions with here-documents, in order."""
    found = [line.partition("[") for line in recipe.read(text.encode())[0] if line.startswith("RUN ")]
    return [json.loads(f"[{words}") for _, bracket, words in found if bracket]


def test_a_here_document_runs_in_the_shell_of_its_stage_or_by_its_own_first_line() -> None:
    shell = 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]'
    text = (
        f"FROM debian:12 AS one\n{shell}\nRUN <<EOF\na\nEOF\nFROM debian:12\nRUN <<EOF\nb\nEOF\nFROM one\nRUN <<EOF\nc\nEOF\n"
        "RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF\n"
    )
    bash = ["/bin/bash", "-o", "pipefail", "-c"]
    assert not any("SHELL" in line for line in recipe.read(text.encode())[0]), "an OCI image has none"
    *plain, own = scripts(text)
    assert plain == [[*bash, "a\n"], ["/bin/sh", "-c", "b\n"], [*bash, "c\n"]]
    assert own[:2] == ["/bin/sh", "-c"] and own[3:] == ["sh", "#!/usr/bin/env python3\nprint(1)\n"]


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("RUN [[ a == a ]] && \\\n  # a comment\n\n  true", ["/bin/bash", "-c", "[[ a == a ]] &&   true"]),
        ("run --mount=type=cache,target=/x \\\n  echo '[1]'", ["/bin/bash", "-c", "echo '[1]'"]),
        ('RUN ["/bin/dash", "-c", "true"]', ["/bin/dash", "-c", "true"]),
        ("RUN --network=none \\\n <<EOF\nb\nEOF", ["/bin/bash", "-c", "b\n"]),
    ],
)
def test_a_run_is_run_in_the_shell_that_shell_names(run: str, words: list[str]) -> None:
    text = f'FROM debian:12\nSHELL ["/bin/bash", "-c"]\n{run}\n'
    (line,) = (line for line in recipe.read(text.encode())[0] if line.startswith("RUN"))
    assert json.loads(line[line.index("[") :]) == words
    assert all(flag in line for flag in run.split() if flag.startswith("--"))
    lines, _ = recipe.read(text.replace("bash", "sh").encode())
    assert "EOF" in run or lines[2:] == run.splitlines(), "as it was"


@pytest.mark.parametrize(
    ("copy", "script"),
    [
        (
            "COPY <<EOF $TOP/a",
            f'{TO.format(TOP)}mkdir -p "$TOP" && cat >{WRITTEN} <<EOF\nhi\nEOF\n',
        ),
        ("COPY <<'EOF' a", f"{TO.format('a')}mkdir -p . && cat >{WRITTEN} <<'EOF'\nhi\nEOF\n"),
        (
            'COPY <<"E-F" a\nhi\nE-F',
            f'{TO.format("a").replace("EOF", "E-F")}mkdir -p . && cat >{WRITTEN} <<"E-F"\nhi\nE-F\n',
        ),
        ("COPY <<EOF .", "mkdir -p . && cat >./EOF <<EOF\nhi\nEOF\n"),
        ("COPY <<EOF a/..", "mkdir -p a/.. && cat >a/../EOF <<EOF\nhi\nEOF\n"),
        ("COPY <<EOF /etc/", "mkdir -p /etc && cat >/etc/EOF <<EOF\nhi\nEOF\n"),
        (
            "COPY --link --chown=a:b --chmod=700 <<EOF /a",
            f"{TO.format('/a')}mkdir -p / && cat >{WRITTEN} <<EOF\nhi\nEOF\nchown a:b {WRITTEN}\nchmod 700 {WRITTEN}\n",
        ),
        (
            "COPY <<EOF <<B /d/\nhi\nEOF\nyo\nB",
            "mkdir -p /d && cat >/d/EOF <<EOF\nhi\nEOF\nmkdir -p /d && cat >/d/B <<B\nyo\nB\n",
        ),
    ],
)
def test_a_copied_here_document_is_written_where_copy_would_put_it(copy: str, script: str) -> None:
    body = "" if "\n" in copy else "\nhi\nEOF"
    assert scripts(f"FROM debian:12\n{copy}{body}\n") == [["/bin/sh", "-c", f"set -e\n{script}"]]


@pytest.mark.parametrize(
    "target", [".", "./", "in", "in/", "in/.", "{here}/in", "{here}/new/", "link", "new", "x/new"]
)
def test_a_copied_here_document_lies_in_a_directory_by_its_own_name_as_buildkit_places_it(
    target: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    place = target.format(here=tmp_path)
    ((shell, option, script),) = scripts(
        f"FROM debian:12\nCOPY --chmod=640 <<main.py {place}\nprint(1)\nmain.py\n"
    )
    subprocess.run([shell, option, script], cwd=tmp_path, check=True)
    written = tmp_path / place / ("" if target.endswith("new") else "main.py")
    assert written.read_text() == "print(1)\n" and written.stat().st_mode & 0o777 == 0o640


def test_a_copied_here_document_is_written_as_root_and_the_user_stays() -> None:
    lines, _ = recipe.read(b"FROM debian:12\nUSER bob\nCOPY <<EOF /etc/a\nhi\nEOF\nRUN id\n")
    assert lines[2] == "USER root" and lines[3].startswith("RUN [") and lines[4:] == ["USER bob", "RUN id"]


def test_blanks_may_lie_between_a_here_document_and_its_name() -> None:
    text = "FROM x\nRUN cat >/a << 'EOF' && true\nint main;\nEOF\nCOPY --chmod=600 << EOF /d/\nhi\nEOF\nRUN <<\tA\nb\nA\nRUN echo $((1 << 2))\n"
    lines, _ = recipe.read(text.encode())
    assert scripts(text) == [
        ["/bin/sh", "-c", "cat >/a << 'EOF' && true\nint main;\nEOF\n"],
        ["/bin/sh", "-c", "set -e\nmkdir -p /d && cat >/d/EOF << EOF\nhi\nEOF\nchmod 600 /d/EOF\n"],
        ["/bin/sh", "-c", "b\n"],
    ]
    assert len(lines) == len(text.splitlines()) and lines[-1] == "RUN echo $((1 << 2))"


def test_every_instruction_of_docker_is_known_in_any_case_and_another_escape_character_hides_lines() -> None:
    known = "ADD CMD COPY ENTRYPOINT ENV EXPOSE LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER WORKDIR"
    text = "FROM x\n" + "".join(f"{name} a\n{name.title()} a\n" for name in known.split())
    assert len(recipe.read(text.encode())[0]) == 29
    assert recipe.read(b"# escape=`\nFROM x\nRUN a `\n  b\n")[1][0].image == "x"


def test_a_copy_of_documents_and_files_stays_as_it_is() -> None:
    text = "FROM debian:12\nCOPY <<EOF a /d/\nhi\nEOF\nCOPY --exclude=x <<EOF /d\nhi\nEOF\n"
    assert recipe.read(text.encode())[0] == text.splitlines()


TAKING = """\
# a comment \\
FROM debian:12 AS build
COPY --from=tools/uv:1 --chmod=755 /uv /bin/
FROM debian:12
# another
COPY --link --from=build /a /b
COPY --chown=a:b --link /c /d
COPY --from=0 /e /f
copy --from=$NAME /e /f
RUN --mount=type=cache,target=/x \\
  --mount=type=bind,from=other:2,source=/y,target=/z \\
  tool --from=no/image && echo --link
"""


def test_an_image_from_which_files_are_taken_is_a_base_and_renamed() -> None:
    lines, stages = recipe.read(TAKING.encode())
    assert recipe.bases(stages) == ["debian:12", "tools/uv:1", "other:2"]
    written = recipe.written(lines, stages, lambda name: f"local/{name}", []).decode()
    expected = TAKING
    for before, after in (
        ("FROM debian", "FROM local/debian"),
        ("tools/uv", "local/tools/uv"),
        ("from=other", "from=local/other"),
        ("COPY --link", "COPY"),
        ("a:b --link", "a:b"),
    ):
        expected = expected.replace(before, after)
    assert written.replace("  --from", " --from").replace("a:b  ", "a:b ") == expected


def test_a_health_check_is_left_out_and_each_line_keeps_its_number() -> None:
    text = """\
FROM debian:12
HEALTHCHECK --start-interval=1s \\
  # as others do
  CMD curl -f x
healthcheck NONE
RUN echo \\
  HEALTHCHECK
"""
    lines, stages = recipe.read(text.encode())
    written = recipe.written(lines, stages, str, []).decode().splitlines()
    assert written == ["FROM debian:12", "", "", "", "", "RUN echo \\", "  HEALTHCHECK"]


STAGES = """\
FROM debian:12 AS Builder
FROM BUILDER AS Test
COPY --from=Builder --link /a /b
FROM debian:12 AS debian
COPY --from=BUILDER /a /b
COPY --from=tEST --chown=Builder \\
  /Builder /b
RUN --mount=type=bind,from=Builder,target=/Builder --mount=from=Test,target=/x \\
  tool --from=Builder
COPY --from=1 /a /b
FROM debian
FROM scratch
COPY --from=Tools:V1 /a /b
"""


def test_a_stage_has_one_name_however_it_is_written() -> None:
    lines, stages = recipe.read(STAGES.encode())
    assert recipe.bases(stages) == ["debian:12", "Tools:V1"]
    written = recipe.written(lines, stages, lambda name: f"local/{name}", []).decode().splitlines()
    assert [line.replace("  ", " ") for line in written] == [
        "FROM local/debian:12 AS builder",
        "FROM builder AS test",
        "COPY --from=builder /a /b",
        "FROM local/debian:12 AS debian",
        "COPY --from=builder /a /b",
        "COPY --from=test --chown=Builder \\",
        " /Builder /b",
        "RUN --mount=type=bind,from=builder,target=/Builder --mount=from=test,target=/x \\",
        " tool --from=Builder",
        "COPY --from=1 /a /b",
        "FROM debian",
        "FROM scratch",
        "COPY --from=local/Tools:V1 /a /b",
    ]
    assert [each.alias for each in recipe.line_of(stages[:2])] == ["builder", "test"]


VOLUMES = """\
FROM debian:12 AS one
VOLUME /a \\
  "/$B"
RUN make
FROM one
volume ["/c", "/\\"$D\\""]
VOLUME []
RUN make
"""


def test_volumes_become_labels_where_they_stand_so_that_later_lines_can_write_them() -> None:
    lines, stages = recipe.read(VOLUMES.encode())
    assert recipe.written(lines, stages, str, []).decode().splitlines() == [
        "FROM debian:12 AS one",
        'LABEL penstock.volume.1.0=/a penstock.volume.1.1="/$B"',
        "",
        "RUN make",
        "FROM one",
        'LABEL penstock.volume.5.0="/c" penstock.volume.5.1="/\\"$D\\""',
        "",
        "RUN make",
    ]
    assert [each.image for each in recipe.line_of(stages)] == ["debian:12", "one"]


@pytest.mark.parametrize(
    ("begin", "body", "written"),
    [
        ("<<EOF", "$A $(echo ran) `echo ran` $((1+2))", "x $(echo ran) `echo ran` $((1+2))"),
        ("<<EOF", "${B:-$(echo ran)} ${A}", "$(echo ran) x"),
        ("<<EOF", "\\$A \\$(echo ran) \\\\$(echo ran)", "$A $(echo ran) \\$(echo ran)"),
        ("<<-EOF", "\t$A `echo ran`", "x `echo ran`"),
        ("<<'EOF'", "$A $(echo ran) `echo ran`", "$A $(echo ran) `echo ran`"),
    ],
)
def test_a_copied_here_document_expands_variables_and_runs_nothing(
    tmp_path: Path, begin: str, body: str, written: str
) -> None:
    (command,) = scripts(f"FROM debian:12\nCOPY {begin} {tmp_path}/to/a\n{body}\nEOF\n")
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "A": "x"})
    assert (tmp_path / "to/a").read_text() == f"{written}\n"


def test_tabs_before_a_here_document_are_dropped_also_before_the_name_of_its_interpreter() -> None:
    *_, script = scripts(
        "FROM debian:12\nRUN <<-EOF\n\t#!/usr/bin/env python3\n\tif 1:\n\t    print(1)\n\tEOF\n"
    )[0]
    assert script == "#!/usr/bin/env python3\nif 1:\n    print(1)\n"
