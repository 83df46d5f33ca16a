"""The health check of a rendered compose file, run as docker runs it."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from orchestrator.deploy.cluster.render.compose import _asks


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_a_health_check_reaches_its_own_container_whatever_proxy_docker_names() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        for path, healthy in (("readyz", True), ("draining", False)):
            check = _asks(f"http://127.0.0.1:{server.server_port}/{path}", start_s=1)["test"]
            proxies = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
            done = subprocess.run([sys.executable, *check[2:]], env=proxies, capture_output=True)
            assert (done.returncode == 0) is healthy, done.stderr
            assert healthy or b"HTTP Error 503" in done.stderr
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
