"""The program of bash that sends the files of a sandbox out, and the reader of what it sends.

In an image it begins at every real directory in `/` but the system's, at what is mounted there, and searches `/usr` for the files that no package
of the image's system brought. With GNU tar it sends an archive; else frames: a path, a NUL, a size, a NUL, the bytes. It does without find, too.
"""

import io
import tarfile
from typing import Final

FRAMES: Final = b"PENSTOCK FILES\n"
FILE_BYTES: Final = 8 << 20
PACK_BYTES: Final = 64 << 20
"""Of a pack of a git repository, which holds its history."""
SCRIPT: Final = r"""
root=$1 image=$2 most=$3 after=$4 seen=; shift 4
if command -v find >/dev/null; then
  list() { find "$@" -xdev -type f \( -size -16384 -o -name "*.pack" -size -131072 \) -print0; }
else
  shopt -s globstar dotglob nullglob
  list() {
    for from do for file in "$from"/**; do [ -f "$file" ] && [ ! -L "$file" ] && printf '%s\0' "$file"; done; done
  }
fi
owned() {
  cat "$root"/var/lib/dpkg/info/*.list
  awk '/^F:/ { d = substr($0, 3) } /^R:/ { print "/" d "/" substr($0, 3) }' "$root/lib/apk/db/installed"
  rpm -qal
} 2>/dev/null
# What was compiled from a file of a package is the system's, too.
others() {
  command -v awk >/dev/null && command -v tr >/dev/null || { list "$@"; return; }
  { owned | awk -v root="$root" 'length($0) { print root $0; print root "/usr" $0 }'; echo; list "$@" | tr '\0' '\n'; } | awk '
    !files { if ($0 == "") files = 1; else known[$0]; next }
    { source = $0; if (sub(/\/__pycache__\//, "/", source)) sub(/\.[^.\/]*(\.opt-[12])?\.pyc$/, ".py", source) }
    !($0 in known) && !(source in known)' | tr '\n' '\0'
}
start() {
  case "$seen" in *"|$1|"*) return 0 ;; esac
  seen="$seen|$1|"
  list "$1"
}
every() {
  for each do start "$each"; done
  [ "$image" = 1 ] || return 0
  while read -r _ at _; do
    case "$at" in /|/proc*|/sys*|/dev*|/run*|/usr|/bin|/sbin|/lib*|/boot*) ;; *) start "$root$at" ;; esac
  done <"$root/proc/mounts"
  for each in "$root"/* "$root"/.[!.]*; do
    [ -d "$each" ] && [ ! -L "$each" ] || continue
    case "${each#"$root"}" in /proc|/sys|/dev|/run|/usr|/bin|/sbin|/lib|/lib32|/lib64|/libx32|/boot) ;; *) start "$each" ;; esac
  done
  list "$root/usr/local" "$root/usr/src"
  others "$root/usr"
}
rest() {
  [ -n "$after" ] || { every "$@"; return; }
  every "$@" | while IFS= read -r -d '' file; do [ "$file" != "$after" ] || { cat; break; }; done
}
send() {
  case "$(tar --version 2>/dev/null)" in
    *"GNU tar"*) rest "$@" 2>/dev/null | tar -cf - --null -T - --ignore-failed-read 2>/dev/null ;;
    *)
      printf 'PENSTOCK FILES\n'
      rest "$@" 2>/dev/null | while IFS= read -r -d '' file; do
        [ -r "$file" ] && size=$(wc -c <"$file") && [ "$((size))" -le 67108864 ] || continue
        printf '%s\0%d\0' "$file" "$((size))"; head -c "$((size))" "$file"
      done 2>/dev/null ;;
  esac
}
if command -v head >/dev/null; then send "$@" | head -c "$most"; else send "$@"; fi
"""
"""Arguments: what stands before each path (empty in a sandbox with its own root), 1 for an image, the most bytes to send, the path after which to
begin (empty: at the first), the first places to search."""


def most(path: str) -> int:
    """The largest file that is read, in bytes."""
    return PACK_BYTES if path.endswith(".pack") else FILE_BYTES


def members(sent: bytes, root: str = "") -> dict[str, bytes]:
    """Path → content of what the program sent, as far as it came. `root`: what stands before the paths."""
    found = _framed(sent[len(FRAMES) :]) if sent.startswith(FRAMES) else _archived(sent)
    before = root.lstrip("/")
    return {
        "/" + path.lstrip("/").removeprefix(before).lstrip("/"): data
        for path, data in found.items()
        if len(data) <= most(path)
    }


def _archived(sent: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(sent), mode="r|") as archive:
            for member in archive:
                small = member.isreg() and member.size <= most(member.name)
                file = archive.extractfile(member) if small else None
                if file is not None:
                    found[member.name] = file.read()
    except (tarfile.TarError, EOFError):
        pass  # cut at the limit of output, or empty
    return found


def _framed(sent: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    while (path_end := sent.find(b"\0", at)) >= 0 and (size_end := sent.find(b"\0", path_end + 1)) >= 0:
        digits = sent[path_end + 1 : size_end]
        if not digits.isdigit():  # a file shrank while it was read
            break
        body = sent[size_end + 1 : size_end + 1 + int(digits)]
        found[sent[at:path_end].decode(errors="surrogateescape")] = body
        at = size_end + 1 + int(digits)
    return found
