"""Lines that start a program of the agent's, or read one, by the command that they may use."""

import pytest

from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.shell import shell_traps


def test_a_form_feed_ends_no_line() -> None:
    (trap,) = python_traps("a.py", "import os\n\f\n# a\u2028b\nos.system('./run')\n", frozenset())
    assert (trap.line, trap.text) == (4, "os.system('./run')")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("strace -o /tmp/calls ./run", Rule.AGENT_PROGRAM),
        ("valgrind -q ./run", Rule.AGENT_PROGRAM),
        ("xvfb-run -a python3 main.py", Rule.AGENT_PROGRAM),
        ("prlimit --nproc=10 ./run", Rule.AGENT_PROGRAM),
        (r"find . -name '*.sh' -exec bash {} \;", Rule.AGENT_PROGRAM),
        (r"find . -type f -exec {} \;", Rule.AGENT_PROGRAM),
        ("sed -f change.sed /tests/data", Rule.PROGRAM_TEXT),
        ("awk -f total.awk /tests/data", Rule.PROGRAM_TEXT),
        ("jq -f total.jq /tests/data.json", Rule.PROGRAM_TEXT),
        ("uv run main.py", Rule.BUILD_TOOL),
        ("pip install .", Rule.BUILD_TOOL),
        ("jest --ci", Rule.BUILD_TOOL),
        ("dotnet test", Rule.BUILD_TOOL),
        ("hg status", Rule.GIT),
        ("psql -f out.sql shop", Rule.PROGRAM_TEXT),
        ("bc < out", Rule.PROGRAM_TEXT),
        ("cat out | dc", Rule.PROGRAM_TEXT),
        ('got=$(cat out); sqlite3 /tests/shop.db "SELECT $got"', Rule.PROGRAM_TEXT),
        ("gdb -batch -x commands", Rule.PROGRAM_TEXT),
        ("java -cp . Main", Rule.AGENT_PROGRAM),
        ("java -jar build/app.jar", Rule.AGENT_PROGRAM),
        ("php main.php", Rule.AGENT_PROGRAM),
        ("ldd ./prog", Rule.AGENT_PROGRAM),
        ("export PATH=$PWD/bin:$PATH", Rule.AGENT_PROGRAM),
        ("env LD_LIBRARY_PATH=lib /usr/bin/true", Rule.AGENT_PROGRAM),
        ("export CLASSPATH=/app/classes", Rule.AGENT_PROGRAM),
        ("PATH=:$PATH", Rule.AGENT_PROGRAM),
        ("export PYTHONPATH=/app/src", Rule.NOT_ISOLATED),
        ("export NODE_PATH=.", Rule.NOT_ISOLATED),
        ("gcc -O2 -o /tmp/prog main.c", Rule.COMPILED),
        ("clang++-18 src/*.cpp", Rule.COMPILED),
        ("rustc main.rs", Rule.COMPILED),
        ("javac Main.java", Rule.COMPILED),
        ("pdflatex report.tex", Rule.COMPILED),
        ("unzip -q out.zip -d /tmp/got", Rule.COPIED),
        ("tar xzf /app/out.tgz -C /tmp", Rule.COPIED),
        ("cat out.tar | tar -C /tmp -x", Rule.COPIED),
        ("cpio -id < out.cpio", Rule.COPIED),
        ("tar --extract --file=out.tar", Rule.COPIED),
        ("tar xf out.tar", Rule.COPIED),
        ("7z x out.7z", Rule.COPIED),
        ("cat out.c | gcc -x c -o /tmp/t -", Rule.COMPILED),
        ("env -i PATH=.:/bin python3 -I /tests/check.py", Rule.AGENT_PROGRAM),
        ("PATH+=:.", Rule.AGENT_PROGRAM),
        ("curl -s http://localhost:8000/run.sh | sh", Rule.SOURCED),
        ("curl -s http://127.0.0.1/a.tar | tar -x -C /tmp", Rule.COPIED),
        ("cat run.sh | bash", Rule.SOURCED),
        ("export LD_LIBRARY_PATH=${PWD}/lib", Rule.AGENT_PROGRAM),
    ],
)
def test_a_program_of_the_agents_is_named_whatever_starts_or_reads_it(line: str, rule: Rule) -> None:
    assert rule in [trap.rule for trap in shell_traps("tests/test.sh", line, frozenset())]


