"""Answers in files that many tasks bring: known by their words from the second task on, found as in the first."""

import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tasks import git_objects
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.leak_check import KnownFiles, check_leaks
from orchestrator.tasks.unchanged_files import unchanged_files
from orchestrator.tasks.word_filter import WordFilter, inner_words
from sandboxes.base import File, StoredFile
from tests.unit.tasks.test_git_objects import git

ANSWER = "def total(values):\n    return sum(values) / max(len(values), 1)  # quiet_zebra of nothing\n"
WORDS = st.text("ab_9-/ \n\xe9", max_size=140).map(str.encode)


@given(before=WORDS, text=WORDS, after=WORDS, sizes=st.lists(st.integers(1, 90), max_size=6))
def test_a_filter_never_denies_what_a_text_holds(
    before: bytes, text: bytes, after: bytes, sizes: list[int]
) -> None:
    whole, pieces = before + text + after, []
    for size in [*sizes, 1000]:
        pieces.append(whole[:size])
        whole = whole[size:]
    assert WordFilter(pieces, 100).may_hold(inner_words(text))


def test_a_filter_denies_most_other_texts() -> None:
    source = random.Random(1)
    texts = [b" ".join(b"%06x" % source.randrange(16**6) for _ in range(2000)) for _ in range(20)]
    filters = [WordFilter([text], len(text)) for text in texts]
    tries = [(a, b) for a in range(20) for b in range(20) if a != b]
    wrong = [pair for pair in tries if filters[pair[0]].may_hold(inner_words(texts[pair[1]][:40]))]
    assert len(wrong) <= 2  # the expectation is 380 × 0.2⁴ = 0.7
    assert not inner_words(b"whole") and not inner_words(b"x" * 200), "words at an end may go on"


def bundle(shown: File | StoredFile, answer: str, path: str = "environment/files/a.py") -> Bundle:
    solution = File(f"cat > a.py <<'END'\n{answer}END\n".encode())
    return Bundle(files={path: shown, "solution/solve.sh": solution, "tests/test.sh": File(b"exit 0")})


def leaks(found: Bundle) -> bool:
    try:
        check_leaks(found)
    except ValueError as error:
        assert "holds the whole text of solution/solve.sh" in str(error)
        return True
    return False


@pytest.mark.parametrize(
    ("shown", "solution", "held"),
    [
        # The answer lies in another folder than the file that it mends.
        (
            {"src/calc.py": "broken", "old/calc.py": ANSWER, "src/u.py": "u = 1"},
            {"calc.py": ANSWER, "u.py": "u = 2"},
            "old/calc.py holds the whole text of solution/calc.py",
        ),
        (
            {"calc.py": ANSWER, "README.md": "to be mended"},
            {"calc.py": ANSWER, "README.md": "mended"},
            "calc.py holds the whole text of solution/calc.py",
        ),
        (
            {"tests_data/expected.csv": ANSWER, "main.py": "broken"},
            {"expected.csv": ANSWER, "main.py": "mended"},
            "tests_data/expected.csv holds the whole text of solution/expected.csv",
        ),
        (
            {"src/lib.py": ANSWER, "src/main.py": "broken"},
            {"other.py": ANSWER, "main.py": "mended"},
            "src/lib.py holds the whole text of solution/other.py",
        ),
    ],
)
def test_a_whole_file_of_the_solution_is_a_leak_whatever_else_the_solution_changes(
    shown: dict[str, str], solution: dict[str, str], held: str
) -> None:
    files = {
        **{f"environment/{path}": text for path, text in shown.items()},
        **{f"solution/{path}": text for path, text in solution.items()},
        "solution/solve.sh": "cp /solution/*.* /app/ && echo copied",
    }
    found = Bundle(files={path: File(text.encode()) for path, text in files.items()})
    with pytest.raises(ValueError, match=rf"environment/{held}.*: remove it from one of them"):
        check_leaks(found)


MANIFEST = '{"name": "app", "version": "1.0.0", "dependencies": {"express": "4"}}\n'


