"""The message of a failed build: one sentence that names the step, then its last lines."""

import pytest

from sandboxes.images.complaint import at_step, complaint, is_download

WHAT = "environment/Dockerfile: its build"
SECRET = "RUN --mount=type=secret,id=tok cat /run/secrets/tok"


def output(step: str, *printed: str, error: str = "exit status 1") -> str:
    lines = [
        "STEP 1/4: FROM base",
        f"STEP 2/4: {step}",
        *printed,
        f'Error: building at STEP "{step}": while running runtime: {error}',
    ]
    return "\n".join(lines) + "\n"


def test_a_failed_step_is_named_with_its_last_lines() -> None:
    text = output("RUN make", "gcc -c a.c", "a.c:1: error: no", "subprocess exited with status 2")
    assert (
        complaint(WHAT, text)
        == f"{WHAT} failed at RUN make (exit status 1); its last lines: gcc -c a.c | a.c:1: error: no"
    )


@pytest.mark.parametrize(
    ("step", "printed", "hint"),
    [
        (SECRET, "cat: can't open '/run/secrets/tok'", "a build gets no secrets: remove the mount"),
        ("RUN --mount=type=ssh git clone x", "no", "a build gets no secrets: remove the mount"),
        ("RUN apt-get update", "Temporary failure resolving 'deb.debian.org'", "a host could not be reached"),
        ("COPY a /", "write: no space left on device", "the disk is full"),
        ("RUN make", "cp: error writing 'a': Disk quota exceeded", "the disk is full"),
        ("RUN npm ci", "npm error code ENOSPC", "the disk is full"),
    ],
)
def test_a_common_cause_is_named_before_the_lines(step: str, printed: str, hint: str) -> None:
    found = complaint(WHAT, output(step, printed))
    assert found.startswith(f"{WHAT} failed at {step} (exit status 1); {hint}")
    assert found.endswith(f"; its last lines: {printed}")


@pytest.mark.parametrize(
    ("step", "why", "hint"),
    [
        (
            "ADD --checksum=sha256:ab https://x/y /z",
            "ADD only supports the --chmod=<permissions> and the --chown=<uid:gid> flag",
            "ADD --checksum needs buildah 1.33 or later: install that on this machine, or check the file in a RUN (sha256sum -c)",
        ),
        (
            "COPY --chown=a --exclude=*.md --parents a /b",
            "COPY only supports the --chmod=<permissions> --chown=<uid:gid> and the --from=<image|stage> flags",
            "COPY --exclude needs buildah 1.38 or later and COPY --parents needs buildah 1.40 or later: install that on this machine, or remove it",
        ),
        (
            "run --network=none make",
            "RUN only supports the --mount flag",
            "RUN --network needs buildah 1.30 or later: install that on this machine, or remove it",
        ),
        ("COPY --new a /b", "COPY only supports the --from=<image|stage> flags", ""),
    ],
)
def test_a_flag_that_an_older_buildah_refuses_is_named_with_the_version_that_has_it(
    step: str, why: str, hint: str
) -> None:
    text = f'STEP 2/2: {step}\nError: building at STEP "{step}": {why}\n'
    assert complaint(WHAT, text) == f"{WHAT} failed at {step} ({why})" + (f"; {hint}" if hint else "")


@pytest.mark.parametrize(
    ("printed", "passes"),
    [
        ("E: Failed to fetch http://deb/x  503  Service Unavailable [IP: 1.2.3.4 80]", True),
        ("curl: (22) The requested URL returned error: 502", True),
        ("curl: (56) Recv failure: Connection reset by peer", True),
        ("ERROR: HTTP error 504 while getting https://pypi/x", True),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: (host='x', port=443): Read timed out.", True),
        ("npm ERR! code ETIMEDOUT", True),
        ("fatal: unable to access 'https://x/': Could not resolve host: x", True),
        ("dial tcp 1.2.3.4:443: i/o timeout", True),
        ("wget: ERROR 503: Service Unavailable.", True),
        (
            "E: Failed to fetch http://deb/x  File has unexpected size (1 != 2). Mirror sync in progress?",
            True,
        ),
        ("E: Failed to fetch http://deb/x  Hash Sum mismatch", True),
        ("Err:1 http://deb bookworm InRelease  Unable to connect to deb.debian.org:http:", True),
        ("curl: (7) Failed to connect to x port 443 after 3 ms: Couldn't connect to server", True),
        ("curl: (35) OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to x:443", True),
        ("curl: (22) The requested URL returned error: 521", True),
        ("wget: unable to resolve host address ‘x’", True),
        ("npm error code ECONNREFUSED", True),
        ("npm error code ENOTFOUND", True),
        ("npm error Socket timeout", True),
        ("dial tcp: lookup proxy.golang.org on 10.0.2.3:53: no such host", True),
        ("warning: spurious network error: [28] Timeout was reached (download of `x` failed)", True),
        ("fatal: early EOF", True),
        ("curl: (22) The requested URL returned error: 404", False),
        ("a.c:503: error: expected ;", False),
        ("503 passed, 2 failed", False),
        ("ERROR: No matching distribution found for nump", False),
    ],
)
def test_a_server_that_fails_a_download_is_not_the_tasks_fault(printed: str, passes: bool) -> None:
    text = output("RUN get it", printed)
    assert (
        is_download(text) is passes
        and ("could not be reached" in complaint(WHAT, text)) + ("a download failed" in complaint(WHAT, text))
        == passes
    )
    assert not is_download(output("RUN make", printed, *(f"line {n}" for n in range(20)))), "long before"


def test_long_steps_and_long_outputs_are_cut() -> None:
    found = complaint(WHAT, output(f"RUN echo {'a' * 9000}", *(f"line {n}" for n in range(5000))))
    assert len(found) < 1200 and found.endswith("line 4999")


def test_an_output_without_a_step_is_shown_as_it_is() -> None:
    assert complaint("making it", "E: no\n") == "making it failed; its last lines: E: no"
    assert complaint("making it", "") == "making it failed"
    assert (at_step(""), at_step("x\nSTEP 2/3: RUN sleep 8\n")) == ("", " at RUN sleep 8")
