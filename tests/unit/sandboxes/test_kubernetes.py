"""The provider `kubernetes` against an API server of the real protocols: one pod per attempt under every loss, and none left.

./ops/test --tier containers runs every promise of the port through it (tests/containers/test_kubernetes.py).
"""

import asyncio
import json
import os
import signal
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import kubernetes_validate
import pytest
from pydantic import ValidationError

from orchestrator.settings.providers import ContainerSection, KubernetesSection
from sandboxes.base import (
    ArtifactLimits,
    File,
    KilledBy,
    Limits,
    PathRefused,
    RefusedReason,
    SandboxError,
    SandboxLost,
    SandboxSpec,
    SandboxSpent,
)
from sandboxes.conformance.registry import long_sleep, sleepers
from sandboxes.container.settings import ContainerSettings
from sandboxes.inside import frames
from sandboxes.inside.supervisor import Supervisor
from sandboxes.kubernetes import channel
from sandboxes.kubernetes.objects import Identity, label, name_of, pod, secret
from sandboxes.kubernetes.provider import KubernetesProvider, _used_up
from sandboxes.kubernetes.settings import KubernetesSettings
from sandboxes.owner import LeasedWork, WorkKind, working_on
from sandboxes.system import system_of
from tests.unit.sandboxes.clusters import HURT, attempts, cluster, gone, work
from tests.unit.sandboxes.fake_kubernetes import VERBS, Faults, place
from tests.unit.sandboxes.fake_runtime import Object
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]

VERSIONS = ("1.32", "1.34", "1.36")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_attempts_have_a_pod_each_and_leave_none_whatever_is_lost() -> None:
    """A thousand of them: tests/integration/runner/test_thousand_pods.py."""
    await attempts(30, Faults(**HURT, seed=7), least=0)


async def test_owners_that_die_leave_pods_that_end_themselves_and_are_removed_by_label() -> None:
    async with cluster(ttl_s=4.0) as (fake, provider):
        dead = KubernetesProvider(provider.settings)
        dead._delete = dead._end = nothing  # type: ignore[method-assign, assignment]

        async def die(rollout: int) -> None:
            with working_on(work(rollout)):
                async with dead.open(SandboxSpec()):
                    pass

        async with anyio.create_task_group() as group:
            for rollout in range(20):
                group.start_soon(die, rollout)
        async with provider.open(SandboxSpec()) as alive:
            assert len(fake.pods) == 21

            async def tidied() -> bool:
                await provider.remove_leftovers()
                return set(fake.pods) == {alive.id}

            await eventually(tidied, every_s=0.1)
            with pytest.raises(FileNotFoundError):  # it is still alive
                await alive.get("/app/absent")
        await gone(fake)


async def nothing(*_: object) -> None:
    return


async def test_a_pod_of_another_owner_is_not_adopted_and_not_removed() -> None:
    async with cluster() as (fake, provider):
        other = KubernetesProvider(provider.settings)
        with working_on(work(5)):
            async with provider.open(SandboxSpec()) as mine:
                with working_on(work(5)), pytest.raises(SandboxError, match="another worker holds its lease"):
                    async with other.open(SandboxSpec()):
                        pass
                assert list(fake.pods) == [mine.id]


async def test_sandboxes_of_one_attempt_have_names_of_their_own_and_labels_say_whose_they_are() -> None:
    async with cluster() as (fake, provider):
        with working_on(LeasedWork(run="Run_1", rollout=12, attempt=3, epoch=7, kind=WorkKind.VERIFICATION)):
            async with provider.open(SandboxSpec()) as one, provider.open(SandboxSpec()) as two:
                assert one.id.endswith("-r12-a3-e7-verification-1") and two.id.endswith(
                    "-r12-a3-e7-verification-2"
                )
                labels = fake.pods[one.id]["metadata"]["labels"]
                wanted = {"run": "Run_1", "rollout": "12", "attempt": "3", "epoch": "7", "sandbox": one.id}
                assert labels | {f"penstock.dev/{key}": value for key, value in wanted.items()} == labels