@pytest.mark.parametrize(
    ("shown", "solution", "held"),
    [
        ({"files/package.json": MANIFEST}, {"app/package.json": MANIFEST, "app/index.js": ANSWER}, ""),
        ({"web/package.json": MANIFEST}, {"web/package.json": MANIFEST, "web/index.js": ANSWER}, ""),
        (
            {"files/LICENSE": "All rights are reserved by us.\n"},
            {"LICENSE": "All rights are reserved by us.\n"},
            "",
        ),
        # The answer is a manifest that lies elsewhere.
        (
            {"files/package.json": "broken", "files/old/package.json": MANIFEST},
            {"package.json": MANIFEST},
            "files/old/package.json",
        ),
        (
            {"files/app/package.json": "broken", "files/package.json": MANIFEST},
            {"app/package.json": MANIFEST},
            "files/package.json",
        ),
        ({"files/old/package.json": MANIFEST}, {"package.json": MANIFEST}, "files/old/package.json"),
        ({"files/package.json": f"{MANIFEST}more"}, {"package.json": MANIFEST}, "files/package.json"),
        ({"files/index.js": ANSWER}, {"index.js": ANSWER}, "files/index.js"),
    ],
)
def test_only_a_manifest_that_the_solution_leaves_as_it_was_may_be_shown(
    shown: dict[str, str], solution: dict[str, str], held: str
) -> None:
    files = {
        **{f"environment/{path}": text for path, text in shown.items()},
        **{f"solution/{path}": text for path, text in solution.items()},
        "solution/solve.sh": "cp -r /solution/app/. /app/ && echo copied",
    }
    for before in ("", "steps/one/"):
        found = {
            path.replace("environment/files/", "steps/one/workdir/") if before else path: File(text.encode())
            for path, text in files.items()
        }
        bundle = Bundle(
            files={
                f"{before if path.startswith('solution') else ''}{path}": file for path, file in found.items()
            }
        )
        if not held:
            check_leaks(bundle)
            continue
        where = held.replace("files/", "steps/one/workdir/" if before else "environment/files/")
        with pytest.raises(ValueError, match=f"{where} holds the whole text of {before}solution/"):
            check_leaks(bundle)


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt", "requirements-dev.txt", "Pipfile", "Pipfile.lock", "manage.py", "Makefile", "Dockerfile", "README.md", "README",
        "vite.config.ts", "next.config.mjs", "jest.config.cjs", "babel.config.js", "tailwind.config.js", ".eslintrc.json", ".eslintrc", ".prettierrc",
        "build.gradle", "settings.gradle.kts", "App.Tests.csproj", "App.sln", "mix.exs", "pubspec.yaml",
    ],
)  # fmt: skip
def test_a_file_that_each_project_of_a_kind_has_may_be_shown_only_unchanged_at_its_place(name: str) -> None:
    def of(path: str, text: str) -> Bundle:
        shown = {f"environment/{path}": text, f"solution/app/{name}": MANIFEST, "solution/app/a.x": ANSWER}
        return Bundle(files={path: File(text.encode()) for path, text in shown.items()})

    check_leaks(of(f"app/{name}", MANIFEST))
    check_leaks(of(f"files/{name}", MANIFEST))
    for path, text in ((f"old/{name}", MANIFEST), (f"app/{name}", f"{MANIFEST}more")):
        with pytest.raises(ValueError, match="holds the whole text of solution/app/"):
            check_leaks(of(path, text))


@pytest.mark.parametrize("name", ["answer.txt", "config.js", "main.gradle", "expected.README", "conftest.py"])
def test_a_file_of_another_name_may_not_be_shown(name: str) -> None:
    files = {f"environment/app/{name}": MANIFEST, f"solution/app/{name}": MANIFEST}
    with pytest.raises(ValueError, match="holds the whole text of solution/app/"):
        check_leaks(Bundle(files={path: File(text.encode()) for path, text in files.items()}))


PROGRAM = {"Container.kt": ANSWER, "Fragment.kt": f"{ANSWER}more", "Manager.kt": "broken", "Entry.kt": "none"}
INSTALLED = {**PROGRAM, "Manager.kt": "mended"}


SOLVE = """cd /app
cp /solution/*.kt /app/src/com/example
cp -r /solution/com src/ # not the old
"""


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{path}": text for path, text in files.items()}