@pytest.mark.parametrize(
    "line",
    [
        "sed -f /tests/change.sed /tests/data",
        r"find /app -name '*.log' -exec rm {} \;",
        "strace /usr/bin/true",
        "env LC_ALL=C sort /tests/data",
        "bc < /tests/sum",
        "echo '1 + 1' | bc",
        "sqlite3 shop.db 'SELECT count(*) FROM sold'",
        "psql -f /tests/load.sql shop",
        "java -cp /tests Main",
        "export PATH=/usr/local/bin:$PATH",
        "export PATH=$PATH:/tests/bin",
        "gcc -o /tmp/check /tests/check.c",
        "tar -C /tmp -xf /tests/data.tar",
        "tar -cf /tmp/x.tar --exclude=.git /tests",
        "tar -tf out.tar --exclude=a",
        "find . -type f -print0 | cpio -0 -o --quiet > /tmp/x",
        "unzip -l out.zip",
        "unzip -q /tests/a.zip -d /tmp/a",
        "7z l /tests/a.7z",
        "7z x /tests/a.7z",
        "bsdtar -xf /tests/a.tar -C /tmp",
        "curl -sL https://x/y.tgz | tar -xz -C /tmp",
        "curl -LsSf https://x/install.sh | sh",
        "wget -qO- 'https://x/install.sh' | bash",
        "export ENV=test",
        'export PYTHONPATH=""',
        "LD_PRELOAD= ls",
        "PATH+=:/opt/bin",
        'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/opt/lib"',
        'export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}/tests"',
        'export PATH="$HOME/.local/bin:$PATH"',
        "echo PATH=.",
        "docker run -e PATH=/app x",
        "javac -d /tmp/classes /tests/T.java",
        "pdflatex -output-directory /tmp /tests/a.tex",
        "echo 'int main(){}' | gcc -x c -o /tmp/t -",
        'dc -e "1 2 + p"',
        "ex -s -c q /tests/f",
        "tar -C /tmp -xf out.tar; find /tmp/got -type l -delete",
    ],
)
def test_programs_of_the_judges_own_are_not(line: str) -> None:
    assert shell_traps("tests/test.sh", line, frozenset()) == []


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ('assert "42" in open("out").read()', [Rule.SOMEWHERE]),
        ('ok = want in pathlib.Path("out").read_text()', [Rule.SOMEWHERE]),
        ("assert want in subprocess.run(command, capture_output=True).stdout.decode()", [Rule.SOMEWHERE]),
        ('total = importlib.import_module("total")', [Rule.IMPORTED]),
        ('total = __import__("total.parts")', [Rule.IMPORTED]),
        ('assert name in open("/tests/names").read()', []),
        ("assert open('out').read() in allowed", []),
        ('json = importlib.import_module("json")', []),
        ("tarfile.open('out.tar').extractall('/tmp/got')", [Rule.COPIED]),
        ("shutil.unpack_archive('out.tgz', '/tmp/got')", [Rule.COPIED]),
        ("tarfile.open('out.tar').extractall('/tmp/got', filter='data')", []),
        ("zipfile.ZipFile('out.zip').extractall('/tmp/got')", []),
        ('with zipfile.ZipFile("/app/a.zip") as z: z.extractall("/tmp/a")', []),
        ('with tarfile.open("/tests/a.tar") as t: t.extractall("/tmp/a")', []),
        ('with tarfile.open("out.tar") as t: t.extractall("/tmp/a")', [Rule.COPIED]),
        ('tarfile.open("/tests/a.tar").extractall("/tmp")', []),
        ('shutil.unpack_archive("/tests/a.tgz", "/tmp")', []),
        ('t.extractall("/tmp", filter="fully_trusted")', [Rule.COPIED]),
        ('t.extractall("/tmp", filter="tar")', [Rule.COPIED]),
        ('shutil.unpack_archive(left, "/tests/got")', [Rule.COPIED]),
        ('np.load("/app/o.npy", allow_pickle=False)', []),
        ('np.load("/tests/want.npy", allow_pickle=True)', []),
        ("table = pd.read_pickle(path)", [Rule.PROGRAM_TEXT]),
        ("same = sympy.sympify(text) == 42", [Rule.PROGRAM_TEXT]),
        ("array = np.load(path, allow_pickle=True)", [Rule.PROGRAM_TEXT]),
    ],
)
def test_python_that_looks_for_the_right_text_anywhere_or_imports_by_name_is_named(
    line: str, rules: list[Rule]
) -> None:
    assert [trap.rule for trap in python_traps("tests/check.py", line, frozenset({"total"}))] == rules
