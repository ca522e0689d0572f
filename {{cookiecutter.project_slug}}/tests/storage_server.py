"""A server of files with ranges, and what goes wrong between it and a reader, for tests.

python tests/storage_server.py FOLDER [LATENCY_SECS [MEGABYTES_PER_SEC]] prints its port, and serves
until it is killed.
A bucket is a folder: S3 and HTTP read alike.
"""

import http.server
import math
import random
import re
import socket
import sys
import threading
import time
from pathlib import Path


class Server(http.server.ThreadingHTTPServer):
    """Serves the files below `folder` on a port of this machine, from the block's beginning to end.

    An answer waits for `latency` seconds, and for its turn on a link of `rate` bytes per second. Of
    the answers with content, the share `failing` has one of some faults, and the share `hanging`
    never comes, each at random.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        folder: Path,
        *,
        latency: float = 0,
        rate: float = math.inf,
        failing: float = 0,
        hanging: float = 0,
    ):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rate, self.link, self.free_at = rate, threading.Lock(), 0.0
        self.folder, self.latency, self.failing, self.hanging = folder, latency, failing, hanging
        self.random, self.faults, self.hangs = random.Random(0), 0, 0

    def wait_for_link(self, size: int) -> None:
        """Until so many bytes have gone over the link, behind all others."""
        with self.link:
            end = self.free_at = max(self.free_at, time.monotonic()) + size / self.rate
        time.sleep(max(0.0, end - time.monotonic()))

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(self.server.latency)
        path = self.server.folder / self.path.strip("/")
        if not path.is_file():
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        whole = self.command == "HEAD" or "Range" not in self.headers
        first, last = 0, path.stat().st_size - 1
        if not whole:
            first, end = re.match(r"bytes=(\d+)-(\d*)", self.headers["Range"]).groups()
            first, last = int(first), min(int(end or last), last)
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        drawn, fault = self.server.random.random(), self.server.random.randrange(4)
        if self.command == "GET" and drawn < self.server.hanging:
            self.server.hangs += 1
            time.sleep(60)
            self.close_connection = True
        elif self.command == "GET" and drawn < self.server.hanging + self.server.failing:
            self.server.faults += 1
            self.fail(fault, data)
        else:
            self.answer(200 if whole else 206, data)

    def fail(self, fault: int, data: bytes) -> None:
        if fault == 0:
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif fault == 1:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault == 2:  # a wrong length
            self.answer(206, data[:-1])
        else:  # cut off
            self.answer(206, data[: len(data) // 2], length=len(data))
            self.close_connection = True

    def answer(self, status: int, data: bytes, *, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", self.date_time_string(0))
        self.end_headers()
        if self.command != "HEAD":
            self.server.wait_for_link(len(data))
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    words = [*sys.argv[2:], *["0", "inf"][len(sys.argv) - 2 :]]
    latency, megabytes = map(float, words)
    with Server(Path(sys.argv[1]), latency=latency, rate=1e6 * megabytes) as server:
        print(server.port, flush=True)
        threading.Event().wait()