@pytest.mark.parametrize(
    ("shown", "solution", "held"),
    [
        (under("environment/src/com/example", PROGRAM), under("solution", INSTALLED), ""),
        (under("environment/files/src/com/example", PROGRAM), under("solution/com/example", INSTALLED), ""),
        (under("environment/core", PROGRAM), under("solution/app/core", INSTALLED), ""),
        # The changed file lies in another folder of the same program.
        (
            {"environment/app/Main.kt": ANSWER, "environment/core/Node.kt": "broken"},
            {"solution/app/Main.kt": ANSWER, "solution/core/Node.kt": "mended"},
            "",
        ),
        (under("steps/one/workdir/core", PROGRAM), under("steps/one/solution/core", INSTALLED), ""),
        # A draft of the solution, not at the place of the program.
        *[
            (
                {f"{draft}/solver.py": ANSWER, f"{draft}/util.py": "broken"},
                {"solution/solver.py": ANSWER, "solution/util.py": "mended"},
                f"{draft}/solver.py",
            )
            for draft in (
                "environment/files/.old",
                "environment/old",
                "environment/old/src",
                "environment/solution",
                "environment",
            )
        ],
        (
            {"environment/old/core/solver.py": ANSWER, "environment/old/core/util.py": "broken"},
            {"solution/core/solver.py": ANSWER, "solution/core/util.py": "mended"},
            "environment/old/core/solver.py",
        ),
        (
            {"environment/.old/core/solver.py": ANSWER, "environment/.old/core/util.py": "broken"},
            {"solution/core/solver.py": ANSWER, "solution/core/util.py": "mended"},
            "environment/.old/core/solver.py",
        ),
        # Data, also at its place.
        (
            {"environment/files/data/expected.json": ANSWER, "environment/files/data/config.json": "broken"},
            {"solution/data/expected.json": ANSWER, "solution/data/config.json": "mended"},
            "environment/files/data/expected.json",
        ),
        # Most of the program is new.
        (
            {"environment/src/solver.py": ANSWER, "environment/src/util.py": "broken"},
            {
                "solution/solver.py": ANSWER,
                "solution/util.py": "mended",
                **{f"solution/{n}.py": "new" for n in range(3)},
            },
            "environment/src/solver.py",
        ),
        # Nothing of its kind is changed, or not in its program, or the place is not the only one.
        ({"environment/answer.txt": ANSWER}, {"solution/answer.txt": ANSWER}, "environment/answer.txt"),
        (
            {
                "environment/answer.txt": ANSWER,
                "environment/main.py": "broken",
                "environment/solve.sh": "none",
            },
            {"solution/answer.txt": ANSWER, "solution/main.py": "mended"},
            "environment/answer.txt",
        ),
        (
            {"environment/run.sh": ANSWER, "environment/solve.sh": "none"},
            {"solution/run.sh": ANSWER},
            "environment/run.sh",
        ),
        (
            {"environment/data": ANSWER, "environment/other": "none"},
            {"solution/data": ANSWER, "solution/other": "mended"},
            "environment/data",
        ),
        (
            {"environment/old/calc.py": ANSWER, "environment/src/u.py": "broken"},
            {"solution/calc.py": ANSWER, "solution/u.py": "mended"},
            "environment/old/calc.py",
        ),
        (
            {
                "environment/a/calc.py": ANSWER,
                "environment/b/calc.py": "broken",
                "environment/a/u.py": "broken",
            },
            {"solution/calc.py": ANSWER, "solution/u.py": "mended"},
            "environment/a/calc.py",
        ),
        (
            {"environment/calc.py": ANSWER, "environment/u.py": "same"},
            {"solution/calc.py": ANSWER, "solution/u.py": "same", "solution/new.py": "new"},
            "environment/calc.py",
        ),
    ],
)
def test_a_file_that_a_solution_brings_unchanged_with_changed_ones_of_its_program_may_be_shown(
    shown: dict[str, str], solution: dict[str, str], held: str
) -> None:
    files = {**shown, **solution, "solution/solve.sh": SOLVE}
    found = Bundle(files={path: File(text.encode()) for path, text in files.items()})
    if not held:
        check_leaks(found)
        return
    with pytest.raises(ValueError, match=f"{held} holds the whole text of solution/"):
        check_leaks(found)


