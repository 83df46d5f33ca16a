"""`environment/docker-compose.yaml`: each key is honoured or refused by its name, and only the provider container runs side services."""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible, faults
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.compose.document import mapping
from orchestrator.tasks.compose.keys import FILE, MAIN, SIDE, ComposeKey
from orchestrator.tasks.compose.services import Composed, read_services
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.keys import Treatment
from sandboxes.base import File, ServiceHealth, ServiceState, SideService
from sandboxes.container.services import hosts_line
from sandboxes.images.architecture import machine

FILES = {"instruction.md": b"do it", "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt", "task.toml": b""}
NAMES = (
    "test",
    "context",
    "dockerfile",
    "aliases",
    "condition",
    "resources",
    "limits",
    "cpus",
    "type",
    "source",
    "target",
    "default",
    "db",
    "a",
)
CONTAINER = SandboxSection(provider="container")
WHOLE = """
    x-note: {anything: here}
    name: shop
    services:
      main:
        build: {context: "${CONTEXT_DIR}"}
        image: ${MAIN_IMAGE_NAME}
        command: ["sh", "-c", "sleep infinity"]
        environment: ["TEST_DIR=${TEST_DIR}", "PRICE=$$5"]
        volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
        deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
        depends_on: {api: {condition: service_healthy}}
      api:
        build: {context: ./api, dockerfile: Own}
        command: python3 -m server --port 80
        depends_on: {db: {condition: service_healthy}}
        environment: {DEBUG: yes, PORT: 0123, DEEP: true, HOME_OF: "${WHERE:-/srv}"}
        healthcheck: {test: ["CMD", "curl", "-f", "http://localhost"], interval: 1m30s, retries: 5}
        hostname: shop.local
        networks: {default: {aliases: [backend]}}
        expose: [80]
        restart: "no"
      db:
        image: postgres:16
        entrypoint: [docker-entrypoint.sh]
        command: [postgres, -c, fsync=off]
        environment: [POSTGRES_PASSWORD=x]
        healthcheck: {test: "pg_isready -U $$POSTGRES_USER", interval: 500ms, timeout: 2s, start_period: 10s}
        user: 999
        working_dir: /var/lib
        volumes: ["data:/var/lib/postgresql/data"]
    volumes: {data: {}}
"""
API = {"environment/api/Own": b"FROM python:3.11\nCOPY . /srv\n", "environment/api/server.py": b"1"}


def task(compose: str, **files: bytes) -> Task:
    text = textwrap.dedent(compose).encode()
    return Task.from_files({**FILES, "environment/docker-compose.yaml": text, **files})


def read(compose: str, **files: bytes) -> Composed:
    return task(compose, **files).composed


def side(compose: str) -> SideService:
    [found] = read(f"services: {{db: {{image: a, {compose}}}}}").services
    return found


def test_a_whole_file_is_read_with_each_service_after_those_that_it_waits_for() -> None:
    found = read(WHOLE, **API)
    db, api = found.services
    assert found.env == {"TEST_DIR": "/tests", "PRICE": "$5"} and found.contexts == ("api/",)
    assert db == SideService(
        name="db",
        build={"Dockerfile": File(b"FROM postgres:16\n")},
        shown="postgres:16",
        entrypoint=("docker-entrypoint.sh",),
        command=("postgres", "-c", "fsync=off"),
        env={"POSTGRES_PASSWORD": "x"},
        work_dir="/var/lib",
        user="999",
        volumes=("/var/lib/postgresql/data",),
        health=ServiceHealth(
            argv=("/bin/sh", "-c", "pg_isready -U $POSTGRES_USER"),
            interval_s=0.5,
            timeout_s=2.0,
            start_period_s=10.0,
        ),
    )
    assert (
        set(api.build) == {"Dockerfile", "Own", "server.py"} and api.build["Dockerfile"] == api.build["Own"]
    )
    assert (api.command, api.entrypoint) == (("python3", "-m", "server", "--port", "80"), None)
    assert api.env == {"DEBUG": "yes", "PORT": "0123", "DEEP": "true", "HOME_OF": "/srv"}
    assert api.after == {"db": ServiceState.HEALTHY} and api.names == ("shop.local", "backend")
    assert api.health == ServiceHealth(argv=("curl", "-f", "http://localhost"), interval_s=90.0, retries=5)