async def test_a_program_goes_on_while_the_line_is_lost_and_nothing_of_its_output_is() -> None:
    async with cluster(processes=True) as (fake, provider):
        async with provider.open(SandboxSpec()) as sandbox:
            script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.005; done"
            process = await sandbox.start(["sh", "-c", script])
            seen = b""
            for number in range(1, 5):
                while seen.count(b"\n") < 50 * number:
                    new, _ = await process.read()
                    assert new, "it ended"
                    seen += new
                await fake.drop_lines()
            result = await process.wait()
            assert result.ok, result
            assert result.stdout.decode().split("\n")[:-1] == [f"line {i}" for i in range(300)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only a supervisor with rights becomes another user")
async def test_programs_of_a_pod_run_as_the_uid_of_their_task() -> None:
    async with cluster(processes=True) as (_, provider):
        named = KubernetesProvider(replace(provider.settings, user_namespaces=True))
        async with named.open(SandboxSpec(user="4321", files={"/app/in": File(b"text", 0o600)})) as sandbox:
            result = await sandbox.exec(
                ["sh", "-c", "id -u; echo $USER; cat in; touch new && stat -c %u new"]
            )
            assert result.stdout.decode() == "4321\n4321\ntext4321\n", result
            assert system_of(sandbox) == provider.settings.image
        for user in ("root", "worker", "65536"):
            with pytest.raises(
                ValueError, match=f"programs cannot run as {user}: programs of a pod run as a uid"
            ):
                async with named.open(SandboxSpec(user=user)):
                    pass
        with pytest.raises(
            ValueError,
            match=r"programs cannot run as 4321: pods need sandbox\.kubernetes",
        ):
            async with provider.open(SandboxSpec(user="4321")):
                pass


async def test_a_line_that_was_up_for_long_is_made_again_however_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s)
    monkeypatch.setattr(channel, "time", clock)
    async with cluster(ttl_s=10.0) as (fake, provider):
        async with provider.open(SandboxSpec(files={"/app/kept": File(b"x")})) as sandbox:
            ahead_s = 5.1  # longer than a line may be away
            await fake.break_lines()
            await eventually(lambda: not fake.lines)
            assert await sandbox.get("/app/kept") == b"x"


async def test_work_that_is_cancelled_around_its_sandbox_ends_its_program_and_its_pod() -> None:
    async with cluster(processes=True) as (fake, provider):
        with anyio.fail_after(60):
            with anyio.CancelScope() as lease:
                async with provider.open(SandboxSpec()) as sandbox:
                    asyncio.get_running_loop().call_later(0.5, lease.cancel)
                    await sandbox.exec(["sleep", "100"])
            assert lease.cancelled_caught
            await gone(fake)


async def test_a_program_killed_before_it_has_started_is_dead() -> None:
    async with cluster(processes=True) as (_, provider):
        async with provider.open(SandboxSpec()) as sandbox:
            # The order is there before the process that answers for the program has read what to start.
            process = await sandbox.start(["sleep", "1000"])
            with anyio.fail_after(60):
                assert (await process.kill()).killed_by is KilledBy.CALLER
            assert (await sandbox.exec(["true"])).ok


async def test_a_token_stands_in_no_pod_no_command_line_and_no_file_that_another_can_read() -> None:
    async with cluster(processes=True) as (fake, provider):
        async with provider.open(SandboxSpec(env={"OWN": "token-1"})) as sandbox:
            seen = await sandbox.exec(
                ["sh", "-c", "echo $OWN $TOKEN; cat /etc/penstock/session.json /proc/1/environ"],
                env={"TOKEN": "token-2"},
            )
            assert seen.stdout == b"token-1 token-2\n" and seen.stderr.count(b"Permission denied") == 2
            assert "token-" not in json.dumps(fake.pods) and "token-2" not in str(fake.used)


