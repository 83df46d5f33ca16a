"""`penstock doctor --cluster` on a host that reaches no other host."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.settings.config import FILE
from tests.e2e.stack_rig import REPOSITORY
from tests.hosts.network import NET, Host, Network, remove_leftovers

pytestmark = pytest.mark.tier("hosts")

DOCTOR_S = 60.0


@pytest.fixture
def host() -> Iterator[Host]:
    remove_leftovers()
    network = Network()
    try:
        yield network.add("alone")
    finally:
        network.remove()


def test_the_doctor_of_a_host_that_is_cut_off_names_what_it_cannot_reach_in_bounded_time(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(
        f'[policy]\ndirectory = "{tmp_path}"\n'
        f'[gateway]\nport = 8080\nsandbox_port = 8081\nurls = ["http://{NET}.90:8080"]\n'
    )
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")},
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")]),
        "DATABASE_URL": f"postgresql://penstock:secret@{NET}.91:5432/penstock",
        "NATS_URL": ",".join(f"nats://secret@{NET}.{number}:4222" for number in (92, 93, 94)),
    }
    host.cut_off()
    argv = [sys.executable, "-m", "orchestrator.cli", "doctor", "--cluster", "--json", "--config"]
    done = host.run([*argv, str(tmp_path)], env=env, cwd=REPOSITORY, timeout_s=DOCTOR_S)
    assert done.returncode == 1, done.stderr
    wrong = {one["name"]: one for one in json.loads(done.stdout) if not one["ok"]}
    ports = {f"gateway, {NET}.90:8080", f"gateway, for sandboxes, {NET}.90:8081"}
    assert wrong.keys() == {"PostgreSQL", "NATS", *ports}
    assert f"{NET}.91:5432" in wrong["PostgreSQL"]["detail"] and "secret" not in done.stdout
    assert all(one["fix"] for one in wrong.values())