def test_a_build_that_names_no_arguments_requests_nothing() -> None:
    for none in ("{}", "[]", "null"):
        build = f"{{context: api, dockerfile: Own, args: {none}}}"
        made = task(f"services: {{main: {{build: {{args: {none}}}}}, api: {{build: {build}}}}}", **API)
        check_admissible(made, CONTAINER)


def test_the_ignore_file_of_a_services_own_dockerfile_counts_for_it_alone() -> None:
    others = {
        "environment/api/Own.dockerignore": b"own\n",
        "environment/api/Dockerfile": b"FROM other\n",
        "environment/api/Dockerfile.dockerignore": b"other\n",
    }
    _, api = read(WHOLE, **API, **others).services
    assert api.build["Dockerfile.dockerignore"] == File(b"own\n")
    plain = read("services: {api: {build: api}}", **others).services[0]
    assert plain.build["Dockerfile.dockerignore"] == File(b"other\n")
    del others["environment/api/Own.dockerignore"]
    assert "Dockerfile.dockerignore" not in read(WHOLE, **API, **others).services[1].build


def test_aliases_and_merged_mappings_stand_for_what_they_name() -> None:
    found = read("""
        x-base: &base {environment: {MODE: "1", LEVEL: "2"}, user: 999}
        x-health: &health {test: "true", interval: 2s}
        services:
          a: {<<: *base, image: one, healthcheck: *health}
          b: {<<: *base, image: two, user: 7, environment: {MODE: "3"}}
    """)
    a, b = found.services
    assert (a.env, a.user, a.health) == (
        {"MODE": "1", "LEVEL": "2"},
        "999",
        ServiceHealth(argv=("/bin/sh", "-c", "true"), interval_s=2.0),
    )
    assert (b.env, b.user) == ({"MODE": "3"}, "7")


def test_defaults_of_harbors_own_variables_count_in_the_environment_of_main_alone() -> None:
    found = read("""
        services:
          main:
            image: ${MAIN_IMAGE_NAME:-shop}
            network_mode: ${NETWORK_MODE:-bridge}
            volumes: ["${HOST_AGENT_LOGS_PATH:-./logs}:${ENV_AGENT_LOGS_PATH:-/logs/agent}"]
            deploy: {resources: {limits: {cpus: "${CPUS:-2}", memory: "${MEMORY-4096M}"}}}
            environment: ["PRICE=${PRICE:-5}", "CORES=${CPUS:-2}", "NET=${NETWORK_MODE-bridge}"]
    """)
    assert found.env == {"PRICE": "5", "CORES": "2", "NET": "bridge"} and not found.services


def test_agent_and_tests_get_the_services_and_the_variables_of_main_below_those_of_the_settings() -> None:
    toml = b'[environment]\nenv = {PRICE = "6"}'
    files = {**API, "environment/Dockerfile": b"FROM a\nENV TEST_DIR=/x", "task.toml": toml}
    made = task(WHOLE, **files)
    for found in (made.environment(None, containers=True), made.verification(None, containers=True)):
        assert [each.name for each in found.services] == ["db", "api"]
        assert found.env["PRICE"] == "6" and found.env["TEST_DIR"] == "/tests"
        assert found.services_s > 120


@pytest.mark.parametrize(
    ("toml", "files", "present"),
    [
        ('[verifier]\nenvironment_mode = "shared"', {}, True),
        ('[verifier]\nenvironment_mode = "separate"', {}, True),
        ('[verifier.environment]\nenv = {A = "1"}', {}, True),
        ('[verifier.environment]\ndocker_image = "a"', {}, False),
        ('[verifier]\nenvironment_mode = "separate"', {"tests/Dockerfile": b"FROM a"}, False),
    ],
)
def test_tests_have_services_where_their_environment_is_made_by_the_same_folder(
    toml: str, files: dict[str, bytes], present: bool
) -> None:
    made = task("services: {db: {image: a}}", **{**files, "task.toml": toml.encode()})
    assert bool(made.verification(None, containers=True).services) is present
    assert made.environment(None, containers=True).services


@pytest.mark.parametrize("provider", ["bubblewrap", "local", "kubernetes"])
def test_a_provider_without_side_services_refuses_them_and_names_the_one_that_has_them(provider: str) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"environment/docker-compose.yaml has the services db, which the provider {provider} does not run: the provider container does"
        ),
    ):
        check_admissible(task("services: {db: {image: a}}"), SandboxSection(provider=provider))
    check_admissible(task("services: {db: {image: a}}"), CONTAINER)


