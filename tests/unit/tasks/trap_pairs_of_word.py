"""Lines that take the agent's word, or ask only whether nothing is missing, each with its rule and with a sound form for the same purpose."""

from orchestrator.tasks.traps.rules import Rule

UNTRUSTED = 'python3 -I "$PENSTOCK_UNTRUSTED" 10 '
REWARD = "/logs/verifier/reward.txt"
SHELL = [
    # The agent's number is the reward.
    (f"jq -r .score out.json > {REWARD}", Rule.PAID, f"python3 -I /tests/score.py < out.json > {REWARD}"),
    (f'n=$(tail -n 1 out); echo "$n" > {REWARD}', Rule.PAID, f'n=$(tail -n 1 out | python3 -I /tests/score.py); echo "$n" > {REWARD}'),
    (f"cp score.txt {REWARD}", Rule.PAID, f"cp /tests/one.txt {REWARD}"),
    (f"cat score.txt | tee {REWARD}", Rule.PAID, f"cat out | python3 -I /tests/score.py | tee {REWARD}"),
    (f"{UNTRUSTED}./bench | tail -n 1 > {REWARD}", Rule.PAID, f"[ \"$({UNTRUSTED}./bench | head -c 9)\" = 42 ] && echo 1 > {REWARD}"),
    ('D=/logs/verifier; cat out > "$D/reward.json"', Rule.PAID, 'D=/logs/verifier; cmp -s out /tests/want && echo 1 > "$D/reward.txt"'),
    (f"cp /app/score {REWARD}", Rule.PAID, f"python3 -I /tests/grade.py out > /tmp/score; cp /tmp/score {REWARD}"),
    # What the script reads after a program of the agent's, and the words of an awk program.
    (f"{UNTRUSTED}./p > /tmp/o; awk -v n=1 '{{ print n }}' out", Rule.LINKS, f"{UNTRUSTED}./p > /tmp/o; n=3; awk -v n=$n 'BEGIN {{ print n / 4 }}'"),
    # The agent wrote both sides.
    ("sha256sum -c sums.txt && ok=1", Rule.BOTH_SIDES, "sha256sum -c /tests/sums.txt && ok=1"),
    ("md5sum --check --status sums.md5 && ok=1", Rule.BOTH_SIDES, "md5sum out > /tmp/sums"),
    ("cmp -s out data/expected && ok=1", Rule.BOTH_SIDES, "cmp -s out /tests/expected && ok=1"),
    ("cmp out expected && ok=1", Rule.BOTH_SIDES, "cp /tests/want expected; cmp out expected && ok=1"),
    ("if diff -q out /app/expected; then ok=1; fi", Rule.BOTH_SIDES, "if diff -q out original; then exit 1; fi"),
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
]  # fmt: skip
START = (
    "import csv, json, os, subprocess as sp\nfrom pathlib import Path\nimport pytest\n"
    "U = ['python3', '-I', os.environ['PENSTOCK_UNTRUSTED'], '10']\n"
)
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
    ("text = Path('/app/o').read_text()\nmissing = [w for w in ('a', 'b') if w not in text]\nassert missing == []", Rule.SOMEWHERE,
     "text = Path('/app/o').read_text().split()\nwrong = [w for w in text if w not in ('a', 'b')]\nassert wrong == [] and len(text) == 2"),
    ("rows = list(csv.DictReader(open('/app/o')))\nfound = [r for r in rows if r['v'] == '3']\nassert len(found) >= 1", Rule.SOMEWHERE,
     "rows = list(csv.DictReader(open('/app/o')))\nfound = [r for r in rows if r['k'] == 'x']\nassert len(found) == 1 and found[0]['v'] == '3'"),
    ("rows = json.load(open('/app/o'))\nrow = next((r for r in rows if r['id'] == 7), None)\nassert row is not None", Rule.SOMEWHERE,
     "rows = json.load(open('/app/o'))\nrow = next((r for r in rows if r['id'] == 7), None)\nassert row is not None\nassert row['v'] == 3"),
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
    ("import shutil\nshutil.copy('/app/score', '/logs/verifier/reward.txt')", Rule.PAID,
     "import shutil\nshutil.copy('/app/score', '/logs/verifier/score.txt')"),
    ("with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'reward': json.load(open('/app/r'))['x']}, f)", Rule.PAID,
     "with open('/logs/verifier/reward.json', 'w') as f:\n    json.dump({'reward': 1.0}, f)"),
    ("assert Path('/app/o').read_text() == Path('/app/expected').read_text()", Rule.BOTH_SIDES,
     "assert Path('/app/o').read_text() == Path(__file__).with_name('expected').read_text()"),
    ("import filecmp\nassert filecmp.cmp('/app/o', '/app/expected')", Rule.BOTH_SIDES,
     "import filecmp\nassert filecmp.cmp('/app/o', '/tests/expected')"),
    ("r = sp.run([*U, 'python3', '/app/t.py'])\nassert r.returncode == 0", Rule.STATUS,
     "r = sp.run([*U, 'python3', '/app/t.py'], capture_output=True)\nassert r.returncode == 0\nassert r.stdout == b'42'"),
]  # fmt: skip
