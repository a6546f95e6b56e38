"""The metadata server: asked over real sockets, and never waited for."""

import http.server
import socket
import threading
import time

import pytest

from tpumagic.runtime.metadata import Metadata


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        value = {"/computeMetadata/v1/instance/attributes/accelerator-type": b"v4-8"}.get(self.path)
        allowed = self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if value and allowed else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(value or b"")))
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield f"127.0.0.1:{one.server_port}"
        one.shutdown()
        thread.join()


@pytest.fixture
def silent():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield f"127.0.0.1:{one.getsockname()[1]}"


def test_a_key_is_answered_and_a_missing_key_is_none(server):
    metadata = Metadata({"GCE_METADATA_IP": server}, limit_s=5)
    assert metadata("instance/attributes/accelerator-type") == "v4-8"
    assert metadata("instance/attributes/no-such-thing") is None


def test_a_server_that_never_answers_is_given_up_and_not_asked_again(silent):
    metadata = Metadata({"GCE_METADATA_IP": silent}, limit_s=0.2)
    start = time.perf_counter()
    for _ in range(5):
        with pytest.raises(OSError, match=r"did not answer in time|timed out"):
            metadata("instance/attributes/accelerator-type")
    assert time.perf_counter() - start < 1


def test_no_server_is_an_error_at_once():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        Metadata({"GCE_METADATA_IP": f"127.0.0.1:{port}"})("instance/zone")


def test_an_answer_of_something_else_than_google_is_not_believed(server):
    class Plain(Server):
        def send_header(self, name, value):
            super().send_header("X-" + name if name == "Metadata-Flavor" else name, value)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as one:
        threading.Thread(target=one.serve_forever).start()
        with pytest.raises(OSError, match="no metadata server"):
            Metadata({"GCE_METADATA_IP": f"127.0.0.1:{one.server_port}"}, limit_s=5)(
                "instance/attributes/accelerator-type"
            )
        one.shutdown()
