"""OCI images written by hand, for tests of what reads them."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxes.images.architecture import MACHINES, machine

SHELL = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, MACHINES[machine()]) + b"no program"


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of a layer: a file, unless `type` names another kind."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


Members = Sequence[tuple[tarfile.TarInfo, bytes]]
BASE: Members = (directory("bin"), member("bin/sh", SHELL, mode=0o755))


def layer(members: Members) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def oci(
    place: Path,
    *layers: bytes,
    compress: bool = False,
    architecture: str | None = None,
    config: Mapping[str, Any] | None = None,
    wrong: bool = False,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """An OCI directory at `place` with these layers. `wrong`: one byte of the last layer is not what its digest says. `others`: values in place of
    the usual ones in its `configuration`, `manifest` and `index`."""
    other = {"configuration": {}, "manifest": {}, "index": {}, **(others or {})}
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {
            "digest": f"sha256:{digest}",
            "size": len(data),
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
        }

    listed = [blob(gzip.compress(each) if compress else each) for each in layers]
    settings = {"architecture": architecture or machine(), "os": "linux", "config": dict(config or {})}
    settings |= other["configuration"]
    manifest = {"schemaVersion": 2, "config": blob(json.dumps(settings).encode()), "layers": listed}
    manifest |= other["manifest"]
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode())], **other["index"]}
    (place / "index.json").write_text(json.dumps(index))
    if wrong:
        file = blobs / listed[-1]["digest"].removeprefix("sha256:")
        file.write_bytes(file.read_bytes() + b"\0")
    return place


def archived(place: Path) -> Path:
    """The same as a tar archive next to it."""
    archive = place.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(place, arcname=".")
    return archive
