"""Google's metadata server, asked with a limit: where there is none, nothing ever waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

Fetch = Callable[[str], str | None]
"""Key below ``computeMetadata/v1`` -> its text, or None if the server has no such key. Raises OSError if there is no
server."""

LIMIT_S = 0.4
"""For all questions together. The server stands beside the machine and answers in milliseconds."""

_ADDRESS = "169.254.169.254"  # the number, not the name: looking up a name can hang for longer than any limit
_TOO_LATE = "the metadata server did not answer in time"


class Metadata:
    """A fetcher whose questions together take at most limit_s; after the first failure it asks no more."""

    def __init__(self, environ: Mapping[str, str] | None = None, limit_s: float = LIMIT_S) -> None:
        environ = os.environ if environ is None else environ
        self._host = environ.get("GCE_METADATA_IP") or environ.get("GCE_METADATA_HOST") or _ADDRESS
        self._left_s = limit_s

    def __call__(self, key: str) -> str | None:
        """The value of one key."""
        if self._left_s <= 0:
            raise TimeoutError(_TOO_LATE)
        start = time.monotonic()
        answer: list[str | OSError | None] = []
        # In a thread, since a server that sends one byte a second outlives every timeout of a socket.
        thread = threading.Thread(target=self._ask, args=(key, self._left_s, answer), daemon=True)
        thread.start()
        thread.join(self._left_s)
        self._left_s -= time.monotonic() - start
        if not answer:
            self._left_s = 0.0
            raise TimeoutError(_TOO_LATE)
        if isinstance(answer[0], OSError):
            self._left_s = 0.0
            raise answer[0]
        return answer[0]

    def _ask(self, key: str, timeout_s: float, answer: list[str | OSError | None]) -> None:
        import http.client  # takes a tenth of a second, and most machines are never asked

        try:
            connection = http.client.HTTPConnection(self._host, timeout=timeout_s)
            try:
                connection.request("GET", f"/computeMetadata/v1/{key}", headers={"Metadata-Flavor": "Google"})
                response = connection.getresponse()
                body = response.read(65536).decode(errors="replace")
            finally:
                connection.close()
            google = response.getheader("Metadata-Flavor") == "Google"
            if response.status == http.client.OK and google:
                answer.append(body)
            elif response.status == http.client.NOT_FOUND:
                answer.append(None)
            else:
                answer.append(OSError(f"no metadata server at {self._host}"))
        except TimeoutError:
            answer.append(TimeoutError(_TOO_LATE))
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.append(OSError(str(error)))
