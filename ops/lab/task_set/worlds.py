"""Tasks whose environment is more than a few files; none needs an image. They use what Debian's system brings: git, gcc, make, Python."""

import hashlib
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ops.lab.task_set.repository import LOST, repository
from ops.lab.task_set.small import BEGIN, PAY, SAME, UNTRUSTED, Files, checks, env, task

PROGRAM_CASES: Final = """\
import subprocess, sys
lines = ["ada 9", "bob 100", "eve 23"]
source = f"import sys; sys.path.insert(0, '/app'); import ledger; print(ledger.largest({lines}), ledger.total({lines}))"
run = ["python3", "-I", sys.argv[1], "5", "python3", "-c", source]
out = subprocess.run(run, capture_output=True, text=True).stdout
sys.exit(out.split() != ["bob", "132"])
"""
CASES_RUN: Final = f'{BEGIN}if python3 -I /tests/cases.py "$PENSTOCK_UNTRUSTED"; then {PAY}; fi\nexit 0\n'
COMPARES: Final = f"{BEGIN}if python3 -I /tests/compare.py; then {PAY}; fi\nexit 0\n"
SOLVED_LEDGER: Final = (
    "sed -i 's/return max(lines, key=lambda line: line.split()\\[1\\])/"
    "return max(lines, key=lambda line: int(line.split()[1]))/' ledger.py\n"
)


def _repository() -> Files:
    """A bug in a repository of more than 5 MB."""
    return task(
        "This is a git repository. In ledger.py, largest takes 9 for more than 100, because it compares texts. Correct it, and commit the change.",
        f"{SOLVED_LEDGER}git -c user.name=a -c user.email=a@example.org commit -qam 'Compare numbers'\n",
        CASES_RUN,
        **{"tests/cases.py": PROGRAM_CASES},
        **{env(path): body for path, body in repository().items()},
    )


def _history() -> Files:
    """The answer lies in the history, where the agent is to find it."""
    value = LOST.partition(" = ")[2]
    return task(
        "This is a git repository. An early version of service.ini set retry_budget. Write the value that it had into value.txt.",
        "git log -p -S retry_budget -- service.ini | sed -n 's/^+retry_budget = //p' | head -1 > value.txt",
        checks(SAME.format("value.txt", value)),
        **{env(path): body for path, body in repository().items()},
    )


def _database() -> Files:
    """A database file."""
    rng, totals = random.Random(5), dict[str, int]()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("create table customers (id integer primary key, city text)")
            connection.execute("create table orders (customer integer, cents integer, state text)")
            cities = [rng.choice(["oslo", "rome", "lima", "kyiv"]) for _ in range(200)]
            connection.executemany("insert into customers values (?, ?)", enumerate(cities))
            for _ in range(4000):
                customer, cents, state = rng.randrange(200), rng.randrange(9000), rng.choice(["paid", "open"])
                connection.execute("insert into orders values (?, ?, ?)", (customer, cents, state))
                if state == "paid":
                    totals[cities[customer]] = totals.get(cities[customer], 0) + cents
        connection.close()
        body = path.read_bytes()
    query = "select city, sum(cents) from orders join customers on customer = id where state = 'paid' group by city"
    return task(
        "shop.db is an SQLite database. Write paid.json: a JSON object with the sum of the cents of all paid orders of each city.",
        f"python3 -c \"import json, sqlite3; json.dump(dict(sqlite3.connect('shop.db').execute(\\\"{query}\\\")), open('paid.json', 'w'))\"",
        COMPARES,
        **{
            "tests/want.json": json.dumps(totals),
            "tests/compare.py": "import json, sys\ntry:\n    got = json.load(open('paid.json'))\nexcept (OSError, ValueError):\n"
            "    sys.exit(1)\nsys.exit(got != json.load(open('/tests/want.json')))\n",
        },
        **{env("shop.db"): body},
    )


SERVICE: Final = '''\
"""A queue of jobs: GET /open lists the open ones, POST /done/N finishes job N. The receipt of a finished job is shown by GET /receipts."""
import hashlib, http.server, json

KEY = "%s"
jobs, receipts = set(range(1, 21)), {}


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer(sorted(jobs) if self.path == "/open" else receipts)

    def do_POST(self):
        number = int(self.path.rpartition("/")[2])
        if number not in jobs:
            return self.answer("no such job", 404)
        jobs.discard(number)
        receipts[str(number)] = hashlib.sha256(f"{KEY}{number}".encode()).hexdigest()[:8]
        self.answer("done")

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()
'''