async def test_a_pod_that_was_ended_for_its_memory_is_the_programs_doing() -> None:
    async with cluster() as (fake, provider):
        async with provider.open(SandboxSpec()) as sandbox:
            [runtime] = fake.runtimes.values()
            runtime.out_of_memory = True
            assert runtime.supervisor is not None
            runtime.supervisor.cancel()
            with anyio.fail_after(60):
                await eventually(lambda: fake.pods[sandbox.id]["status"]["phase"] != "Running")
                await fake.drop_lines()
                closed: Any = sandbox
                await eventually(lambda: closed.out_of is not None)
            result = await sandbox.exec(["true"])
            assert result.killed_by.value == "memory" and result.exit_code == 137
            with pytest.raises(SandboxSpent, match=r"has ended: .*OOMKilled"):
                await sandbox.changed()


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ('Usage of EmptyDir volume "place-0" exceeds the limit "256Mi". ', KilledBy.DISK),
        ('Usage of EmptyDir volume "shm" exceeds the limit "512Mi". ', KilledBy.MEMORY),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 320Mi. ", KilledBy.DISK),
        ('Container sandbox exceeded its local ephemeral storage limit "320Mi". ', KilledBy.DISK),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1Mi. ", None),
        (
            "The node was low on resource: ephemeral-storage. Container sandbox was using 20Mi, request is 0, has larger consumption of"
            " ephemeral-storage. ",
            None,
        ),
        ("The node was low on resource: memory. ", None),
        ("The node had condition: [DiskPressure]. ", None),
        ("", None),
    ],
)
def test_an_evicted_pod_is_the_programs_doing_only_if_it_was_over_its_own_limit(
    message: str, limit: KilledBy | None
) -> None:
    assert _used_up({"status": {"phase": "Failed", "reason": "Evicted", "message": message}}) is limit
    assert _used_up({"status": {"phase": "Failed", "reason": "Shutdown", "message": message}}) is None


async def test_a_program_whose_own_supervisor_the_kernel_ended_for_memory_was_ended_for_its_memory() -> None:
    async with cluster(processes=True) as (_, provider):
        async with provider.open(SandboxSpec()) as sandbox:
            token = long_sleep()
            process = await sandbox.start(["sh", "-c", f"echo started; exec sleep {token}"])
            assert (await process.read())[0] == b"started\n"
            programs = await eventually(lambda: sleepers(token))
            answers = Path(f"/proc/{programs[0]}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(answers), signal.SIGKILL)
            result = await process.wait()
            assert (result.killed_by, result.exit_code, result.stdout) == (KilledBy.MEMORY, 137, b"started\n")
            assert (await sandbox.exec(["true"])).ok and not sleepers(token)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ({"phase": "Pending"}, "does not run after 1 s (sandbox.kubernetes.start_s): Pending"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
                ],
            },
            "does not run after 1 s (sandbox.kubernetes.start_s): Pending, ImagePullBackOff, no such image",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "InvalidImageName", "message": "no such name"}}}
                ],
            },
            "cannot start: InvalidImageName: no such name",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"},
            "ended before it could be used: Failed, Evicted",
        ),
    ],
)
async def test_a_pod_that_does_not_start_is_reported_with_the_clusters_reason(
    status: Object, sentence: str
) -> None:
    async def pending(pod: Object) -> None:
        pod["status"] = status
        fake.record("pods", "MODIFIED", pod)
        await anyio.sleep_forever()

    async with cluster(start_s=1.0) as (fake, provider):
        fake.pending = pending
        with pytest.raises(SandboxError) as failed:
            async with provider.open(SandboxSpec()):
                pass
        assert sentence in str(failed.value)
        await gone(fake)


async def test_what_the_account_may_not_do_is_a_problem_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.sandboxes.fake_kubernetes.VERBS", VERBS - {("create", "secrets")})
    async with cluster() as (_, provider):
        [problem] = await provider.problems()
        assert (
            'refuses to create a secret: 403 Forbidden: secrets is forbidden: the account cannot create resource "secrets"'
            in problem
        )


