"""The `git` program over foreign repositories: it runs no hooks, filters or prompts, fetches no submodules and no large-file storage,
speaks https, ssh and file alone, and ends after a time limit."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.contracts.quote import cut, quoted

PROTOCOLS: Final = ("https", "ssh", "file")
WHOLE: Final = "."
"""The path of a whole repository."""
_SSH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^:/-].*")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_SETTINGS: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.attributesFile=/dev/null",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "protocol.version=2",
    "safe.directory=*",
    "submodule.recurse=false",
    "advice.detachedHead=false",
    "gc.auto=0",
)


def is_url(source: str) -> bool:
    """Whether a source is to be cloned rather than read."""
    return "://" in source or "::" in source or _SSH.fullmatch(source) is not None


def check_url(url: str) -> str:
    """`url`, if it is one of a repository that may be cloned. ValueError otherwise."""
    if _SSH.fullmatch(url):
        return url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{quoted(url)} is not a URL: {error}") from None
    if parts.scheme not in PROTOCOLS or "::" in url.partition("://")[0] or not url.isprintable():
        raise ValueError(
            f"{quoted(url)} cannot be cloned: give a URL that begins with {', '.join(f'{each}://' for each in PROTOCOLS)}"
        )
    if parts.password is not None:
        raise ValueError(
            f"{quoted(f'{parts.scheme}://…@{parts.hostname}')} holds a password: leave it to git's credential helper"
        )
    if parts.scheme != "file" and not re.fullmatch(r"[A-Za-z0-9\[][A-Za-z0-9.:\]-]*", parts.hostname or ""):
        raise ValueError(f"{quoted(url)} names no host")
    return url


def name_of(url: str) -> str:
    """The name of a repository: the last part of its URL."""
    return re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")


def check_revision(revision: str) -> str:
    """`revision`, if it can name a commit, a branch or a tag. ValueError otherwise."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ValueError(f"{quoted(revision)} is not the name of a commit")
    return revision


@dataclass(frozen=True, slots=True)
class Git:
    """`timeout_s`: of each call."""

    timeout_s: float

    def run(
        self,
        *words: str,
        at: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ends: Sequence[int] = (0,),
    ) -> bytes:
        """Standard output of `git WORDS`. ValueError with the reason if it takes too long, or does not end with one of the exit codes `ends`."""
        name = next(word for word in words if not word.startswith("-"))
        arguments = ["git", *(part for each in _SETTINGS for part in ("-c", each)), *words]
        try:
            process = subprocess.Popen(
                arguments,
                cwd=at,
                env=_environment(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # its helpers end with it
            )
        except FileNotFoundError:
            raise ValueError("the program git is missing: install it") from None
        try:
            output, errors = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            raise ValueError(f"git {name} took longer than {self.timeout_s:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode not in ends:
            raise ValueError(f"git {name} failed: {_reason(errors)}")
        return output

    def diff(self, old: str, new: str, *, at: Path) -> str:
        """A patch between two directories below `at`, named `a` and `b`."""
        words = (
            "diff",
            "--no-index",
            "--no-prefix",
            "--binary",
            "--no-ext-diff",
            "--no-textconv",
            "--",
            old,
            new,
        )
        output = self.run(
            *words, at=at, environment={"GIT_CEILING_DIRECTORIES": str(at.resolve().parent)}, ends=(0, 1)
        )
        return output.decode(errors="surrogateescape")

    def fetch(self, url: str, revision: str | None, into: Path, paths: Sequence[str] | None = None) -> str:
        """Check out one commit of a repository below `into`, which is empty, without its history. `paths`: only these; `WHOLE` is all. Returns the
        commit."""
        check_url(url)
        wanted = "HEAD" if revision is None else check_revision(revision)
        self.run("init", "-q", "--template=", str(into))
        self.run("remote", "add", "origin", url, at=into)
        partial = [] if paths is None else ["--filter=blob:none"]
        self.run(
            "fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules", *partial, "origin", wanted, at=into
        )  # fmt: skip
        literal = {"GIT_LITERAL_PATHSPECS": "1"}
        if paths is None:
            self.run("checkout", "-q", "--detach", "FETCH_HEAD", at=into)
        elif there := self._there(paths, into):
            self.run("checkout", "-q", "FETCH_HEAD", "--", *there, at=into, environment=literal)
        return self.run("rev-parse", "FETCH_HEAD", at=into).decode().strip()

    def _there(self, paths: Sequence[str], into: Path) -> list[str]:
        """Those of the paths that the commit has."""
        if WHOLE in paths:
            return [WHOLE]
        listed = self.run("ls-tree", "-z", "--name-only", "FETCH_HEAD", "--", *paths, at=into)
        names = {name.decode(errors="surrogateescape") for name in listed.split(b"\0")}
        return sorted(names & set(paths))


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = ("GIT_CONFIG", "GIT_SSL_", "GIT_SSH")
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key.startswith(kept)
    }
    return {
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        **inherited,
        "GIT_ALLOW_PROTOCOL": ":".join(PROTOCOLS),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
        **more,
    }


def _reason(errors: bytes) -> str:
    """The line of git's error that says most."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return cut(next(iter(telling or lines), "it gave no reason"), 300)
