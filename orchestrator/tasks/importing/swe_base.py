"""The files of the base commit that decide how tests run: test.sh restores them when the agent has ended.

The agent may have changed each file of its work directory, the repository's objects and the settings of git in it included. So nothing of it is
trusted: an object counts if its bytes have the hash that the commit names, and the hidden tests are patched apart from the repository.
"""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

CONFIGURES: Final = (
    r"(_?pytest|pluggy|iniconfig|sitecustomize|usercustomize)(\.(pyc?|(.*\.)?so))?|conftest\.py"
    r"|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml"
)
"""Names of files and packages that change what runs the tests, in any directory."""
_DECLARES: Final = r"setup\.(py|cfg)|pyproject\.toml|entry_points\.txt"
"""Names of files in which a distribution declares a plugin of pytest."""
_PLUGINS: Final = b"pytest11"
SCRIPT: Final = "restore.py"
GIVEN: Final = "base.json"
PACKED: Final = "base.tar.gz"

RESTORE: Final = '''\
"""Files of the base commit, for /tests/test.sh: `restore.py DIRECTORY` writes them below DIRECTORY/files, links to directories through which
the test command reaches some below DIRECTORY/links, and into DIRECTORY/removed the paths that the agent may have made or changed, each with a NUL."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile


def objects(names):
    """Id -> bytes of objects of the repository, each with the hash that is its id."""
    wrapper = os.environ.get("PENSTOCK_UNTRUSTED")
    command = ["python3", "-I", wrapper, "120"] if wrapper else []
    command += ["git", "--no-replace-objects", "-c", "safe.directory=*", "cat-file", "--batch"]
    wanted = "".join(name + "\\n" for name in names).encode()
    sent = subprocess.run(command, input=wanted, stdout=subprocess.PIPE).stdout
    found, at = {}, 0
    for name in names:
        end = sent.find(b"\\n", at)
        words = sent[at:end].split()
        if end < 0 or len(words) != 3 or not words[2].isdigit():
            raise ValueError("the repository lacks the object " + name)
        data = sent[end + 1 : end + 1 + int(words[2])]
        at = end + 2 + int(words[2])
        made = hashlib.sha256 if len(words[0]) == 64 else hashlib.sha1
        if not made(words[1] + b" " + words[2] + b"\\0" + data).hexdigest().startswith(name):
            raise ValueError("the repository holds other bytes as the object " + name)
        found[name] = data
    return found


def tree(commit):
    """Path -> (mode, id) of the files of a commit, and its directories."""
    files, directories = {}, {""}
    above = {objects([commit])[commit].split(b"\\n", 1)[0].split()[1].decode(): [""]}
    while above:
        found, below = objects(sorted(above)), {}
        for name, places in above.items():
            data, at = found[name], 0
            while at < len(data):
                end = data.index(b"\\0", at)
                mode, _, entry = data[at:end].partition(b" ")
                at = end + 1 + len(name) // 2
                inner = data[end + 1 : at].hex()
                for place in places:
                    path = place + os.fsdecode(entry)
                    if mode == b"40000":
                        directories.add(path)
                        below.setdefault(inner, []).append(path + "/")
                    elif mode != b"160000":
                        files[path] = mode, inner
        above = below
    return files, directories


def write(path, mode, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if mode == b"120000":
        os.symlink(data, path)
        return
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o755 if mode == b"100755" else 0o644)


def followed(path, files, given):
    """A path without the links of the commit above it, and those links with their targets."""
    links = {}
    for _ in range(40):
        parts = path.split("/")
        above = ("/".join(parts[:n]) for n in range(1, len(parts)))
        link = next((p for p in above if files.get(p, (b"",))[0] == b"120000" and p not in given["changed"]), None)
        if link is None:
            break
        if link not in links:
            links[link] = os.fsdecode(objects([files[link][1]])[files[link][1]])
        path = os.path.normpath(os.path.join(os.path.dirname(link), links[link], path[len(link) + 1 :]))
    return path, links


def plugs(path):
    """Whether a distribution's directory adds a plugin to pytest. One behind a link counts as one that does."""
    if not re.search(r"\\.(dist|egg)-info$", path, re.IGNORECASE):
        return False
    file = os.path.join(path, "entry_points.txt")
    if os.path.islink(path) or os.path.islink(file):
        return True
    if not os.path.isfile(file):
        return False
    with open(file, "rb") as opened:
        return b"pytest11" in opened.read()


def below(top):
    return {os.path.relpath(os.path.join(at, name), top) for at, _, names in os.walk(top) for name in names}


def main():
    to, linked = (os.path.join(sys.argv[1], name) for name in ("files", "links"))
    os.mkdir(to)
    os.mkdir(linked)
    with open("/tests/base.json", encoding="utf-8") as file:
        given = json.load(file)
    pattern, kept, old, directories = re.compile(given["configures"]), set(given["kept"]), set(given["old"]), None
    plugins, links = given["plugins"], given["links"]

    def configures(path):
        return pattern.fullmatch(os.path.basename(path)) and path not in kept

    if given["commit"]:
        files, directories = tree(given["commit"])
        for path in sorted(old):
            real, above = followed(path, files, given)
            if above and real in files and real not in given["changed"]:
                old.add(real)
                links.update(above)
        wanted = {path for path in files if path in old or configures(path)}
        for _ in range(2):  # the second time, the files that links of the first lead to
            found = objects(sorted({files[path][1] for path in wanted}))
            targets = set()
            for path in wanted:
                mode, data = files[path][0], found[files[path][1]]
                write(os.path.join(to, path), mode, data)
                if mode == b"120000":
                    targets.add(os.path.normpath(os.path.join(os.path.dirname(path), os.fsdecode(data))))
            wanted = {path for path in targets if path in files and not os.path.lexists(os.path.join(to, path))}
        declares = re.compile(given["declares"])
        named = {files[path][1] for path in files if declares.fullmatch(os.path.basename(path))}
        plugins = any(b"pytest11" in data for data in objects(sorted(named)).values())
    elif os.path.exists("/tests/base.tar.gz"):
        with tarfile.open("/tests/base.tar.gz") as archive:
            archive.extractall(to)
    for path, target in links.items():
        write(os.path.join(linked, path), b"120000", target)
    placed = below(to) | below("/tests/files") | set(given["new"]) | set(links)
    removed = placed | {os.path.join(os.path.dirname(path), "__pycache__") for path in placed}
    for at, inner, names in os.walk("."):
        place = os.path.relpath(at, ".") if at != "." else ""
        removed.update(
            path
            for path in (os.path.join(place, name) for name in inner + names)
            if configures(path) or not plugins and plugs(path)
        )
        inner[:] = [
            name
            for name in inner
            if name != ".git" and (directories is None or os.path.join(place, name) in directories)
        ]
    removed -= directories or set(given["packages"])
    with open(os.path.join(sys.argv[1], "removed"), "wb") as file:
        file.write(b"".join(os.fsencode(path) + b"\\0" for path in sorted(removed)))


main()
'''


