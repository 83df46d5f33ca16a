"""Lines that take the agent's word, or ask only whether nothing is missing, each with its rule and with a sound form for the same purpose."""

from itertools import zip_longest

from orchestrator.tasks.traps.rules import Rule

UNTRUSTED = 'python3 -I "$PENSTOCK_UNTRUSTED" 10 '
REWARD = "/logs/verifier/reward.txt"
SHELL = [
    # Under the wrapper, a program makes no link in the work directory.
    ("make > /dev/null; cmp -s out /tests/want && ok=1", Rule.LINKS, f"{UNTRUSTED}make > /dev/null; cmp -s out /tests/want && ok=1"),
    (f"{UNTRUSTED}make > make.log", Rule.LINKS, f"{UNTRUSTED}make > /tmp/make.log; sha256sum out > /tmp/sums"),
    (f"./p > /tmp/o; {UNTRUSTED}make > /tmp/log; head -c 9 out", Rule.LINKS, f"{UNTRUSTED}./p > /tmp/o; {UNTRUSTED}make > /tmp/log; head -c 9 out"),
    # The agent's number is the reward.
    (f"jq -r .score out.json > {REWARD}", Rule.PAID, f"python3 -I /tests/score.py < out.json > {REWARD}"),
    (f'n=$(tail -n 1 out); echo "$n" > {REWARD}', Rule.PAID, f'n=$(tail -n 1 out | python3 -I /tests/score.py); echo "$n" > {REWARD}'),
    (f"cp score.txt {REWARD}", Rule.PAID, f"cp /tests/one.txt {REWARD}"),
    (f"cat score.txt | tee {REWARD}", Rule.PAID, f"cat out | python3 -I /tests/score.py | tee {REWARD}"),
    (f"{UNTRUSTED}./bench | tail -n 1 > {REWARD}", Rule.PAID, f"[ \"$({UNTRUSTED}./bench | head -c 9)\" = 42 ] && echo 1 > {REWARD}"),
    ('D=/logs/verifier; cat out > "$D/reward.json"', Rule.PAID, 'D=/logs/verifier; cmp -s out /tests/want && echo 1 > "$D/reward.txt"'),
    (f"cp /app/score {REWARD}", Rule.PAID, f"python3 -I /tests/grade.py out > /tmp/score; cp /tmp/score {REWARD}"),
    (f"acc=$(tail -n 1 out | sed s/x//); echo $acc > {REWARD}", Rule.PAID,
     f"acc=$(python3 -I /tests/score.py < out | tail -n 1); echo $acc > {REWARD}"),
    (f"acc=$(python3 -I /tests/score.py | cat - out | tail -n 1); echo $acc > {REWARD}", Rule.PAID,
     f"acc=$(cat out | python3 -I /tests/score.py | sed s/x// | tail -n 1); echo $acc > {REWARD}"),
    (f'{UNTRUSTED}./bench > /tmp/o; r=$(tail -n 1 /tmp/o); echo "$r" > {REWARD}', Rule.PAID,
     f'r=$(jq -r .x /tmp/judge.json); echo "$r" > {REWARD}'),
    (f"cp out /tmp/o; cat /tmp/o > {REWARD}", Rule.PAID, f"python3 -I /tests/score.py out > /tmp/o; cat /tmp/o > {REWARD}"),
    (f"{UNTRUSTED}./bench --to /tmp/o; cp /tmp/o {REWARD}", Rule.PAID, f"grep -c 42 out > /tmp/o; cp /tmp/o {REWARD}"),
    (f"{UNTRUSTED}sh -c './p > /tmp/o'; cat /tmp/o > {REWARD}", Rule.PAID,
     f"{UNTRUSTED}sh -c './p > /tmp/o'; cmp -s /tmp/o /tests/o && echo 1 > {REWARD}"),
    (f"cat out | tee /tmp/o; cat /tmp/o > {REWARD}", Rule.PAID, f"cat /tests/x | tee /tmp/o; cat /tmp/o > {REWARD}"),
    # What the script reads after a program of the agent's, and the words of an awk program.
    ("./p > /tmp/o; awk -v n=1 '{ print n }' out", Rule.LINKS, f"{UNTRUSTED}./p > /tmp/o; n=3; awk -v n=$n 'BEGIN {{ print n / 4 }}'"),
    # The agent wrote both sides.
    ("sha256sum -c sums.txt && ok=1", Rule.BOTH_SIDES, "sha256sum -c /tests/sums.txt && ok=1"),
    ("md5sum --check --status sums.md5 && ok=1", Rule.BOTH_SIDES, "md5sum out > /tmp/sums"),
    ("cmp -s out data/expected && ok=1", Rule.BOTH_SIDES, "cmp -s out /tests/expected && ok=1"),
    ("cmp out expected && ok=1", Rule.BOTH_SIDES, "cp /tests/want expected; cmp out expected && ok=1"),
    ("if diff -q out /app/expected; then ok=1; fi", Rule.BOTH_SIDES, "if diff -q out original; then exit 1; fi"),
    ("cmp -s a /tests/original && exit 1; cmp -s a b && ok=1", Rule.BOTH_SIDES, "cmp -s a /tests/want && cmp -s a b && ok=1"),
    ("sha256sum -c sums && ok=1", Rule.BOTH_SIDES, "cp /tests/sums . && sha256sum -c sums && ok=1"),
    # The exit status of the agent's program decides.
    (f"{UNTRUSTED}python3 test_it.py && ok=1", Rule.STATUS, f"{UNTRUSTED}gcc -o p p.c && [ \"$({UNTRUSTED}./p)\" = 3 ] && ok=1"),
    (f"cd /app && {UNTRUSTED}python3 -m pytest -q && ok=1", Rule.STATUS, f"cd /app && {UNTRUSTED}make || exit 1"),
    (f"if {UNTRUSTED}./run 3; then echo 1 > {REWARD}; fi", Rule.STATUS,
     f"if {UNTRUSTED}./run 3 > /tmp/o; then if cmp -s /tmp/o /tests/want; then echo 1 > {REWARD}; fi; fi"),
    (f"U='{UNTRUSTED}'; $U ./prog && ok=1", Rule.STATUS, f"U='{UNTRUSTED}'; $U ./prog > /tmp/o && cmp -s /tmp/o /tests/want && ok=1"),
    (f'run() {{ {UNTRUSTED}"$@"; }}; run ./prog && ok=1', Rule.STATUS, f'run() {{ {UNTRUSTED}"$@"; }}; run ./prog > /tmp/o'),
    # What fits is printed, whatever else there is.
    ("[ -n \"$(jq '.[] | select(.id == 7)' out.json)\" ] && ok=1", Rule.SOMEWHERE, "[ \"$(jq -c 'map(.id)' out.json)\" = '[7]' ] && ok=1"),
    ("n=$(awk '$1 == \"ok\"' out | wc -l); [ \"$n\" -ge 3 ] && ok=1", Rule.SOMEWHERE,
     "n=$(awk '$1 == \"bad\"' out | wc -l); [ \"$n\" -eq 0 ] && ok=1"),
    ("[ \"$(jq '[.[] | select(.ok)] | length' o.json)\" -ge 3 ] && ok=1", Rule.SOMEWHERE,
     "[ \"$(jq '[.[] | select(.ok)] | length' o.json)\" = 3 ] && [ \"$(jq length o.json)\" = 3 ] && ok=1"),
    # Nothing is missing, whatever else there is.
    ('[ -z "$(comm -23 <(sort /tests/want) <(sort out))" ] && ok=1', Rule.SOMEWHERE, '[ -z "$(comm -3 <(sort /tests/want) <(sort out))" ] && ok=1'),
    ('[ "$(comm -13 out /tests/want | wc -l)" -eq 0 ] && ok=1', Rule.SOMEWHERE,
     '[ -z "$(comm -13 out /tests/want)" ] && [ -z "$(comm -23 out /tests/want)" ] && ok=1'),
    ('missing=$(comm -13 out /tests/want); if [ -n "$missing" ]; then exit 1; fi', Rule.SOMEWHERE,
     "comm -13 out /tests/want > /tmp/missing; cmp -s out /tests/want && ok=1"),
    ("comm -13 out /tests/want > /tmp/m; [ ! -s /tmp/m ] && ok=1", Rule.SOMEWHERE,
     "comm -13 out /tests/want > /tmp/m; comm -23 out /tests/want > /tmp/n; [ ! -s /tmp/m ] && [ ! -s /tmp/n ] && ok=1"),
    ('[ ! "$(comm -13 out /tests/want)" ] && ok=1', Rule.SOMEWHERE, '[ ! "$(comm -3 out /tests/want)" ] && ok=1'),
    ('[ "$(comm -13 out /tests/want)" = "" ] && ok=1', Rule.SOMEWHERE,
     f"hits=$(comm -12 <(sort out) <(sort /tests/want) | wc -l); python3 -I /tests/f1.py $hits 3 > {REWARD}"),
]  # fmt: skip
START = (
    "import csv, json, os, subprocess as sp\nfrom pathlib import Path\nimport pytest\n"
    "U = ['python3', '-I', os.environ['PENSTOCK_UNTRUSTED'], '10']\n"
)
READ = "a = open('/app/o').read().split()\n"
SEARCH = "assert any(x == '4' for x in a)"
ONE = [
    "assert len(a) == 1, f'{a}'",
    "assert len(a) == 1 and len(a) < 3, a",
    "if len(a) != 1:\n    print('too many', len(a))\n    raise SystemExit(1)",
    "import sys\nif len(a) != 1 or len(a) > 2:\n    sys.exit(1)",
]
"""Requirements of exactly one entry."""
METHOD = f"class T(unittest.TestCase):\n    def test(self):\n        {READ}        "
SEVERAL = [
    "if len(a) == 1:\n    a = a[0].split(',')",
    "if len(a) == 0:\n    print('empty')",
    "n = 1 if len(a) == 1 else 5",
    "ok = len(a) == 1",
    "try:\n    assert len(a) == 1\nexcept AssertionError:\n    pass",
    "with pytest.raises(AssertionError):\n    assert len(a) == 1",
    "if a[0] == 'x':\n    assert len(a) == 1",
    "while a[0] == 'x':\n    assert len(a) == 1",
    "assert len(a) == 1\na = open('/app/p').read().split()",
    "assert len(a) == 1\na += open('/app/p').read().split()",
    "assert len(a) == 1\na[:] = open('/app/p').read().split()",
    "assert len(a) == 1\na.extend(open('/app/p').read().split())",
    "assert len(a) == 1\nadd = a.extend\nadd(open('/app/p').read().split())",
    "W = [*range(1000)]\nassert len(a) == len(W)",
    "W = ['4']\nW += range(1000)\nassert len(a) == len(W)",
    "assert len(a) == 2",
    "assert len(a) == 1000",
    "assert len(a) < 3",
    "assert len(a) != 1",
    "assert len(a) == 1 or len(a) > 5",
    "if len(a) != 1 and a[0] != 'x':\n    raise SystemExit(1)",
    "if len(a) != 1:\n    raise SystemExit(0)",
    "if len(a) != 1:\n    print('fail')",
    "ok = True\nif len(a) != 1:\n    ok = False",
    "import sys\nif len(a) != 1:\n    sys.exit(0)\n    sys.exit(1)",
    "if len(a) != 1:\n    raise pytest.skip.Exception('no')",
    "if len(a) == 1:\n    raise ValueError",
    "def test_n():\n    assert len(a) == 1",
    "def test_n():\n    a = open('/app/n').read().split()\n    assert len(a) == 1",
    "class T:\n    def test_n(self):\n        self.assertEqual(len(a), 1)",
]
"""Conditions that require one entry not at all, not always, of another list, or of the list before it has grown."""
ELSEWHERE = [
    f"{READ}{SEARCH}\nassert len(a) == 1",
    f"{READ}assert len(a) == 1\nassert any(x == '4' for a in [open('/app/p')] for x in a)",
    f"{READ}assert len(a) == 1\nassert any(x == '4' for x in open('/app/p'))",
    f"{READ}assert len(a) == 1\nassert any(y == '4' for x in a for y in x.split(','))",
    f"def test():\n    global a\n    {READ}    assert len(a) == 1\n    more()\n    {SEARCH}",
    f"{READ}assert len(a) == 1\ndef test():\n    {SEARCH}",
]
"""Searches in another place than the one before which the length is required."""
OVERWRITES = [
    "Path('/tmp/s').write_text('0')\nsp.run([*U, '/app/p'])",
    "with open('/tmp/s', 'w') as f:\n    f.write('')\n    sp.run([*U, '/app/p'], stdout=f)",
    "Path('/tmp/s').write_text('0')\nsp.run([*U, '/app/p'], stdout=open('/tmp/s', 'w'))",
    "import shutil\nPath('/tmp/s').write_text('0')\nshutil.copy2('/app/s', '/tmp/s')",
    "import shutil\nPath('/tmp/s').write_text('0')\nshutil.copy('/app/s', '/tmp/s')",
    "Path('/tmp/s').write_text('0')\nos.replace('/app/s', '/tmp/s')",
    "Path('/tmp/s').write_text('0')\nPath('/tmp/s').write_bytes(Path('/app/s').read_bytes())",
    "Path('/tmp/s').write_text('0')\nopen('/tmp/s', 'w').writelines(open('/app/s'))",
    "Path('/tmp/s').write_text('0')\nsp.run('cp /app/s /tmp/s', shell=True)",
    "Path('/tmp/s').write_text(open('/app/s').read())",
    "open('/tmp/s', 'a').write('0')",
    "Path('/tmp/s').write_text('0')\nsp.run(['bash', '/tests/measure.sh'])",
]
"""Own writes of a file in /tmp that something else writes too."""