async def test_outside_a_pod_the_server_has_to_be_named() -> None:
    assert "KUBERNETES_SERVICE_HOST" not in os.environ
    [problem] = await KubernetesProvider(KubernetesSettings(image="x")).problems()
    assert problem.startswith("sandbox.kubernetes.api_server: this process does not run in a pod")


@pytest.mark.parametrize("version", VERSIONS)
def test_pod_and_secret_are_valid_in_every_version(version: str) -> None:
    settings = KubernetesSettings(
        image="x:1",
        runtime_class="gvisor",
        user_namespaces=True,
        node_selector={"pool": "sandboxes"},
        image_pull_secrets=("registry",),
        labels={"team": "a"},
    )
    identity = Identity(name="penstock-1", opening="o", work=work(1), owner="host/runner", uid=1000)
    made = pod(identity, SandboxSpec(limits=Limits(), binds={Path("/opt/x"): "/opt/x"}), settings)
    for thing in (made, secret(identity, settings, {"uid": 1}, "u")):
        kubernetes_validate.validate(thing, version, strict=True)
    assert "env" not in made["spec"]["containers"][0]


def test_a_name_follows_from_the_attempt_and_fits() -> None:
    assert name_of(work(1), 1) == name_of(work(1), 1)
    names = {
        name_of(LeasedWork(run=run, rollout=1, attempt=1, epoch=epoch, kind=WorkKind.ATTEMPT), n)
        for run in ("a", "A", "-")
        for epoch in (1, 2)
        for n in (1, 2)
    }
    assert len(names) == 12
    long = {
        name_of(
            LeasedWork(run="x" * 60, rollout=2**40 + n, attempt=99, epoch=2**30, kind=WorkKind.VERIFICATION),
            9,
        )
        for n in range(20)
    }
    assert len(long) == 20 and all(len(name) <= 63 and name == label(name) for name in long)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"ttl_s": 0}, "ttl_s: must be above 0"),
        ({"gateway": "gateway"}, "gateway: must be host:port"),
        ({"api_server": "http://x"}, "api_server: must begin with https://"),
        ({"active_s": 10}, "active_s: 10 is less than start_s"),
    ],
)
def test_bad_settings_are_refused_by_key(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        KubernetesSection(**table)
    assert sentence in str(refused.value)


def test_sections_and_settings_are_the_same() -> None:
    for section, settings in (
        (ContainerSection(), ContainerSettings()),
        (KubernetesSection(), KubernetesSettings()),
    ):
        values = {name: value for name, value in section.model_dump().items()}
        assert values == {
            each.name: getattr(settings, each.name) for each in fields(settings) if each.name in values
        }
        assert {each.name for each in fields(settings)} - set(values) <= {"owner"}


async def test_what_would_have_to_be_copied_into_every_pod_is_limited(tmp_path: Path) -> None:
    with place() as directory:
        (directory / "tool").mkdir()
        (directory / "tool" / "big").write_bytes(b"x" * (2 << 20))
        (directory / "tool").chmod(0o755)
        async with cluster(copy_mb=1) as (fake, provider):
            with pytest.raises(
                SandboxError,
                match=r"/opt/tool would have to be copied into every pod, 2 MB: .*sandbox\.kubernetes\.baked",
            ):
                async with provider.open(SandboxSpec(binds={directory / "tool": "/opt/tool"})):
                    pass
            assert not fake.made
            baked = KubernetesProvider(replace(provider.settings, baked=("/opt/tool",)))
            async with baked.open(SandboxSpec(binds={directory / "tool": "/opt/tool"})):
                assert len(fake.made) == 1


def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 64 << 10)
    # A line that is lost again and again would end only with the test.
    monkeypatch.setattr(channel, "_AGAIN_S", 0.0)