def test_ports_of_the_machine_change_nothing_for_agent_and_tests() -> None:
    ports = "ports: ['5432:5432', 80, {target: 81}]"
    made = task(f"services: {{main: {{{ports}}}, db: {{image: a, {ports}}}}}")
    check_admissible(made, CONTAINER)
    assert made.composed.services == task("services: {db: {image: a}}").composed.services


@pytest.mark.parametrize("name", [f"linux/{machine()}", f"linux/{machine()}/v8", machine(), "linux"])
def test_the_platform_of_this_machine_is_what_services_have_anyway(name: str) -> None:
    made = task(f"services: {{main: {{platform: {name}}}, db: {{image: a, platform: {name}}}}}")
    check_admissible(made, CONTAINER)
    assert made.composed.services == task("services: {db: {image: a}}").composed.services


@pytest.mark.parametrize("provider", ["bubblewrap", "local", "container"])
def test_a_file_with_main_alone_is_taken_by_every_provider(provider: str) -> None:
    made = task("services: {main: {environment: {A: 1}}}")
    check_admissible(made, SandboxSection(provider=provider))
    assert made.environment(None).env == {"A": "1"}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("privileged: true", "service db: privileged = True is not honoured: services have few rights"),
        ("cap_add: [NET_ADMIN]", "service db: cap_add = ['NET_ADMIN'] is not honoured"),
        ("network_mode: host", "service db: network_mode = 'host' is not honoured"),
        ("devices: ['/dev/kvm']", "service db: devices = ['/dev/kvm'] is not honoured"),
        ("secrets: [key]", "service db: secrets = ['key'] is not honoured"),
        ("env_file: .env", "service db: env_file = '.env' is not honoured"),
        ("platform: linux/s390x", "service db: platform = 'linux/s390x' is not honoured: services run on this machine's processors: name those, or"),
        ("platform: 7", "service db: platform = 7 is not honoured"),
        ("restart: always", "service db: restart = 'always' is not honoured: a service that ends stays ended"),
        ("pid: host", "service db: pid = 'host' is not honoured"),
        ("enviroment: {A: 1}", "service db: 'enviroment' is not honoured: write environment"),
        ("frobnicate: 1", "service db: 'frobnicate' is not honoured: remove it"),
        ("volumes: ['./data:/data']", "service db: volumes has './data:/data': nothing of the machine is bound into a service"),
        ("volumes: ['/:/host']", "service db: volumes has '/:/host': nothing of the machine is bound"),
        ("volumes: ['./init.sql:/init.sql:ro']", "service db: volumes has './init.sql:/init.sql:ro': nothing of the machine is bound into a"),
        ("volumes: ['a:/b:ro']", "service db: volumes has 'a:/b:ro': only NAME:PATH is honoured"),
        ("volumes: [{type: bind, source: /, target: /host}]", "only NAME:PATH is honoured"),
        ("volumes: ['a:b']", "service db: volumes has 'a:b': its place must be an absolute path"),
        ("volumes: a", "service db: volumes must be a list, got 'a'"),
        ("image: 'a b'", "comes twice"),
        ("environment: [A]", "service db: environment.A takes a variable of the machine"),
        ("environment: {A: '${HOME}'}", "service db: '${HOME}' takes a variable of the machine: write its value, or $$"),
        ("environment: {A: '$HOME'}", "service db: '$HOME' takes a variable of the machine"),
        ("environment: {A: '${B:?gone}'}", "takes a variable of the machine"),
        ("environment: {PENSTOCK_RUN: a}", "service db: environment.PENSTOCK_RUN: names that begin with PENSTOCK_ are reserved"),
        ("environment: {1A: a}", "service db: environment: '1A' is not a valid name of a variable"),
        ("environment: {A: [1]}", "service db: environment.A must be text, got [1]"),
        ("environment: 7", "service db: environment must be a list or a mapping, got 7"),
        ("command: []", "service db: command has no words"),
        ("command: 7", "service db: command must be text or a list of texts, got 7"),
        ("command: \"a 'b\"", "service db: command cannot be split into words"),
        ("entrypoint: ['']", "service db: entrypoint has no words"),
        ("working_dir: srv", "service db: working_dir must be an absolute path, got 'srv'"),
        ("user: 'a b'", "service db: user must be a user, or user:group, got 'a b'"),
        ("hostname: 'a b'", "service db: hostname must be a name of letters"),
        ("hostname: localhost", "service db: hostname: the name localhost is taken by the agent's sandbox"),
        ("healthcheck: {test: []}", "service db: healthcheck.test must be a command"),
        ("healthcheck: {test: [CMD]}", "service db: healthcheck.test must be a command"),
        ("healthcheck: true", "service db: healthcheck must be a mapping, got True"),
        ("healthcheck: {test: a, interval: 5}", "service db: healthcheck.interval must be a duration such as 1m30s, got 5"),
        ("healthcheck: {test: a, timeout: 0s}", "service db: healthcheck.timeout must be seconds above 0, at most 3600, got '0s'"),
        ("healthcheck: {test: a, interval: 2h}", "service db: healthcheck.interval must be seconds from 0 to 3600, got '2h'"),
        ("healthcheck: {test: a, retries: 0}", "service db: healthcheck.retries must be a whole number from 1 to 1000, got 0"),
        ("healthcheck: {test: a, every: 1s}", "service db: healthcheck.every is not honoured"),
        ("depends_on: [gone]", "service db: depends_on names 'gone', which does not exist"),
        ("depends_on: [main]", "service db waits for main, which starts last"),
        ("depends_on: [db]", "depends_on goes in a circle: db → db"),
        ("depends_on: 7", "service db: depends_on must be a list or a mapping of services, got 7"),
        ("depends_on: {a: {condition: service_completed_successfully}}", "write service_started or service_healthy"),
        ("depends_on: {a: {required: false}}", "service db: depends_on.a.required = False is not honoured"),
        ("networks: [back]", "the network 'back' is not among networks: add it there"),
        ("networks: {default: {ipv4_address: 10.0.0.1}}", "service db: networks.default.ipv4_address is not honoured"),
        ("build: {context: api, args: {A: 1}}", "service db: build.args is not honoured: write its values into the Dockerfile"),
        ("build: {context: api, args: [A=1]}", "service db: build.args is not honoured"),
        ("build: {context: api, target: a}", "service db: build.target is not honoured: write it into the Dockerfile"),
        ("build: ../api", "service db: build.context: '../api' is not a plain relative path"),
        ("build: api", "service db: build needs environment/api/Dockerfile, which does not exist in the task"),
    ],
)  # fmt: skip
def test_a_key_of_a_service_that_would_not_hold_is_refused_by_its_name(written: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        side(written)


@pytest.mark.parametrize(
    ("compose", "sentence"),
    [
        ("", "environment/docker-compose.yaml must be a mapping with keys, got None"),
        ("services: [", "environment/docker-compose.yaml line 1 is not YAML"),
        ("services: {a: {image: b}, a: {image: c}}", "line 1 is not YAML: the key 'a' comes twice"),
        ("services: &all {a: *all}", "line 1 is not YAML: an alias names what holds it"),
        ("x-a: &a [" + "1, " * 400 + "]\nx-b: &b [" + "*a, " * 300 + "]\nservices: {}", "line 2 is not YAML: it has more than 100,000 values"),
        ("x-t: &t " + "t" * 20_000 + "\nx-a: &a [" + "*t, " * 20 + "]\nx-b: [" + "*a, " * 40 + "]\nservices: {}",
         "line 3 is not YAML: it has more than 1,048,576 characters in its texts, each alias written out"),
        ("x-t: &t " + "t" * 20_000 + "\nservices: {main: {environment: {" + ", ".join(f"V{n}: *t" for n in range(60)) + "}}}",
         "line 2 is not YAML: it has more than 1,048,576 characters"),
        ("x-k: &k {? " + "k" * 20_000 + " : 1}\nx-b: [" + "*k, " * 60 + "]\nservices: {}",
         "line 2 is not YAML: it has more than 1,048,576 characters"),
        ("services: {main: {network_mode: host}}", "service main: network_mode = 'host' is not honoured: write network_mode into"),
        ("services: {main: {image: '${IMAGE:-ubuntu}'}}", "service main: image = '${IMAGE:-ubuntu}' is not honoured"),
        ("services: {main: {image: '${MAIN_IMAGE_NAME:-a}-b'}}", "service main: image = '${MAIN_IMAGE_NAME:-a}-b' is not honoured"),
        ("services: {main: {volumes: ['${HOST_LOGS_PATH:-a}:/b']}}", "service main: volumes has '${HOST_LOGS_PATH:-a}:/b', which is"),
        ("services: {main: {deploy: {resources: {limits: {cpus: '${CPUS:-2}', pids: 4}}}}}", "{'cpus': '${CPUS:-2}', 'pids': 4}"),
        ("services: {main: {environment: {A: '${CPUS}'}}}", "service main: '${CPUS}' takes a variable of the machine"),
        ("services: {}", "services must be a mapping of services, got {}"),
        ("services: {a: 7}", "the service 'a' must be a mapping with keys, got 7"),
        ("services: {'a b': {image: c}}", "'a b' cannot be the name of a service"),
        ("services: {a: {}}", "service a: it has neither image nor build: name one"),
        ("services: {a: {image: 'b c'}}", "service a: image must be the name of an image, got 'b c'"),
        ("services: {sandbox: {image: a}}", "service sandbox: the name is taken by the agent's sandbox"),
        ("services: {Localhost: {image: a}}", "service Localhost: the name is taken"),
        ("services: {a: {image: b, hostname: c}, C: {image: b}}", "the services a and C have the same name c"),
        ("services: {a: {image: b, depends_on: [c]}, c: {image: b, depends_on: [d]}, d: {image: b, depends_on: [a]}}",
         "depends_on goes in a circle: a → c → d → a: remove one of them"),
        ("services: {a: {image: b, depends_on: {c: {condition: service_healthy}}}, c: {image: b}}",
         "service a waits until c is healthy, which has no healthcheck"),
        ("services: {a: {image: b, volumes: ['v:/x']}, c: {image: b, volumes: ['v:/y']}}",
         "the services a and c share the volume v, which is not honoured"),
        ("services: {a: {image: b, networks: [one]}, c: {image: b}}\nnetworks: {one: {}}",
         "it has the networks default, one: a task has one"),
        ("services: {a: {image: b}}\nnetworks: {one: {external: true}}", "networks.one.external = True is not honoured"),
        ("services: {a: {image: b}}\nvolumes: {one: {driver: local}}", "volumes.one.driver = 'local' is not honoured"),
        ("services: {a: {image: b}}\nsecrets: {one: {file: a}}", "secrets = {'one': {'file': 'a'}} is not honoured"),
        ("services: {a: {image: b}}\nservice: {}", "'service' is not honoured: write services"),
        ("services: {main: {image: ubuntu}}", "service main: image = 'ubuntu' is not honoured: write it into task.toml"),
        ("services: {main: {build: other}}", "service main: build = 'other' is not honoured: the agent's image is made by"),
        ("services: {main: {build: {context: ., args: {A: 1}}}}", "service main: build.args is not honoured: write its values into"),
        ("services: {main: {command: serve}}", "service main: command = 'serve' is not honoured"),
        ("services: {main: {volumes: ['a:/b']}}", "service main: volumes has 'a:/b', which is not honoured"),
        ("services: {main: {deploy: {replicas: 2}}}", "service main: deploy = {'replicas': 2} is not honoured"),
        ("services: {main: {depends_on: [gone]}}", "service main: depends_on names 'gone', which does not exist"),
        ("services: {main: {working_dir: /x}}", "service main: working_dir = '/x' is not honoured: write it into task.toml: [environment].workdir"),
        ("services: {main: {hostname: x}}", "service main: hostname = 'x' is not honoured: services reach the sandbox as main"),
        ("services: {main: {networks: {default: {aliases: [x]}}}}", "service main: networks.aliases is not honoured"),
        ("services: {main: {privileged: true}}", "service main: privileged = True is not honoured"),
        ("services: {" + ", ".join(f"s{n}: {{image: a}}" for n in range(17)) + "}", "it has 17 services next to main, and may have 16"),
        ("#" * 200_000, "environment/docker-compose.yaml has 200,000 bytes, and may have 102,400"),
    ],
)  # fmt: skip
def test_a_file_that_would_not_mean_what_it_says_is_refused(compose: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        check_admissible(task(compose), CONTAINER)
    assert "environment/docker-compose.yaml" in str(refused.value) and "\n" not in str(refused.value)


def test_services_may_have_the_names_of_parts_that_no_sandbox_reaches_by_name() -> None:
    written = "services: {gateway: {image: nginx, networks: {default: {aliases: [agent]}}}, api: {image: a, hostname: runner}}"
    made = task(written)
    check_admissible(made, CONTAINER)
    assert hosts_line(made.composed.services) == "127.0.0.1 main gateway agent api runner\n"


@pytest.mark.parametrize("name", ["docker-compose.yml", "compose.yaml", "compose.yml"])
def test_a_compose_file_of_another_name_is_refused(name: str) -> None:
    made = Task.from_files(
        {**FILES, "environment/Dockerfile": b"FROM a", f"environment/{name}": b"services: {}"}
    )
    with pytest.raises(ValueError, match=re.escape(f"environment/{name} is not honoured: only")):
        check_admissible(made, CONTAINER)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("COPY ./compose.yml /project/", True),
        ("COPY a compose.yml b/", True),
        ("COPY . /app/", True),
        ("ADD --chmod=644 ./ /app", True),
        ('COPY ["compose.yml", "/app/"]', True),
        ('COPY "compose.yml" /app/', True),
        ("COPY 'compose.yml' /app/", True),
        ("COPY comp*.yml /app/", True),
        ("COPY a \\\n  compose.yml b/", True),
        ("COPY a compose.yml", False),  # it is what the image gets
        ("COPY --from=a . /app/", False),
        ("COPY a/*.yml /app/", False),
        ("COPY $NOTHING /app/", False),
        ('COPY "" /app/', False),
        ("COPY 'compose.yml /app/", False),
        ("RUN cat compose.yml x", False),
    ],
)
@pytest.mark.parametrize("folder", ["environment", "tests"])
def test_a_compose_file_that_the_dockerfile_next_to_it_copies_is_data_of_the_task(
    folder: str, line: str, taken: bool
) -> None:
    files = {
        f"{folder}/Dockerfile": f"FROM a\n{line}\n".encode(),
        f"{folder}/compose.yml": b"services: {}",
        f"{folder}/a": b"1",
    }
    found = " ".join(faults(Task.from_files({**FILES, **files}), CONTAINER))
    sentence = f"{folder}/compose.yml is not honoured: only environment/docker-compose.yaml is"
    assert (sentence in found) is not taken