def configure(paths: Iterable[str]) -> list[str]:
    """Those of the paths that change what runs the tests, and such directories above them."""
    found = dict.fromkeys(
        str(each)
        for path in paths
        for each in (*reversed(PurePosixPath(path).parents), PurePosixPath(path))
        if re.fullmatch(CONFIGURES, each.name)
    )
    return list(found)


def given(
    commit: str | None,
    *,
    old: Sequence[str],
    new: Sequence[str],
    kept: Sequence[str],
    base: Path | None = None,
    changed: Collection[str] = (),
    links: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """base.json. `commit`: of the repository in the work directory, None for files that lie in base.tar.gz; `old`: files that come from the commit;
    `new`: files that it does not have; `kept`: files that configure, and stay the agent's; `base`: a directory with the commit's files;
    `changed`: by the solution or the tests' patch; `links`: to directories, with their targets, through which the test command reaches a file."""
    there = [] if base is None else list(base.rglob("*"))
    found = {
        "commit": commit,
        "old": list(old),
        "new": list(new),
        "kept": list(kept),
        "changed": list(changed),
        "links": dict(links),
        "configures": CONFIGURES,
        "declares": _DECLARES,
        "packages": [
            str(path.relative_to(base))
            for path in there
            if base is not None and path.is_dir() and configure([path.name])
        ],
        "plugins": any(
            _PLUGINS in path.read_bytes()
            for path in there
            if re.fullmatch(_DECLARES, path.name) and path.is_file()
        ),
    }
    return json.dumps(found, indent=1) + "\n"


def packed(base: Path, kept: Collection[str]) -> bytes:
    """base.tar.gz: the files below `base` that change what runs the tests, but for `kept`; empty without any."""
    inside = base.resolve()  # a link may lead out
    paths = sorted(
        str(path.relative_to(base))
        for path in base.rglob("*")
        if path.is_file() and path.resolve().is_relative_to(inside)
    )
    if not (
        found := [path for path in paths if re.fullmatch(CONFIGURES, Path(path).name) and path not in kept]
    ):
        return b""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for path in found:
            data = (base / path).read_bytes()
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755 if (base / path).stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()