def test_many_files_of_one_name_are_compared_with_few_others() -> None:
    """Only the looked up places count: by pairs, this would take minutes."""
    files = {f"environment/files/p{n}/index.js": f"{ANSWER}{n}" for n in range(4000)}
    files |= {f"solution/p{n}/index.js": f"{ANSWER}{n}" for n in range(4000)}
    files |= {"environment/files/p/index.js": "broken", "solution/p/index.js": "mended"}
    found = Bundle(files={path: File(text.encode()) for path, text in files.items()})
    assert len(unchanged_files(found)) == 4000


def test_a_script_of_one_long_word_is_read_once() -> None:
    """From each of its characters to its end, this would take minutes."""
    files = {"environment/src/a.py": "1", "solution/src/a.py": "1", "solution/solve.sh": "a" * 65_000}
    assert unchanged_files(Bundle(files={path: File(text.encode()) for path, text in files.items()})) == set()


MANY = 700


MENDED = "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-total = 1\n+total = sum(values)\n"
APPLIED = "RUN git apply -R /tmp/p.diff && rm /tmp/p.diff\n"
IMAGE = "FROM debian:12\nWORKDIR /srv/w\n"


def of_image(dockerfile: str, more: dict[str, str], links: dict[str, str]) -> Bundle:
    files = {"Dockerfile": dockerfile, "p.diff": MENDED, **more}
    return Bundle(
        files={
            **{f"environment/{path}": File(text.encode()) for path, text in files.items()},
            "solution/p.diff": File(MENDED.encode()),
            "solution/solve.sh": File(b"git apply /solution/p.diff && echo applied"),
        },
        links={f"environment/{path}": target for path, target in links.items()},
    )


@pytest.mark.parametrize(
    ("dockerfile", "more"),
    [
        (f"FROM debian:12\nCOPY p.diff /tmp/p.diff\n{APPLIED}", {}),
        (f"{IMAGE}COPY p.diff /tmp/\n{APPLIED}", {}),
        (f"FROM debian:12\nWORKDIR /tmp/of\nCOPY . .\n{APPLIED}WORKDIR /srv/w\n", {}),
        (f"{IMAGE}COPY p.diff /logs/p.diff\nCOPY p.diff /tests/\nRUN true\n", {}),
        (
            f"FROM debian:12 AS b\nCOPY p.diff /x/\nRUN wc /x/p.diff >/n\n{IMAGE}COPY --from=b /n /srv/w/n\n",
            {},
        ),
        (f"{IMAGE}RUN --mount=type=bind,source=p.diff,target=/x/p wc /x/p\n", {}),
        # Of a stage that has the file, another one is taken; and what a program moves is another one.
        (
            f"FROM debian:12 AS b\nCOPY . /x\nRUN cd /x && cp n m && make\n{IMAGE}COPY --from=b /x/n /srv/w/n\n",
            {},
        ),
        (f"FROM debian:12 AS p.diff\nRUN true\n{IMAGE}COPY --from=other:1 /p.diff /srv/w/\n", {}),
        (
            f"{IMAGE}COPY p.diff /tmp/\nRUN apt-get install -y git && cp n /tmp/ && git apply -R /tmp/p.diff\n",
            {},
        ),
        (
            f"FROM debian:12 AS b\nCOPY p.diff /x/\n{IMAGE}COPY --from=b /x /tmp/x\nRUN git apply -R /tmp/x/p.diff\n",
            {},
        ),
        (f"{IMAGE}COPY Makefile .\nRUN true\n", {"Makefile": "all:"}),
        # Names with signs that stand for others elsewhere.
        (f"{IMAGE}COPY app/[[]id]/a.ts {{a,b}} .\nRUN true\n", {"app/[id]/a.ts": "1", "{a,b}": "2"}),
        (f"{IMAGE}COPY [^p].* [x-z].diff .\nRUN true\n", {"a.b": "1"}),
        (f"FROM debian:12 AS b\nCOPY . /x/\n{IMAGE}COPY --from=b /x/{{out}} /srv/w/\nRUN true\n", {}),
        (
            f"{IMAGE}COPY p.diff /tmp/a/\nRUN cp '/tmp/b/n (1)' /tmp/c,d/e[1] . && git apply -R /tmp/a/p.diff\n",
            {},
        ),
        (f"{IMAGE}COPY . .\nRUN true\n", {".dockerignore": "# ours\n*.diff\n"}),
        (f"{IMAGE}COPY . .\nRUN true\n", {"Dockerfile.dockerignore": "*\n!Makefile\n"}),
        (f"{IMAGE}COPY . .\nRUN true\n", {".dockerignore": "**/p.*\n[a\n"}),
    ],
)
def test_a_file_of_the_builds_folder_that_no_image_keeps_for_the_agent_is_not_a_leak(
    dockerfile: str, more: dict[str, str]
) -> None:
    check_leaks(of_image(dockerfile, more, {}))


