"""A package registry on loopback that may be away at first, and wheels for it."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

NO_SETTINGS = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "0",
    "UV_NO_CONFIG": "1",
    "UV_NO_CACHE": "1",
    "UV_HTTP_RETRIES": "0",
}
"""Environment of pip and uv: no other source of packages, no cache, one request each."""


def write_wheel(place: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """`files` are by their paths in the wheel; `{data}` is the directory of what goes outside the packages."""
    path = place / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside.replace("{data}", f"{name}-{version}.data"), text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class PackageIndex(ThreadingHTTPServer):
    """Serves the wheels of a directory at `url`. It answers the next `away` requests with 503."""

    def __init__(self, place: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.place, self.away = place, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"

    @property
    def environment(self) -> dict[str, str]:
        """For pip and uv."""
        return {**NO_SETTINGS, "PIP_INDEX_URL": self.url, "UV_DEFAULT_INDEX": self.url}


class _Handler(BaseHTTPRequestHandler):
    server: PackageIndex

    def do_GET(self) -> None:
        if self.server.away:
            self.server.away -= 1
            self.send_error(503)
        elif found := re.fullmatch(r"/simple/([a-z0-9-]+)/", self.path):
            wheels = sorted(self.server.place.glob(f"{found[1]}-*.whl"))
            links = "".join(f'<a href="/files/{wheel.name}">{wheel.name}</a>' for wheel in wheels)
            self._answer("text/html", f"<html><body>{links}</body></html>".encode(), known=bool(wheels))
        else:
            wheel = self.server.place / Path(self.path).name
            self._answer(
                "application/zip", wheel.read_bytes() if wheel.exists() else b"", known=wheel.exists()
            )

    do_HEAD = do_GET

    def _answer(self, kind: str, body: bytes, *, known: bool) -> None:
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(place: Path) -> Iterator[PackageIndex]:
    with PackageIndex(place) as index:
        thread = Thread(target=index.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield index
        finally:
            index.shutdown()
            thread.join()