def test_a_file_of_the_name_that_harbor_reads_is_refused_in_tests_even_where_their_dockerfile_copies_it() -> (
    None
):
    files = {"tests/Dockerfile": b"FROM a\nCOPY . /tests\n", "tests/docker-compose.yaml": b"services: {}"}
    found = " ".join(faults(Task.from_files({**FILES, **files}), CONTAINER))
    assert "tests/docker-compose.yaml is not honoured" in found


def test_a_file_of_an_environment_without_dockerfile_that_no_service_is_built_of_is_refused() -> None:
    compose = "services: {api: {build: api}}"
    files = {"environment/api/Dockerfile": b"FROM a", "environment/files/x": b"1"}
    check_admissible(task(compose, **files, **{"environment/README.md": b"1"}), CONTAINER)
    with pytest.raises(ValueError, match=r"environment/other/x is placed nowhere: "):
        check_admissible(task(compose, **files, **{"environment/other/x": b"1"}), CONTAINER)


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docker-compose.yaml is not UTF-8 text \(byte 10\)"):
        Task.from_files({**FILES, "environment/docker-compose.yaml": b"services: \xff"})


def test_texts_that_older_yaml_takes_for_other_kinds_stay_texts() -> None:
    found = mapping(
        "{a: yes, b: 012, c: 1:30, d: 1.10, e: 2020-01-01, f: true, g: 12, h: null, i: }", "x", plain=True
    )
    assert list(found.values()) == ["yes", "012", "1:30", "1.10", "2020-01-01", True, 12, None, None]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from(["", "a", "db", "main", "1s", "a:/b", "/x", "$", "${A}", "${A:-b}", "CMD"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)


def some(table: Mapping[str, ComposeKey]) -> st.SearchStrategy[dict[str, Any]]:
    """One or two keys that are not refused as such, with any values."""
    names = [
        name for name, key in table.items() if key.treatment is not Treatment.REFUSED and name != "services"
    ]
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=2)


@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(some(FILE), some(MAIN), some(SIDE))
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_sentence(
    file: dict[str, Any], main: dict[str, Any], side: dict[str, Any]
) -> None:
    whole = json.dumps(
        {**file, "services": {"main": main, "db": {"image": "a", **side}, "a": {"image": "b"}}}
    )
    try:
        found = read_services(Bundle.of({"docker-compose.yaml": whole.encode()}))
    except ValueError as refused:
        assert str(refused).startswith("environment/docker-compose.yaml") and "\n" not in str(refused)
    else:
        assert {each.name for each in found.services} == {"db", "a"}
