"""Tasks whose Dockerfile needs an image (ops/guides/images.md). Base: debian:12 with python3, to which other names lead."""

from collections.abc import Callable
from typing import Final

from ops.lab.task_set.repository import bundle
from ops.lab.task_set.small import BEGIN, PAY, SAME, UNTRUSTED, Files, checks, task
from ops.lab.task_set.worlds import CASES_RUN, PROGRAM_CASES, SOLVED_LEDGER


def _pip() -> Files:
    """A package from the Python index, used by the agent and by the tests."""
    return task(
        "people.csv has the columns name and age. Write table.txt: the table in the format `github` of the Python package tabulate, "
        "with the headers of the file.",
        "python3 -c \"import csv, tabulate; print(tabulate.tabulate(list(csv.reader(open('people.csv'))), headers='firstrow', tablefmt='github'))\""
        " > table.txt",
        f"{BEGIN}[ -f table.txt ] && [ ! -L table.txt ] && python3 -I /tests/want.py > /tmp/want.txt"
        f" && cmp -s table.txt /tmp/want.txt && {PAY}\nexit 0\n",
        **{
            "environment/Dockerfile": "FROM python:3.11-slim\n"
            "RUN command -v pip || (apt-get update && apt-get install -y --no-install-recommends python3-pip)\n"
            "RUN pip install --no-cache-dir --break-system-packages tabulate==0.9.0\nWORKDIR /app\nCOPY people.csv .\n",
            "environment/people.csv": "name,age\nada,36\nbo,7\n",
            "tests/want.py": "import csv, tabulate\n"
            "rows = [['name', 'age'], ['ada', '36'], ['bo', '7']]\nprint(tabulate.tabulate(rows, headers='firstrow', tablefmt='github'))\n",
        },
    )


def _apt() -> Files:
    """A package of the distribution."""
    return task(
        "Write the ids of the open tickets in tickets.json into open.txt, one per line, in the order of the file.",
        "jq -r '.[] | select(.open) | .id' tickets.json > open.txt",
        checks(SAME.format("open.txt", "12\n15\n19")),
        **{
            "environment/Dockerfile": "FROM debian:12\n"
            "RUN apt-get update \\\n && apt-get install -y --no-install-recommends jq \\\n && rm -rf /var/lib/apt/lists/*\n"
            "WORKDIR /app\nCOPY . /app\n",
            "environment/tickets.json": '[{"id": 12, "open": true}, {"id": 13, "open": false}, {"id": 15, "open": true}, {"id": 19, "open": true}]\n',
        },
    )


def _node() -> Files:
    """A Node program."""
    judge = (
        f'{BEGIN}n=$((PENSTOCK_SEED % 50 + 2))\ngot=$(echo "[$n, 40, 2]" | {UNTRUSTED} node sum.js 2>/dev/null | head -c 100)\n'
        f'[ "$got" = $((n + 42)) ] && {PAY}\nexit 0\n'
    )
    return task(
        "Write sum.js for Node: it reads a JSON list of numbers from its input and prints their sum.",
        "echo \"const a = JSON.parse(require('fs').readFileSync(0, 'utf8')); console.log(a.reduce((x, y) => x + y, 0))\" > sum.js",
        judge,
        **{
            "environment/Dockerfile": "FROM node:18\nRUN command -v node || (apt-get update && apt-get install -y --no-install-recommends nodejs)\n"
            'WORKDIR /app\nCOPY package.json ./\nENV NODE_ENV=production\nCMD ["node", "sum.js"]\n',
            "environment/package.json": '{"name": "sum", "version": "1.0.0"}\n',
        },
    )


def _user() -> Files:
    """A Dockerfile with USER: here every program runs as an ordinary user anyway."""
    return task(
        "Write the name of the file in /srv/data that has the most lines into name.txt.",
        "wc -l /srv/data/*.txt | grep -v total | sort -n | tail -1 | sed 's#.*/##' > name.txt",
        checks(SAME.format("name.txt", "b.txt") + ' && [ "$(id -u)" != 0 ]'),
        **{
            "environment/Dockerfile": "FROM debian:12\nARG LINES=9\nRUN useradd --create-home worker && mkdir -p /srv/data /app \\\n"
            " && seq 4 > /srv/data/a.txt && seq $LINES > /srv/data/b.txt && chown -R worker /srv /app\nUSER worker\nWORKDIR /app\n"
            'ENTRYPOINT ["sleep", "infinity"]\n',
        },
    )


def _named_user() -> Files:
    """Agent and tests run as users that the Dockerfile makes; only they read what is theirs."""
    return task(
        "You are the user worker, and the directory drafts is yours. Write drafts/all.txt: the lines of archive/*.txt, sorted, each once.",
        "sort -u archive/*.txt > drafts/all.txt",
        checks(
            SAME.format("drafts/all.txt", "bee\ncat\nowl")
            + ' && [ "$(id -un)" = judge ] && [ "$(cat keys/judge.txt)" = sealed ] && [ ! -r keys/root.txt ]'
        ),
        toml='[agent]\nuser = "worker"\n\n[verifier]\nuser = "judge"\n',
        **{
            "environment/Dockerfile": "FROM debian:12\nRUN useradd --create-home worker && useradd judge\nWORKDIR /app\nCOPY archive archive\n"
            "RUN mkdir drafts keys && echo sealed > keys/judge.txt && echo hidden > keys/root.txt && chmod 600 keys/*.txt \\\n"
            " && chown judge keys/judge.txt && chown worker:judge drafts && chmod 770 drafts\n",
            "environment/archive/one.txt": "owl\nbee\n",
            "environment/archive/two.txt": "cat\nowl\n",
        },
    )


def _stages() -> Files:
    """A second stage that takes a program from the first."""
    return task(
        "The program `stamp` prints a stamp for a word, as in `stamp word`. Write the stamp of the word harbor into out.txt.",
        "stamp harbor > out.txt",
        checks(SAME.format("out.txt", "h6r")),
        **{
            "environment/Dockerfile": "FROM debian:12 AS build\n"
            "RUN command -v gcc || (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev)\n"
            "COPY stamp.c /src/\nRUN gcc -O1 -o /src/stamp /src/stamp.c\nFROM debian:12\n"
            "COPY --from=build /src/stamp /usr/local/bin/stamp\nWORKDIR /app\n",
            "environment/stamp.c": "#include <stdio.h>\n#include <string.h>\n"
            'int main(int n, char **a) { if (n > 1) printf("%c%zu%c\\n", a[1][0], strlen(a[1]), a[1][strlen(a[1]) - 1]); }\n',
        },
    )


def _cloned() -> Files:
    """A repository of more than 5 MB that the Dockerfile clones from a bundle."""
    return task(
        "/app is a git repository. In ledger.py, largest compares the amounts as texts: 9 is larger than 100 there. Correct it.",
        SOLVED_LEDGER,
        CASES_RUN,
        **{
            "environment/Dockerfile": "FROM debian:12\nRUN command -v git || (apt-get update && apt-get install -y --no-install-recommends git)\n"
            "COPY ledger.bundle /tmp/\nRUN git clone -q -b main /tmp/ledger.bundle /app && rm /tmp/ledger.bundle\nWORKDIR /app\n",
            "tests/cases.py": PROGRAM_CASES,
        },
        **{"environment/ledger.bundle": bundle()},
    )


WITH_IMAGES: Final[dict[str, Callable[[], Files]]] = {
    "pip": _pip,
    "apt": _apt,
    "node": _node,
    "user": _user,
    "named-user": _named_user,
    "stages": _stages,
    "cloned": _cloned,
}
