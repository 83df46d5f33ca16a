"""Checks of files that cross the boundary: put, get, changed, binds, and files that must stay inside."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sandboxes.base import (
    ArtifactLimits,
    File,
    Lost,
    PathRefused,
    Provider,
    RefusedReason,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from sandboxes.conformance.registry import check, fail, output, require, shell


@check()
async def placed_files_arrive_with_their_bytes_and_modes(provider: Provider) -> None:
    data = bytes(range(256)) * 5000
    spec = SandboxSpec(
        files={"/app/a/b/data": File(data), "/tests/run.sh": File(b"#!/bin/sh\necho ran\n", 0o755)}
    )
    async with provider.open(spec) as sandbox:
        require(await sandbox.get("/app/a/b/data") == data, "other bytes came back")
        require((await sandbox.exec(["/tests/run.sh"])).stdout == b"ran\n", "the mode is lost")
        await output(sandbox, "echo more >>a/b/data && mkdir a/b/c && rm -r a")
        await sandbox.put({"/app/late": File(b"1"), "/solution/s": File(b"2"), "/home/agent/.x": File(b"3")})
        files = " ".join(map(sandbox.path, ("/app/late", "/solution/s", "/home/agent/.x")))
        require(await output(sandbox, f"cat {files}") == "123", "put did not arrive")


@check()
async def placed_links_and_directories_arrive_at_the_start_and_later(provider: Provider) -> None:
    links = {"/app/l": "d", "/tests/l": "d", "/solution/deep/l": "../d"}
    modes = {"/app/d": 0o700, "/tests/d": 0o755, "/solution/d": 0o700, "/app/s": 0o777}
    show = "cd {} && readlink l && stat -c %a d"

    async def check(sandbox: Sandbox) -> None:
        for place, expected in (("/app", "d\n700\n"), ("/tests", "d\n755\n")):
            require(
                await output(sandbox, show.format(sandbox.path(place))) == expected, f"{place} has others"
            )
        of_solution = await output(
            sandbox, f"cd {sandbox.path('/solution')} && readlink deep/l && test -d d && ls d"
        )
        require(of_solution == "../d\n", of_solution)
        found = await sandbox.changed()
        require(
            not (found.links or found.directories or found.deleted),
            f"what was placed counts as changed: {found}",
        )

    async with provider.open(SandboxSpec(links=links, modes=modes)) as sandbox:
        await check(sandbox)
    async with provider.open(SandboxSpec()) as sandbox:
        await sandbox.put({}, links=links, modes=modes)
        await check(sandbox)


@check()
async def what_a_program_wrote_can_be_read_up_to_a_size(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, f"printf 12345 >out; printf log >{sandbox.path('/logs/l')}")
        require(await sandbox.get("/app/out", max_bytes=5) == b"12345", "other bytes came back")
        require(await sandbox.get("/logs/l") == b"log", "other bytes came back")
        await refused(sandbox, "/app/out", RefusedReason.TOO_LARGE, max_bytes=4)
        try:
            await sandbox.get("/app/absent")
        except FileNotFoundError:
            return
        fail("an absent file was read")


@check()
async def links_and_special_files_are_never_read(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, "ln -s /etc/passwd link; ln -s /etc dir; mkfifo fifo; mkdir real")
        await refused(sandbox, "/app/link", RefusedReason.LINK)
        await refused(sandbox, "/app/dir/passwd", RefusedReason.LINK)
        await refused(sandbox, "/app/fifo", RefusedReason.SPECIAL)
        await refused(sandbox, "/app/real", RefusedReason.SPECIAL)


@check()
async def nothing_is_ever_written_through_a_link(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o777)
        target = Path(host, "target")
        target.write_text("untouched")
        async with provider.open(SandboxSpec()) as sandbox:
            await output(sandbox, f"ln -s {host} out; ln -s {target} file; ln -s {host}/absent absent")
            try:
                await sandbox.put({"/app/out/planted": File(b"bad")})
                fail("a directory link was followed")
            except PathRefused as error:
                require(error.reason is RefusedReason.LINK, error)
            await sandbox.put({"/app/file": File(b"good"), "/app/absent": File(b"good")})
            require(
                await output(sandbox, "cat file absent") == "goodgood", "a link in the way is not replaced"
            )
        require(target.read_text() == "untouched" and len(list(Path(host).iterdir())) == 1, "written outside")


@check()
async def paths_that_are_not_plain_are_the_callers_mistake(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        for path in ("/app/../etc/passwd", "app/x", "/etc/passwd", "/app", "/app//x", "/app/x/", "/app/a\0b"):
            try:
                await sandbox.put({path: File(b"")})
            except ValueError:
                continue
            fail(f"{path!r} was accepted")


@check()
async def changed_tells_added_modified_and_deleted_files(provider: Provider) -> None:
    names = ("same", "edited", "gone", "swapped", "mode", "shut", "d/edited")
    async with provider.open(
        SandboxSpec(files={f"/app/{name}": File(b"before") for name in names})
    ) as sandbox:
        nothing = await sandbox.changed()
        require(nothing.complete and not (nothing.added or nothing.modified or nothing.deleted), nothing)
        # The stealthy edit keeps size and time.
        script = "touch -r edited t; printf AFTER_ >edited; touch -r t edited; rm t gone; printf 1 >d/edited"
        await output(
            sandbox,
            f"{script}; rm swapped; mkdir swapped; chmod +x mode; chmod 600 shut; mkdir -p n/w; printf x >n/w/f",
        )
        await output(
            sandbox, f"touch {sandbox.path('/tmp/t')}; mkdir __pycache__; touch __pycache__/x.pyc; touch same"
        )
        found = await sandbox.changed()
        require({k: v.data for k, v in found.added.items()} == {"n/w/f": b"x"}, found.added)
        modified = {k: v.data for k, v in found.modified.items()}
        expected = {"d/edited": b"1", "edited": b"AFTER_", "mode": b"before", "shut": b"before"}
        require(modified == expected, modified)
        require(found.modified["mode"].mode & 0o100, "the mode is lost")
        require(found.modified["shut"].mode == 0o600, "permissions alone are not seen")
        require(found.deleted == ("gone", "swapped"), found.deleted)
        require(found.complete, found.refused)


@check()
async def remaining_links_and_directories_are_reported_and_restored_elsewhere(provider: Provider) -> None:
    async with provider.open(SandboxSpec(files={"/app/old": File(b"x"), "/app/d/f": File(b"x")})) as sandbox:
        await output(
            sandbox,
            "mkdir -p v2/bin e/m/p/ty; echo 2 >v2/n; ln -s v2 now; ln -s ../v2/n e/up; ln -sf now old",
        )
        await output(
            sandbox, "ln -s /usr/bin/env sh; ln -s gone dangles; rm d/f; chmod 700 v2/bin; chmod 750 e"
        )
        await output(sandbox, "ln -s . here; ln -s here/../x out; ln -s ../../tmp/x e/out; ln -s /logs/r log")
        found = await sandbox.changed()
    links = {
        "now": "v2",
        "e/up": "../v2/n",
        "old": "now",
        "sh": "/usr/bin/env",
        "dangles": "gone",
        "here": ".",
    }
    require(found.links == links, found.links)
    require(
        found.directories == {"d": 0o755, "e": 0o750, "e/m/p/ty": 0o755, "v2/bin": 0o700}, found.directories
    )
    reasons = dict.fromkeys(("out", "e/out", "log"), RefusedReason.OUTSIDE)
    require(dict(found.refused) == reasons and found.deleted == ("d/f",), found)
    spec = SandboxSpec(
        files={f"/app/{path}": file for path, file in found.added.items()},
        links={f"/app/{path}": target for path, target in found.links.items()},
        modes={f"/app/{path}": mode for path, mode in found.directories.items()},
    )
    async with provider.open(spec) as sandbox:
        listing = await output(
            sandbox, "cat now/n e/up; readlink old; stat -c %a e v2/bin; test -x sh; ls -A d e/m/p/ty"
        )
        require(listing.split() == ["2", "2", "now", "750", "700", "d:", "e/m/p/ty:"], listing)
        unchanged = await sandbox.changed()
        require(
            not (
                unchanged.added
                or unchanged.modified
                or unchanged.links
                or unchanged.directories
                or unchanged.deleted
            ),
            unchanged,
        )


@check()
async def a_link_is_never_placed_through_another_one(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o777)
        spec = SandboxSpec(links={"/app/out": host, "/app/out/planted": "x"})
        try:
            async with provider.open(spec):
                fail("a link was placed through another one")
        except (PathRefused, SandboxError):
            require(not list(Path(host).iterdir()), "placed outside")


@check()
async def changed_lets_only_regular_files_within_limits_out(provider: Provider) -> None:
    limits = ArtifactLimits(files=3, file_bytes=1000, total_bytes=1500, depth=4)
    async with provider.open(SandboxSpec(files={"/app/kept": File(b"x")})) as sandbox:
        await output(sandbox, "ln -s /etc/passwd link; mkfifo fifo; rm kept; mkfifo kept; mkdir -p a/b/c/d/e")
        await output(sandbox, "head -c 1001 /dev/zero >large; printf x >$(printf 'bad\\377name')")
        await output(sandbox, "for f in z1 z2 z3 z4 z5; do head -c 600 /dev/zero >$f; done; rm -f z0")
        found = await sandbox.changed(limits)
        require(set(found.added) == {"z1", "z2"} and not found.modified, found)
        require(
            found.deleted == ("kept",), "what cannot cross in its place leaves what was placed where it was"
        )
        reasons = {path.encode(errors="surrogateescape"): reason for path, reason in found.refused}
        expected = {
            b"link": RefusedReason.OUTSIDE,
            b"kept": RefusedReason.SPECIAL,
            b"fifo": RefusedReason.SPECIAL,
            b"large": RefusedReason.TOO_LARGE,
            b"bad\xffname": RefusedReason.NAME,
            b"a/b/c/d": RefusedReason.DEPTH,
            b"z3": RefusedReason.TOTAL,
            b"z4": RefusedReason.TOTAL,
            b"z5": RefusedReason.TOTAL,
        }
        require(reasons == expected and not found.complete, reasons)
        limited = await sandbox.changed(ArtifactLimits(files=1))
        require(
            len(limited.added) == 1 and RefusedReason.TOO_MANY in dict(limited.refused).values(),
            limited.refused,
        )


@check()
async def changed_counts_what_it_does_not_list(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await output(
            sandbox,
            "i=0; while [ $i -lt 120 ]; do ln -s /tmp/x l$i; i=$((i+1)); done; head -c 1001 /dev/zero >z",
        )
        found = await sandbox.changed(ArtifactLimits(file_bytes=1000))
        require(len(found.refused) == 100 and not found.complete, found.refused)
        require(found.counts == {RefusedReason.OUTSIDE: 120, RefusedReason.TOO_LARGE: 1}, found.counts)


@check()
async def changed_names_what_a_copy_is_without_and_copies_it(provider: Provider) -> None:
    placed = {f"/app/{name}": File(b"x") for name in ("same", "twin", "plain")}
    async with provider.open(SandboxSpec(files=placed)) as sandbox:
        require(not (await sandbox.changed()).lost, "nothing is lost of placed files")
        await output(
            sandbox, "chmod u+s same; ln -f plain twin; mkdir shared; chmod +t,g+s shared; echo 1 >shared/f"
        )
        await output(sandbox, "i=0; while [ $i -lt 9 ]; do ln plain l$i; i=$((i+1)); done; ln -s plain link")
        found = await sandbox.changed(ArtifactLimits(files=12))
        expected = [*((f"l{n}", Lost.HARD_LINK) for n in range(1, 6)), ("same", Lost.SET_USER_ID)]
        expected += [("shared", Lost.SET_GROUP_ID), ("shared", Lost.STICKY)]
        require(list(found.lost) == expected, found.lost)
        require(found.lost_counts[Lost.HARD_LINK] == 10 and len(found.lost_counts) == 4, found.lost_counts)
        require({*found.added} == {"shared/f", *(f"l{n}" for n in range(9))}, found.added)
        require(found.complete and not found.modified and not found.directories, found)


@check()
async def changed_gives_the_same_files_whatever_fits_into_memory(provider: Provider) -> None:
    async with provider.open(SandboxSpec(files={"/app/kept": File(b"x")})) as sandbox:
        await output(sandbox, "for f in a b c kept; do head -c 70000 /dev/urandom >$f; done; chmod 750 b")
        whole = await sandbox.changed()
        spooled = await sandbox.changed(ArtifactLimits(memory_bytes=80_000))
        again = await sandbox.changed(ArtifactLimits(memory_bytes=0))
        for found in (spooled, again):
            for kind in ("added", "modified"):
                contents = {path: (file.data, file.mode) for path, file in getattr(found, kind).items()}
                expected = {path: (file.data, file.mode) for path, file in getattr(whole, kind).items()}
                require(contents == expected, (kind, sorted(contents), sorted(expected)))


@check()
async def a_file_larger_than_its_disk_space_stays_inside(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, "truncate -s 7M sparse; truncate -s 60K small")
        found = await sandbox.changed()
        require(
            found.refused == (("sparse", RefusedReason.SPARSE),) and set(found.added) == {"small"},
            found.refused,
        )


@check()
async def bound_directories_are_visible_and_read_only(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o755)
        Path(host, "tool").write_text("#!/bin/sh\necho tool\n")
        Path(host, "tool").chmod(0o755)
        async with provider.open(SandboxSpec(binds={Path(host): "/opt/tools"})) as sandbox:
            require((await sandbox.exec(["/opt/tools/tool"])).stdout == b"tool\n", "not visible")


@check(isolation=True)
async def what_is_placed_for_grading_cannot_be_changed_inside(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o777)
        Path(host, "f").write_text("")
        spec = SandboxSpec(files={"/tests/t": File(b"1")}, binds={Path(host): "/opt/bound"})
        async with provider.open(spec) as sandbox:
            for script in (
                "echo 2 >/tests/t",
                "touch /tests/u",
                "rm /tests/t",
                "touch /opt/bound/g",
                "rm -r /tests",
            ):
                require(not (await shell(sandbox, script)).ok, f"{script!r} succeeded")
            require(await sandbox.get("/tests/t") == b"1", "the file changed")


async def refused(sandbox: Sandbox, path: str, reason: RefusedReason, max_bytes: int = 1000) -> None:
    try:
        await sandbox.get(path, max_bytes=max_bytes)
    except PathRefused as error:
        require(error.reason is reason, f"{path}: {error}")
        return
    fail(f"{path} was read")