COPIED = f"{IMAGE}COPY . .\nRUN true\n"


@pytest.mark.parametrize(
    ("dockerfile", "more", "links", "table"),
    [
        (COPIED, {}, {}, {}),
        (COPIED, {".dockerignore": "*.diff\n!p.diff\n"}, {}, {}),
        (COPIED, {".dockerignore": "*.diff\n![p].diff\n"}, {}, {}),
        (COPIED, {".dockerignore": "a/**/p.diff\n*/p.diff\n"}, {}, {}),
        (COPIED, {".dockerignore": "*.diff\n", "Dockerfile.dockerignore": "a\n"}, {}, {}),
        (COPIED, {".dockerignore": "*.diff\n", ".containerignore": "a\n"}, {}, {}),
        (COPIED, {".dockerignore": "*.diff\n", "a": "b\n"}, {"Dockerfile.dockerignore": "a"}, {}),
        # The place is the work directory, or no image is built at all.
        (f"FROM debian:12\nWORKDIR /tmp\nCOPY p.diff .\n{APPLIED}", {}, {}, {}),
        (f"FROM debian:12\nCOPY p.diff /tmp/\n{APPLIED}", {}, {}, {"workdir": "/tmp"}),
        ("FROM debian:12\nCOPY p.diff /tmp/\n", {}, {}, {}),
        # The last stage begins with the one that copies the file.
        (f"FROM debian:12 AS b\nCOPY p.diff /x/\nRUN true\nFROM b\n{APPLIED}", {}, {}, {}),
        (f"{IMAGE}ARG OF=p\nCOPY $OF.diff .\nRUN true\n", {}, {}, {}),
        # From another stage, by name or number, also through a third one, or after a program that moves it there.
        *(
            (f"FROM debian:12 AS B\nCOPY {taken}\n{more}{IMAGE}{last}\nRUN true\n", {}, {}, {})
            for taken, more, last in (
                ("p.diff /x/", "", "COPY --from=b /x /srv/w"),
                (". /x", "", "COPY --from=0 /x/p.* ."),
                ("p.diff /x/q", "", "ADD --chown=1:1 --from=B /x/q ."),
                ("p.diff .", "", "COPY --from=b /x ."),
                ("p.diff /x/", "ARG OF=b\n", "COPY --from=$OF /x ."),
                ("p.diff /x/", "FROM debian:12 AS c\nCOPY --from=b /x /y\n", "COPY --from=c /y ."),
                ("p.diff /x/", "FROM b AS c\n", "COPY --from=1 /x ."),
                ("p.diff /x/", "RUN mkdir /y && cp -r /x /y\n", "COPY --from=b /y ."),
                ("p.diff /x/", "", "RUN --mount=from=b,source=/x,target=/m cp /m/p.diff ."),
                ("p.diff /x/", "", "COPY --from=b /x /tmp/x\nRUN mv /tmp/x/p.diff ."),
            )
        ),
        (f"FROM debian:12 AS b\nONBUILD COPY p.diff /x/\nRUN true\nFROM b\n{APPLIED}", {}, {}, {}),
        # A program of RUN brings it out of a place that the image does not keep.
        *(
            (f"{IMAGE}COPY p.diff /tmp/a/\nRUN {command}\n", {}, {}, {})
            for command in (
                "cp /tmp/a/p.diff .",
                "cp -r /tmp/a .",
                "cd /tmp && mv a/* /srv/w",
                "find /tmp/a -name '*.diff' -exec cp {} /srv/w \\;",
                "mkdir -p /y; install -m 644 /tmp/a/p.diff /y/",
                '["ln", "/tmp/a/p.diff", "/srv/w/p"]',
                "<<END\ncp /tmp/a/p.diff .\nEND",
            )
        ),
        (f"{IMAGE}RUN --mount=type=bind,target=/m cp -r /m/. /srv/w\n", {}, {}, {}),
        (f"{IMAGE}RUN --mount=type=bind,source=p.diff,target=/m cp /m /srv/w/\n", {}, {}, {}),
        (f"{IMAGE}COPY a .\nRUN true\n", {}, {"a": "p.diff"}, {}),
        # The root of a link is that of the build's folder.
        (f"{IMAGE}COPY a .\nRUN true\n", {"app/q": MENDED, "p.diff": "other"}, {"a": "/app/q"}, {}),
        (f"{IMAGE}COPY a/q .\nRUN true\n", {"app/q": MENDED, "p.diff": "other"}, {"a": "/app/../app"}, {}),
        # Names with signs that stand for others elsewhere.
        *(
            (f"{IMAGE}{lines}\n", {name: MENDED, "p.diff": "other"}, {}, {})
            for name, lines in (
                ("p[1].diff", "COPY p[[]1].diff .\nRUN true"),
                ("{p}.diff", "COPY {p}.diff .\nRUN true"),
                ("ab.diff", "COPY [^!]b.diff .\nRUN true"),
                ("d/e/p.diff", "COPY **/p.diff .\nRUN true"),
                ("p[1].diff", "RUN --mount=type=bind,source=p[1].diff,target=/m cp /m /srv/w/"),
                ("p[1].diff", "COPY . /tmp/a/\nRUN cp '/tmp/a/p[1].diff' ."),
                ("p(1).diff", "COPY . /tmp/a/\nRUN cp '/tmp/a/p(1).diff' ."),
                ("p,1.diff", "COPY . /tmp/a/\nRUN cp /tmp/a/p,1.diff ."),
                ("{p}.diff", "COPY . /tmp/a/\nRUN cp /tmp/a/{p}.diff ."),
                ("p 1.diff", 'COPY . /tmp/a/\nRUN cp "/tmp/a/p 1.diff" .'),
                ("p 1.diff", 'COPY . /tmp/a/\nRUN ["cp", "/tmp/a/p 1.diff", "."]'),
                ("p,1.diff", 'COPY . /tmp/a/\nRUN ["cp", "/tmp/a/p,1.diff", "."]'),
                ("q.diff", 'COPY . /tmp/a/\nRUN ["sh", "-c", "cd /tmp/a && cp q.diff /srv/w/"]'),
                ("q.diff", "COPY . /tmp/a/\nRUN cp /tmp/a/{q,r}.diff ."),
                ("q.diff", "COPY . /tmp/a/\nRUN cp $(ls -d /tmp/a/q.diff) ."),
            )
        ),
        # Another image may have the files.
        (f"{IMAGE}RUN true\n", {"docker-compose.yaml": "services: {db: {build: .}}"}, {}, {}),
        (f"{IMAGE}RUN true\n", {}, {}, {"docker_image": "debian:12"}),
        (f"{IMAGE}COPY <<END /srv/w/p\n{MENDED}END\nRUN true\n", {"p.diff": "other"}, {}, {}),
    ],
)
def test_a_file_that_an_image_may_keep_for_the_agent_is_a_leak(
    dockerfile: str, more: dict[str, str], links: dict[str, str], table: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"holds the whole text of solution/p\.diff"):
        check_leaks(of_image(dockerfile, more, links), table)


