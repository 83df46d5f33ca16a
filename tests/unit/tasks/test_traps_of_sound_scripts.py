"""Sound test scripts of usual forms: the check of traps is quiet about them."""

import pytest

from orchestrator.tasks.traps import Rule
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.shell import shell_traps

REWARD = "/logs/verifier/reward.txt"
RUN = 'python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 /app/main.py'
PAID = f"then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
U = 'python3 -I "$PENSTOCK_UNTRUSTED" 10'
SAME = f"{U} ./p 1 < /dev/null > /tmp/a\n{U} ./p 2 < /dev/null > /tmp/b\ncmp -s /tmp/a /tmp/b || exit 1\n"
FORBIDDEN = f'if grep -q "eval(" /app/main.py; then echo 0 > {REWARD}; exit; fi\n'


@pytest.mark.parametrize(
    "script",
    [
        f"{FORBIDDEN}{RUN} < /dev/null > /tmp/o\nif cmp -s /tmp/o /tests/want; {PAID}",
        f"{FORBIDDEN}{RUN} < /dev/null > /tmp/o\nif diff -q /tmp/o /tests/want; {PAID}",
        f"{FORBIDDEN}if diff <({RUN} < /dev/null) /tests/want; {PAID}",
        f"a=$({RUN} 1 < /dev/null)\nb=$({RUN} 2 < /dev/null)\nok=1\n"
        f'[ "$a" = "$b" ] || ok=0\ndiff <(echo "$a") /tests/want || ok=0\necho $ok > {REWARD}\n',
        f"check() {{ grep -q DEBUG /app/a && return 1; cmp -s /app/a /tests/a; }}\nif check; {PAID}",
        "n=$(wc -l < /app/a)\n"
        f'if [ "$n" -gt 100 ]; then echo 0 > {REWARD}; exit; fi\nif cmp -s /app/a /tests/a; {PAID}',
        f"a=$({RUN} 3 < /dev/null)\n"
        f'b=$(python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 /tests/ref.py 3 < /dev/null)\nif [ "$a" = "$b" ]; {PAID}',
        f'if [ "$(cat /app/a)" = "$(cat /app/backup/a)" ] && cmp -s /app/a /tests/a; {PAID}',
        "pushd /tests; python3 -I check.py; popd; touch done\n",
    ],
)
def test_a_sound_shell_script_is_quiet(script: str) -> None:
    assert [(trap.rule, trap.text) for trap in shell_traps("tests/test.sh", script, frozenset())] == []


@pytest.mark.parametrize(
    "check",
    [
        "openssl dgst -sha256 -verify /tests/k.pem -signature /tmp/o /tests/want",
        "openssl verify -CAfile /tests/ca.pem /tmp/o",
        "gpg --verify /tmp/o",
        "sort -c /tmp/o",
        "tar -df /tmp/o",
        "gzip -t /tmp/o",
        "unzip -tq /tmp/o",
        "readelf -h /tmp/o > /dev/null",
        "xmllint --noout /tmp/o",
        "pdfinfo /tmp/o > /dev/null",
        "curl -sf localhost:80/x -o /dev/null",
        "docker run --rm judge /tmp/o",
        "shellcheck /app/x.sh",
        "ruff check /app",
    ],
)
def test_a_check_by_any_command_in_front_of_one_of_the_clock_is_sound(check: str) -> None:
    script = f"SECONDS=0\n{RUN} < /dev/null > /tmp/o || true\n{check} || exit 1\n[ $SECONDS -lt 5 ] || exit 1\necho 1 > {REWARD}\n"
    assert shell_traps("tests/test.sh", script, frozenset()) == []


@pytest.mark.parametrize(
    "check", ["openssl verify -CAfile /tests/ca.pem /tmp/o", "sort -c /tmp/o", "gzip -t /tmp/o"]
)
def test_a_check_by_any_command_behind_a_program_that_must_succeed_is_sound(check: str) -> None:
    script = f"set -e\n{RUN} < /dev/null > /tmp/o\n{check}\necho 1 > {REWARD}\n"
    assert shell_traps("tests/test.sh", script, frozenset()) == []