async def test_files_that_do_not_fit_into_one_answer_are_over_the_limit_of_all_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_frames(monkeypatch)
    async with cluster() as (fake, provider):
        async with provider.open(SandboxSpec(cwd="/app")) as sandbox:
            [runtime] = fake.runtimes.values()
            for number in range(4):
                (runtime.place / f"app/{number}").write_bytes(b"x" * (16 << 10))
            with anyio.fail_after(60):
                found = await sandbox.changed(ArtifactLimits())
            assert len(found.added) == 3 and not found.complete
            assert [reason for _, reason in found.refused] == [RefusedReason.TOTAL]
            (runtime.place / "app/large").write_bytes(b"x" * (64 << 10))
            with anyio.fail_after(60), pytest.raises(PathRefused, match="large"):
                await sandbox.get("/app/large")
            for number in range(300):
                (runtime.place / "app" / f"{number:0>200}").touch()
            with (
                anyio.fail_after(60),
                pytest.raises(SandboxError, match="and the line to a pod carries 65,536"),
            ):
                await sandbox.changed(ArtifactLimits())
            assert await sandbox.get("/app/0") == b"x" * (16 << 10)
            assert sandbox.channel is not None and sandbox.channel.lines == 1  # type: ignore[attr-defined]


async def test_files_that_do_not_fit_into_one_request_are_placed_by_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_frames(monkeypatch)
    with place() as directory:
        (directory / "tool").mkdir(mode=0o755)
        for number in range(4):
            (directory / "tool" / f"{number}").write_bytes(b"x" * (30 << 10))
        (directory / "tool").chmod(0o755)
        async with cluster() as (fake, provider):
            spec = SandboxSpec(
                files={f"/app/{number}": File(b"y" * (30 << 10)) for number in range(3)},
                binds={directory / "tool": "/opt/tool"},
            )
            with anyio.fail_after(60):
                async with provider.open(spec) as sandbox:
                    assert await sandbox.get("/app/2") == b"y" * (30 << 10)
                    [runtime] = fake.runtimes.values()
                    assert len(os.listdir(runtime.place / "opt/tool")) == 4
                    large = b"z" * (64 << 10)
                    with pytest.raises(PathRefused, match="large"):
                        await sandbox.put({"/app/large": File(large)})
                    assert (await sandbox.exec(["cat"], stdin=large)).exit_code == 126
                    assert await sandbox.get("/app/0") == b"y" * (30 << 10)
            with (
                anyio.fail_after(60),
                pytest.raises(SandboxError, match="cannot place /app/large into the pod"),
            ):
                async with provider.open(SandboxSpec(files={"/app/large": File(large)})):
                    pass


async def test_a_request_that_ends_every_line_loses_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_AGAIN_S", 0.0)
    async with cluster() as (_, provider):
        async with provider.open(SandboxSpec()) as sandbox:

            async def refuse(*_: object) -> None:
                raise ValueError("not a frame")

            monkeypatch.setattr(Supervisor, "files", refuse)
            monkeypatch.setattr(Supervisor, "spawn", lambda _, work: end(work))
            with (
                anyio.fail_after(60),
                pytest.raises(SandboxLost, match="20 lines ended before the pod answered"),
            ):
                await sandbox.get("/app/any")


def end(work: Any) -> None:
    """The supervisor refuses a request, and ends the line for it."""
    work.close()
    raise ValueError("not a frame")


async def test_throttling_is_heeded() -> None:
    async with cluster(faults=Faults(throttled=1.0)) as (fake, provider), anyio.create_task_group() as tasks:

        async def until_throttled() -> None:
            await eventually(lambda: fake.faults.happened["throttled"])
            fake.faults.throttled = 0.0

        tasks.start_soon(until_throttled)
        began = time.monotonic()
        async with provider.open(SandboxSpec()):
            assert time.monotonic() - began > 0.9  # Retry-After: 1
            assert fake.faults.happened["throttled"] <= 3