def _service() -> Files:
    """A service that the health check starts; its state reaches the tests by a collect hook."""
    key = "key of the queue"
    want = {str(n): hashlib.sha256(f"{key}{n}".encode()).hexdigest()[:8] for n in range(2, 21, 2)}
    fetch = "python3 -c \\\"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/{}', timeout=3).read().decode())\\\""
    start = "[ -e /tmp/started ] || { touch /tmp/started; setsid python3 /app/queue_service.py > /dev/null 2>&1 & }; sleep 0.1; "
    post = "import urllib.request as u\n"
    post += "for n in range(2, 21, 2):\n    u.urlopen(u.Request(f'http://127.0.0.1:8123/done/{n}', data=b'', method='POST'))\n"
    return task(
        "A service runs at http://127.0.0.1:8123 (its source: queue_service.py). Finish all jobs with an even number, and no others.",
        f"python3 - <<'END'\n{post}END\n",
        COMPARES,
        toml="[environment.healthcheck]\n"
        f'command = "{start}{fetch.format("open")} > /dev/null"\ninterval_sec = 0.2\nretries = 50\n'
        f'[[verifier.collect]]\ncommand = "{fetch.format("receipts")} > receipts.json"\n',
        **{
            env("queue_service.py"): SERVICE % key,
            "tests/want.json": json.dumps(want),
            "tests/compare.py": "import json, sys\ntry:\n    got = json.load(open('receipts.json'))\nexcept (OSError, ValueError):\n"
            "    sys.exit(1)\nsys.exit(got != json.load(open('/tests/want.json')))\n",
        },
    )