@pytest.mark.parametrize(
    "check",
    [
        "openssl dgst -sha256 -verify /tests/k.pem -signature /app/sig /tests/want",
        "awk -f /tests/check.awk /tests/want /app/out",
        "psql -v ON_ERROR_STOP=1 -f /tests/check.sql",
        "xmllint --noout /app/out",
        "sort -c /app/out",
        "tar -df /app/out",
        "gpg --verify /app/out",
        "cd /tests; ./check",
        "(( $(wc -l < /tmp/prepare.log) == 3 ))",
        "jq -e .ok /tmp/prepare.log > /dev/null",
        "curl -sf localhost:80/q > /dev/null",
        "docker run --rm judge /app/out",
        ". /tests/check.sh",
        "base64 -d /app/out | openssl verify -CAfile /tests/ca.pem > /dev/null",
    ],
)
def test_a_check_by_any_command_under_errexit_is_sound_behind_a_pipeline_that_loses_its_status(
    check: str,
) -> None:
    script = f"set -e\npython3 -I /tests/prepare.py | tee /tmp/prepare.log\n{check}\necho 1 > {REWARD}\n"
    assert Rule.LOST_STATUS not in [trap.rule for trap in shell_traps("tests/test.sh", script, frozenset())]


@pytest.mark.parametrize(
    "preparation",
    ["python3 -I -m pip install -q w.whl", "uv venv", "npm ci", "make -C /tests", "cmake /tests"],
)
def test_a_preparation_whose_status_is_lost_loses_no_check(preparation: str) -> None:
    script = f"set -e\n{preparation} 2>&1 | tail -n 1\ncp /app/out /tmp/out\necho 1 > {REWARD}\n"
    assert Rule.LOST_STATUS not in [trap.rule for trap in shell_traps("tests/test.sh", script, frozenset())]


@pytest.mark.parametrize(
    "script",
    [
        f"cp w /tmp/in\n{U} ./pack < /tmp/in > /tmp/p\n{U} ./unpack < /tmp/p > /tmp/b\ncmp -s /tmp/in /tmp/b && ok=1\n",
        f"cp w /tmp/in\n{U} ./pack /tmp/in > /tmp/p\n{U} ./unpack < /tmp/p > /tmp/b\ncmp -s /tmp/in /tmp/b && ok=1\n",
        f"cp /tests/ref.py /tmp/ref.py\n{U} python3 /tmp/ref.py > /tmp/a\n{U} ./p > /tmp/b\ncmp -s /tmp/a /tmp/b && ok=1\n",
        f"T=/tests\n{U} python3 $T/ref.py > /tmp/a\n{U} ./p > /tmp/b\ncmp -s /tmp/a /tmp/b && ok=1\n",
        f'HERE=$(dirname "$0")\n{U} python3 "$HERE/ref.py" > /tmp/a\n{U} ./p > /tmp/b\ncmp -s /tmp/a /tmp/b && ok=1\n',
        f"cd /tests && {U} ./ref > /tmp/a\ncd /app && {U} ./p > /tmp/b\ncmp -s /tmp/a /tmp/b && ok=1\n",
        f"cp /tests/in /tmp/in\n{U} sort /tmp/in > /tmp/a\n{U} ./mysort /tmp/in > /tmp/b\ncmp -s /tmp/a /tmp/b && ok=1\n",
        f'cp /tests/ref.py /tmp/ref.py\na=$({U} python3 /tmp/ref.py)\nb=$({U} ./p)\n[ "$a" = "$b" ] && ok=1\n',
        f"{SAME}[ $(stat -c %s /tmp/a) = 1024 ] && ok=1\n",
        f"{SAME}(( $(wc -l < /tmp/a) == 42 )) && ok=1\n",
        f'{SAME}mapfile -t v < /tmp/a\n[ "${{v[0]}}" = 42 ] && ok=1\n',
        f"{SAME}git diff --no-index --quiet /tmp/a /tests/want && ok=1\n",
    ],
)
def test_a_round_trip_a_reference_under_the_wrapper_and_a_second_look_are_sound(script: str) -> None:
    assert Rule.BOTH_SIDES not in [trap.rule for trap in shell_traps("tests/test.sh", script, frozenset())]


@pytest.mark.parametrize(
    "source",
    [
        'import os\nif not os.path.exists("/app/x"):\n    continue\nassert open("/app/x").read() == "1"\n',
        "import subprocess\nimport pytest\n\ndef test():\n    try:\n"
        '        c = subprocess.run(["docker", "ps"], capture_output=True)\n'
        '        if c.returncode:\n            pytest.skip("not usable here")\n'
        '    except FileNotFoundError:\n        pytest.skip("no docker")\n'
        '    assert open("/app/out").read() == open("/tests/want").read()\n',
        "import requests\nimport pytest\n\ndef test():\n    for _ in range(30):\n        try:\n"
        '            r = requests.get("http://10.0.0.2:8000/health")\n        except Exception:\n            continue\n'
        '        assert r.status_code == 200\n        break\n    else:\n        pytest.fail("it never answered")\n',
    ],
)
def test_a_sound_python_test_is_quiet(source: str) -> None:
    assert [(trap.rule, trap.text) for trap in python_traps("tests/test_it.py", source, frozenset())] == []