def of_many_files(shown: dict[str, bytes], solution: list[bytes]) -> Bundle:
    files = {f"environment/files/{path}": File(data) for path, data in shown.items()}
    files |= {f"solution/{number:04}.txt": File(data) for number, data in enumerate(solution)}
    return Bundle(files=files | {"solution/solve.sh": File(b"cp -r /solution/. /app/ && echo copied")})


@pytest.mark.parametrize(
    "place", [0, 1, (1 << 20) - 40, (3 << 20) + 5], ids=["0", "1", "over a border", "late"]
)
def test_one_of_many_files_of_a_solution_is_found_wherever_it_stands(place: int) -> None:
    answers = [b"row %d: " % number + b"quiet zebra %d" % (number * number) for number in range(MANY)]
    body = random.Random(4).randbytes(4 << 20)
    check_leaks(of_many_files({"a.bin": body}, answers))
    body = body[:place] + answers[321] + body[place:]
    with pytest.raises(ValueError, match=r"files/a.bin holds the whole text of solution/0321.txt"):
        check_leaks(of_many_files({"a.bin": body}, answers))


def test_many_files_with_many_of_a_solution_take_the_time_of_their_bytes() -> None:
    shown = {f"{number:04}.txt": b"line %d of a file\n" % number * 60 for number in range(MANY)}
    alike = [b"# the same header in each\n" * 40 + b"end %06d" % number for number in range(MANY)]

    def seconds(count: int) -> float:
        found = of_many_files(dict(list(shown.items())[:count]), alike[:count])
        began = time.thread_time()
        check_leaks(found)
        return time.thread_time() - began

    few, many = min(seconds(MANY // 10) for _ in range(3)), min(seconds(MANY) for _ in range(3))
    print(f"{MANY // 10} files {few:.3f} s, {MANY} files {many:.3f} s")
    assert many <= 40 * few, "a search for each in each takes 100 times as long"


@pytest.mark.parametrize("stored", [False, True])
def test_the_fourth_task_with_a_file_is_refused_if_the_file_holds_its_answer(
    stored: bool, tmp_path: Path
) -> None:
    answers = [ANSWER.replace("zebra", name) for name in ("zebra", "otter", "heron", "finch")]
    body = ("# one of many lines\n" * 200 + f"cat > a.py <<'END'\n{answers[3]}END\n").encode()
    (tmp_path / "a").write_bytes(body)
    of_blob = StoredFile(source=tmp_path / "a", size=len(body), content=f"{stored}-fourth")
    shown = of_blob if stored else File(body)
    assert [leaks(bundle(shown, answer)) for answer in answers] == [False, False, False, True]
    assert [leaks(bundle(shown, answer)) for answer in answers] == [False, False, False, True]


def test_the_history_of_a_repository_that_many_tasks_bring_is_searched_for_the_answer_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    source = random.Random(3)
    for answer in (ANSWER, "nothing\n"):
        (tmp_path / "solve.sh").write_text(f"cat > a.py <<'END'\n{answer}END\n")
        (tmp_path / "other").write_bytes(source.randbytes(4000))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", answer)
    git(tmp_path, "gc", "-q")
    [pack] = (tmp_path / ".git/objects/pack").glob("*.pack")
    shown, path = File(pack.read_bytes()), "environment/files/.git/objects/pack/a.pack"
    others = [ANSWER.replace("zebra", name) for name in ("otter", "heron", "finch")]
    assert [leaks(bundle(shown, answer, path)) for answer in (*others, ANSWER)] == [False, False, False, True]
    unpacked = git_objects.packed
    counted: list[int] = []

    def counting(data: bytes, most_bytes: int = git_objects.MAX_BYTES) -> object:
        counted.append(len(data))
        return unpacked(data, most_bytes)

    monkeypatch.setattr(git_objects, "packed", counting)
    assert not leaks(bundle(shown, others[0], path)) and not counted, "a known pack is not unpacked again"
    assert leaks(bundle(shown, ANSWER, path)) and counted


def test_a_damaged_pack_is_named_each_time() -> None:
    shown = File(b"PACK\0\0\0\x02\0\0\0\x09" + bytes(4000))
    for _ in range(4):
        with pytest.raises(ValueError, match="cannot be searched for the answer"):
            check_leaks(bundle(shown, ANSWER, "environment/files/.git/objects/pack/b.pack"))


def test_what_is_known_stays_within_its_memory(tmp_path: Path) -> None:
    known = KnownFiles(50_000)
    files = [File(bytes([number % 256, number // 256]) * 8000) for number in range(300)]
    assert [known.of(file) for file in files[:3] for _ in range(2)][::2] == [None] * 3
    for file in files * 2:
        known.of(file)
    first = known.of(files[-1])
    assert first is not None and known.of(files[-1]) is first, "the latest ones stay"
    assert 0 < known.bytes <= 50_000
    assert known.of(File(b"small")) is None
    path = tmp_path / "nameless"
    path.write_bytes(bytes(9000))
    assert [known.of(StoredFile(source=path, size=9000)) for _ in range(3)] == [None] * 3