MCP_SERVER: Final = '''\
"""An MCP server on standard input and output: the tool `extension` of a telephone directory."""
import csv, json, sys

names = {row[0]: row[1] for row in csv.reader(open("/app/mcp/extensions.csv"))}
TOOL = {"name": "extension", "description": "The extension of a person.",
        "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), None
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "directory", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        text = names.get(message["params"]["arguments"]["name"], "unknown")
        result = {"content": [{"type": "text", "text": text}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''


def _mcp() -> Files:
    """An MCP server in the agent's sandbox."""
    rng = random.Random(11)
    people = [
        f"{first} {last}"
        for first in ("Ada", "Bo", "Cy", "Dee")
        for last in ("Brandt", "Lund", "Moss", "Vik")
    ]
    table = {name: str(rng.randrange(1000, 10_000)) for name in people}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "extension", "arguments": {"name": "Dee Moss"}},
    }
    return task(
        "The MCP server `directory` has the tool extension. Write the extension of Dee Moss into out.txt.",
        f"echo '{json.dumps(call)}' | python3 /app/mcp/server.py | sed 's/.*\"text\": \"\\([0-9]*\\)\".*/\\1/' > out.txt",
        checks(SAME.format("out.txt", table["Dee Moss"])),
        toml='[[environment.mcp_servers]]\nname = "directory"\ntransport = "stdio"\ncommand = "python3"\nargs = ["/app/mcp/server.py"]\n',
        **{
            env("mcp/server.py"): MCP_SERVER,
            env("mcp/extensions.csv"): "".join(f"{name},{number}\n" for name, number in table.items()),
        },
    )


SAMPLES_MB: Final = 24


def _binary() -> Files:
    """Tens of megabytes of binary data."""
    data = random.Random(3).randbytes(SAMPLES_MB << 20)
    count = sum(data[at + 1] == 255 and data[at] >= 250 for at in range(0, len(data), 2))
    return task(
        "samples.bin holds unsigned 16-bit numbers, little-endian. How many of them are at least 65530? Write the number into count.txt.",
        "python3 -c \"import array; a = array.array('H', open('samples.bin', 'rb').read()); print(sum(map((65529).__lt__, a)))\" > count.txt",
        checks(SAME.format("count.txt", count)),
        **{env("samples.bin"): data},
    )


def _named() -> Files:
    """Several named numbers as the reward."""
    lines = [f"{'spam' if n % 3 == 0 else 'fine'} message number {n * 37 % 101}\n" for n in range(30)]
    judge = """\
import json
want = [line.split()[0] == "spam" for line in open("/tests/messages.txt")]
try:
    got = [line.strip() for line in open("labels.txt").read(4000).splitlines()]
except (OSError, ValueError):
    got = []
known = [label in ("yes", "no") for label in got][: len(want)]
right = [label == ("yes" if spam else "no") for label, spam in zip(got, want)]
exact = len(got) == len(want) and all(right)
json.dump({"accuracy": float(exact), "lines": float(sum(known)), "right": float(sum(right))}, open("/logs/verifier/reward.json", "w"))
"""
    return task(
        "Write labels.txt: for each line of messages.txt `yes` if it begins with spam, else `no`, one per line.",
        "sed 's/^spam .*/yes/; t; s/.*/no/' messages.txt > labels.txt",
        "mkdir -p /logs/verifier; echo '{\"accuracy\": 0.0}' > /logs/verifier/reward.json\npython3 -I /tests/judge.py\nexit 0\n",
        toml='[verifier]\nperformance = "accuracy"\n',
        **{
            env("messages.txt"): "".join(lines),
            "tests/messages.txt": "".join(lines),
            "tests/judge.py": judge,
        },
    )


COUNT_C: Final = """\
#include <stdio.h>
#include <ctype.h>
int main(void) {
    int c, words = 0, in_word = 0, lines = 0;
    while ((c = getchar()) != EOF) {
        if (c == '\\n') { lines += words >= 3; words = in_word = 0; }
        else if (isspace(c)) in_word = 0;
        else if (!in_word) { in_word = 1; words++; }
    }
    printf("%d\\n", lines);
}
"""
C_TEXT: Final = "It reads lines from its input and prints how many of them have at least three words."


def _runs(program: str) -> str:
    """Tests of the program with lines of this verification's own."""
    lines = 'for i in $(seq $n); do echo "one two three $i"; echo "two $i"; done'
    return (
        f"n=$((PENSTOCK_SEED % 7 + 4))\n"
        f'got=$({{ {lines}; }} | {UNTRUSTED} ./{program} 2>/dev/null | head -c 100)\n[ "$got" = $n ] && {PAY}\nexit 0\n'
    )


def _compiled() -> Files:
    """The test compiles the agent's C program."""
    build = f"rm -rf built; [ -f count3.c ] || exit 0\n{UNTRUSTED}0 gcc -O1 -o built count3.c > /dev/null 2>&1 || exit 0\n"
    return task(
        f"Write the C program count3.c. {C_TEXT} The tests compile it with gcc.",
        f"cat > count3.c <<'END'\n{COUNT_C}END\n",
        f"{BEGIN}{build}{_runs('built')}",
    )


def _collected() -> Files:
    """A collect hook builds the agent's program in its sandbox."""
    return task(
        f"Write count3.c and leave the Makefile as it is: `make` builds the program count3. {C_TEXT}",
        f"cat > count3.c <<'END'\n{COUNT_C}END\n",
        f"{BEGIN}[ -f count3 ] || exit 0\n{_runs('count3')}",
        toml='[[verifier.collect]]\ncommand = "make -s"\ntimeout_sec = 30\n',
        **{env("Makefile"): "count3: count3.c\n\tgcc -O1 -o count3 count3.c\n"},
    )


def _separate() -> Files:
    """Tests in an environment of their own, which get the declared artifacts alone."""
    return task(
        "Write the squares of the numbers in numbers.txt into /tmp/out/squares.txt, one per line.",
        "mkdir -p /tmp/out; while read n; do echo $((n * n)); done < numbers.txt > /tmp/out/squares.txt",
        f'{BEGIN}out=/tmp/out/squares.txt\n[ -f $out ] && [ ! -L $out ] && [ "$(head -c 1000 $out)" = "$EXPECTED" ] && {PAY}\nexit 0\n',
        toml='artifacts = ["/tmp/out"]\n[verifier]\nenvironment_mode = "separate"\n'
        "[verifier.environment]\nmemory_mb = 512\n"
        '[verifier.environment.env]\nEXPECTED = "9\\n49\\n144\\n1"\n',
        **{env("numbers.txt"): "3\n7\n12\n1\n"},
    )


def _many_files() -> Files:
    """A change through 240 modules."""
    modules = {
        f"shop/part{n:03}.py": f"from shop.old import fetch\n\n\ndef run_{n}():\n    return fetch({n})\n"
        for n in range(240)
    }
    judge = """\
import pathlib, sys
for n in range(240):
    path = pathlib.Path(f"shop/part{n:03}.py")
    want = f"from shop.new import load\\n\\n\\ndef run_{n}():\\n    return load({n})\\n"
    if path.is_symlink() or not path.is_file() or path.open().read(1000) != want:
        sys.exit(1)
"""
    return task(
        "In all modules shop/part*.py, import load from shop.new in place of fetch from shop.old, and call load in place of fetch.",
        "sed -i 's/from shop.old import fetch/from shop.new import load/; s/fetch(/load(/' shop/part*.py",
        COMPARES,
        **{"tests/compare.py": judge, env("shop/old.py"): "def fetch(n):\n    return n\n"},
        **{env("shop/new.py"): "def load(n):\n    return n\n"},
        **{env(path): body for path, body in modules.items()},
    )


WORLDS: Final[dict[str, Callable[[], Files]]] = {
    "repository": _repository,
    "history": _history,
    "database": _database,
    "service": _service,
    "mcp": _mcp,
    "binary": _binary,
    "named": _named,
    "compiled": _compiled,
    "collected": _collected,
    "separate": _separate,
    "many-files": _many_files,
}