PYTHON = [
    # Names of pytest and unittest: fixtures, attributes, defaults of the environment, functions that return text.
    ("@pytest.fixture\ndef prog():\n    return '/app/prog'\ndef test(prog):\n    sp.run([prog])", Rule.AGENT_PROGRAM,
     "@pytest.fixture\ndef prog():\n    return '/tests/prog'\ndef test(prog):\n    sp.run([prog])"),
    ("class T:\n    EXE = '/app/prog'\n    def test(self):\n        sp.run([self.EXE])", Rule.AGENT_PROGRAM,
     "class T:\n    EXE = '/app/prog'\n    def test(self):\n        sp.run(['wc', self.EXE])"),
    ("class T:\n    def setUp(self):\n        self.exe = Path('/app') / 'prog'\n    def test(self):\n        sp.run([self.exe])", Rule.AGENT_PROGRAM,
     "class T:\n    def setUp(self):\n        self.exe = Path('/tests') / 'prog'\n    def test(self):\n        sp.run([self.exe])"),
    ("import sys\nsys.path.insert(0, os.environ.get('APP', '/app'))", Rule.IMPORTED,
     "import sys\nsys.path.insert(0, os.getenv('LIB', '/tests/lib'))"),
    ("@pytest.fixture\ndef report():\n    return Path('/app/r').read_text()\ndef test(report):\n    assert '42' in report", Rule.SOMEWHERE,
     "@pytest.fixture\ndef report():\n    return Path('/app/r').read_text()\ndef test(report):\n    assert report == '42'"),
    ("def read():\n    return Path('/app/r').read_text()\ndef test():\n    assert '42' in read()", Rule.SOMEWHERE,
     "def read():\n    return Path('/tests/r').read_text()\ndef test():\n    assert '42' in read()"),
    ("class T:\n    def setUp(self):\n        self.t = open('/app/r').read()\n    def test(self):\n        assert '42' in self.t", Rule.SOMEWHERE,
     "class T:\n    def setUp(self):\n        self.text = Path('/app/r').read_text()\n    def test(self):\n        assert self.text == '42'"),
    # Nothing is missing, or some entry is right.
    ("got = set(Path('/app/o').read_text().split())\nmissing = {'a', 'b'} - got\nassert not missing, f'{missing}'", Rule.SOMEWHERE,
     "got = set(Path('/app/o').read_text().split())\nassert not {'a', 'b'} - got and not got - {'a', 'b'}"),
    ("got = set(Path('/app/o').read_text().split())\nassert {'a', 'b'}.difference(got) == set()", Rule.SOMEWHERE,
     "got = set(Path('/app/o').read_text().split())\nassert got ^ {'a', 'b'} == set()"),
    ("got = set(Path('/app/o').read_text().split())\nwant = {'a'}\nassert want - got == set()\nassert len(want) == 1", Rule.SOMEWHERE,
     "got = set(Path('/app/o').read_text().split())\nwant = {'a'}\nassert want - got == set()\nassert len(got) == len(want)"),
    ("got = set(Path('/app/o').read_text().split())\nassert not {'a'} - got\nassert len(got) >= 1", Rule.SOMEWHERE,
     "got = set(Path('/app/o').read_text().split())\nassert not {'a'} - got\nassert got <= {'a'}"),
    ("text = Path('/app/o').read_text()\nmissing = [w for w in ('a', 'b') if w not in text]\nassert missing == []", Rule.SOMEWHERE,
     "text = Path('/app/o').read_text().split()\nwrong = [w for w in text if w not in ('a', 'b')]\nassert wrong == [] and len(text) == 2"),
    ("rows = list(csv.DictReader(open('/app/o')))\nfound = [r for r in rows if r['v'] == '3']\nassert len(found) >= 1", Rule.SOMEWHERE,
     "rows = list(csv.DictReader(open('/app/o')))\nfound = [r for r in rows if r['k'] == 'x']\nassert len(found) == 1 and found[0]['v'] == '3'"),
    ("rows = json.load(open('/app/o'))\nrow = next((r for r in rows if r['id'] == 7), None)\nassert row is not None", Rule.SOMEWHERE,
     "rows = json.load(open('/app/o'))\nrow = next((r for r in rows if r['id'] == 7), None)\nassert row is not None\nassert row['v'] == 3"),
    # One entry that is right is the whole answer; the length must be required in every case, of the list as it is searched.
    *((f"{READ}{before}\n{SEARCH}", Rule.SOMEWHERE, f"{READ}{one}\n{SEARCH}")
      for before, one in zip_longest(SEVERAL, ONE, fillvalue=ONE[0])),
    *((trap, Rule.SOMEWHERE, f"{READ}{ONE[0]}\n{SEARCH}") for trap in ELSEWHERE),
    ("a = json.load(open('/app/o'))\nb = json.load(open('/app/p'))\nassert len(a) == len(b)\nassert any(x['n'] == 'al' for x in a)", Rule.SOMEWHERE,
     "a = json.load(open('/app/o'))\nassert len(a) == 1\nassert any(x['n'] == 'al' for x in a)"),
    (f"{METHOD}self.assertEqual(len(a), 2)\n        {SEARCH}", Rule.SOMEWHERE, f"{METHOD}self.assertEqual(len(a), 1)\n        {SEARCH}"),
    ("import pandas as pd\na = pd.read_csv('/app/o')\nassert len(a) == 1\nassert any(x == 'al' for x in a)", Rule.SOMEWHERE,
     "import pandas as pd\na = pd.read_csv('/app/o')\nassert len(a) == 1\nassert list(a) == ['al']"),
    ("data = json.load(open('/app/o'))\nassert 'alice' in data['winners']", Rule.SOMEWHERE,
     "data = json.load(open('/app/o'))\nassert 'name' in data['user']\nassert data['user']['name'] == 'alice'"),
    ("got = set(open('/app/o').read().split())\nassert len(got & {'a', 'b'}) / 2 >= 0.9", Rule.SOMEWHERE,
     "got = set(open('/app/o').read().split())\nassert 2 * len(got & {'a', 'b'}) / (len(got) + 2) >= 0.9"),
    ("ok = False\nfor r in csv.reader(open('/app/o')):\n    if r[0] == 'x' and r[1] == '3':\n        ok = True\nassert ok", Rule.SOMEWHERE,
     "ok = True\nfor r in csv.reader(open('/app/o')):\n    if r[1] == '3':\n        ok = False\nassert ok"),
    ("users = json.load(open('/app/u'))\nassert any(u['name'] == 'alice' for u in users)", Rule.SOMEWHERE,
     "users = json.load(open('/app/u'))\nassert not any(u['name'] == 'root' for u in users)"),
    ("import xml.etree.ElementTree as ET\nassert any(e.text == '42' for e in ET.parse('/app/o').iter('v'))", Rule.SOMEWHERE,
     "import xml.etree.ElementTree as ET\nassert [e.text for e in ET.parse('/app/o').iter('v')] == ['42']"),
    ("def test(monkeypatch):\n    monkeypatch.syspath_prepend('/app')", Rule.IMPORTED,
     "def test(monkeypatch):\n    monkeypatch.syspath_prepend('/tests/lib')"),
    ("import importlib.util as u\ndef load(p):\n    return u.spec_from_file_location('m', p)\nload('/app/m.py')", Rule.IMPORTED,
     "import importlib.util as u\ndef load(p):\n    return u.spec_from_file_location('m', p)\nload('/tests/m.py')"),
    # The agent's word.
    ("r = sp.run([*U, 'pytest', '/app/t'], capture_output=True, text=True)\nassert 'failed' not in r.stdout\nassert r.returncode == 0",
     Rule.STATUS, "r = sp.run([*U, '/app/p'], capture_output=True, text=True)\nassert r.stdout == '42'\nassert r.returncode == 0"),
    ("score = json.load(open('/app/r.json'))['score']\nPath('/logs/verifier/reward.txt').write_text(str(score))", Rule.PAID,
     "score = 1.0 if json.load(open('/app/r.json'))['score'] == 3 else 0.0\nPath('/logs/verifier/reward.txt').write_text(str(score))"),
    ("with open('/logs/verifier/reward.txt', 'w') as f:\n    f.write(f\"{min(1.0, float(Path('/app/s').read_text()))}\")", Rule.PAID,
     "n = sum(a == b for a, b in zip(open('/app/o'), ['a', 'b']))\nwith open('/logs/verifier/reward.txt', 'w') as f:\n    f.write(f'{n / 2}')"),
    ("with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'style': float(open('/app/r').read())}, f)", Rule.PAID,
     "with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'reward': 0.0, 'note': open('/app/r').read()}, f)"),
    # A file in /tmp that the tests wrote once: anything may have written it since, so the score stays in a variable.
    *((f"{writes}\nPath('/logs/verifier/reward.txt').write_text(Path('/tmp/s').read_text())", Rule.PAID,
       f"score = str(0.5)\n{writes}\nPath('/logs/verifier/reward.txt').write_text(score)") for writes in OVERWRITES),
    ("import shutil\nshutil.copy('/app/score', '/logs/verifier/reward.txt')", Rule.PAID,
     "import shutil\nshutil.copy('/app/score', '/logs/verifier/score.txt')"),
    ("with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'reward': json.load(open('/app/r'))['x']}, f)", Rule.PAID,
     "with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'reward': 1.0}, f)"),
    ("assert Path('/app/o').read_text() == Path('/app/expected').read_text()", Rule.BOTH_SIDES,
     "assert Path('/app/o').read_text() == Path(__file__).with_name('expected').read_text()"),
    ("import filecmp\nassert filecmp.cmp('/app/o', '/app/expected')", Rule.BOTH_SIDES,
     "import filecmp\nassert filecmp.cmp('/app/o', '/tests/expected')"),
    ("import filecmp\nassert filecmp.cmp('/app/o', '/app/copy')", Rule.BOTH_SIDES,
     "import filecmp\nassert not filecmp.cmp('/app/o', '/app/orig')"),
    ("a = json.load(open('/app/a'))\nb = json.load(open('/app/b'))\nassert a == b\nassert len(a) > 2", Rule.BOTH_SIDES,
     "a = json.load(open('/app/a'))\nb = json.load(open('/app/b'))\nassert a == b\nassert a == [1, 2]"),
    ("r = sp.run([*U, '/app/p'], capture_output=True, text=True)\nif r.returncode == 0:\n    score = 1", Rule.STATUS,
     "r = sp.run([*U, '/app/p'], capture_output=True, text=True)\nif r.returncode == 0:\n    score = (r.stdout == 'x')"),
    ("r = sp.run([*U, 'python3', '/app/t.py'])\nassert r.returncode == 0", Rule.STATUS,
     "r = sp.run([*U, 'python3', '/app/t.py'], capture_output=True)\nassert r.returncode == 0\nassert r.stdout == b'42'"),
]  # fmt: skip
