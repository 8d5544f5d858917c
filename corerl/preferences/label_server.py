"""The page on which a person compares segments, served to this machine alone.

The server listens on the loopback address, answers only requests that name it so (another site's page
cannot reach it under a name of its own), and only below a path that nobody can guess.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from corerl.errors import CorerlError
from corerl.preferences.label_pictures import Pictures
from corerl.preferences.label_session import SKIPPED, Session

HOST = "127.0.0.1"
LONGEST = 10_000
"""Bytes of a request."""
ANSWERS = {"left": 0.0, "equal": 0.5, "right": 1.0, "skip": SKIPPED}


class Server(ThreadingHTTPServer):
    """A server of one session, until `shutdown`. `address` is what a browser opens.

    Args:
        session: what is asked and kept. make_pictures: makes them, on the thread that draws.
        command: trains on the labels; the page shows it at the end. port: 0 takes a free one.

    Raises:
        CorerlError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, session: Session, make_pictures, command: str, port: int = 0):
        self.session, self.command, self._lock = session, command, threading.Lock()
        self.token = secrets.token_urlsafe(12)
        self._drawing = ThreadPoolExecutor(1)  # one thread, to which OpenGL's context belongs
        self._pictures: Pictures = self._drawing.submit(make_pictures).result()
        self._pairs: dict[int, Future] = {}
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", "there is no port with this number")
            raise CorerlError(
                f"Cannot use port {port} ({why}). Choose another --port, or 0 for a free one."
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def state(self) -> dict[str, Any]:
        with self._lock:
            more = {"why": self._pictures.why, "command": self.command}
            return self.session.state() | more

    def answer(self, pair: int, answer: str | list[int]) -> dict[str, Any]:
        """Keeps an answer, a word or the order of all segments. The new state."""
        with self._lock:
            if isinstance(answer, list):
                self.session.answer(pair, 0.0, answer)
            else:
                self.session.answer(pair, ANSWERS[answer])
        return self.state()

    def undo(self) -> dict[str, Any]:
        """Takes the last one back. The new state."""
        with self._lock:
            self.session.undo()
        return self.state()

    def pair(self, number: int) -> list[dict[str, Any]]:
        """Returns the segments of a question, and draws the next pair while a person looks.

        Raises:
            CorerlError: it cannot be drawn.
        """
        try:
            drawn = self._draw(number).result()
        except Exception as error:  # simulators fail in many ways
            with self._lock:
                self._pairs.pop(number, None)  # asked again, it is drawn again
            reported = f"Cannot draw pair {number} ({type(error).__name__}: {error})."
            raise CorerlError(reported) from error
        with self._lock:
            self.session.shown(number)
        if number + 1 < len(self.session.pairs):
            self._draw(number + 1)
        return drawn

    def _draw(self, number: int) -> Future:
        with self._lock:
            if number not in self._pairs:
                for old in sorted(self._pairs)[:-3]:
                    del self._pairs[old]
                starts = self.session.pairs[number].tolist()
                self._pairs[number] = self._drawing.submit(
                    lambda: [self._pictures.segment(s, self.session.length) for s in starts]
                )
            return self._pairs[number]

    def handle_error(self, *where: Any) -> None:
        """Tells what went wrong with a request, but not that its page was closed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*where)

    def server_close(self) -> None:
        super().server_close()
        self._drawing.submit(self._pictures.close).result()
        self._drawing.shutdown()


class Handler(BaseHTTPRequestHandler):
    """`GET /` the page, `state`, `pair/N`. `POST answer` and `undo`, each answered with the state."""

    server: Server

    def do_GET(self) -> None:
        path = self._path()
        if path == "":
            page = files("corerl.preferences").joinpath("label_page.html").read_bytes()
            self._send(page, "text/html; charset=utf-8")
        elif path == "state":
            self._send_json(self.server.state())
        elif path is not None and re.fullmatch("pair/[0-9]{1,9}", path):
            number = int(path[5:])
            if number < len(self.server.session.pairs):
                self._send_pair(number)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        elif path is not None:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        path = self._path()
        if path is None:
            return
        try:
            request = self._content()
            if path == "answer":
                pair, pairs = request["pair"], self.server.session.pairs
                if type(pair) is not int or not 0 <= pair < len(pairs):
                    raise ValueError
                self._send_json(self.server.answer(pair, self._answer(request["answer"])))
            elif path == "undo":
                self._send_json(self.server.undo())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        except CorerlError as error:  # a full disk: the page says so, and the answer is asked again
            self._send_json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.send_error(HTTPStatus.BAD_REQUEST)

    def _answer(self, given: Any) -> str | list[int]:
        """Returns a word, or an order of the segments. Raises ValueError where it is neither."""
        size = self.server.session.size
        words = ["skip"] if size > 2 else list(ANSWERS)
        if given in words or (size > 2 and sorted(given) == list(range(size))):
            return given
        raise ValueError

    def _send_pair(self, number: int) -> None:
        try:
            self._send_json(self.server.pair(number))
        except CorerlError as error:
            self._send_json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _path(self) -> str | None:
        """Returns the path below the token. None, and an answer, where the request is not ours."""
        host, begin = self.headers.get("Host", "").partition(":")[0], f"/{self.server.token}/"
        if host not in (HOST, "localhost") or not self.path.startswith(begin):
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return self.path.removeprefix(begin)

    def _content(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        if self.headers.get("Content-Type") != "application/json" or not 0 <= length <= LONGEST:
            raise ValueError
        content = json.loads(self.rfile.read(length) or b"{}")
        if not isinstance(content, dict):
            raise ValueError
        return content

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline' data:")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: the terminal is the person's."""
