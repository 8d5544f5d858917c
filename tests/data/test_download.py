"""Downloads from a server on this machine: whole, broken and resumed, refused, offline."""

import hashlib
import http.server
import threading

import pytest
from wording import refused

from corerl.data import download

BODY = bytes(range(256)) * 4096  # 1 MiB


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves BODY at /file; breaks off after `cut` bytes once; counts the ranges asked for."""

    cut: int | None = None
    ranges: list[str | None]
    honours_range = True
    shift = 0  # of the range that is sent against the one that was asked for
    length: str | None = None  # what it says instead of its length

    def do_GET(self):
        asked = self.headers.get("Range")
        type(self).ranges.append(asked)
        if self.path != "/file":
            return self.send_error(404)
        start = int(asked[6:-1]) if asked and self.honours_range else 0
        if start >= len(BODY):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(BODY)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            first = start + self.shift
            self.send_header("Content-Range", f"bytes {first}-{len(BODY) - 1}/{len(BODY)}")
        self.send_header("Content-Length", self.length or str(len(BODY) - start))
        self.end_headers()
        cut, type(self).cut = self.cut, None
        self.wfile.write(BODY[start:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    handler = type("OneTest", (Handler,), {"ranges": []})
    httpd = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{httpd.server_port}/file"
    yield handler
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_whole_file(server, tmp_path):
    checksum = "sha256:" + hashlib.sha256(BODY).hexdigest()
    path = download.fetch(server.url, tmp_path / "new" / "f.bin", checksum)
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["f.bin"]


def test_a_broken_transfer_is_resumed_where_it_stopped(server, tmp_path):
    server.cut = 300_000
    path = tmp_path / "f.bin"
    with refused("300000 1048576"):
        download.fetch(server.url, path)
    assert not path.exists()
    assert (tmp_path / "f.bin.part").stat().st_size == 300_000
    download.fetch(server.url, path)
    assert server.ranges == [None, "bytes=300000-"]
    assert path.read_bytes() == BODY


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.honours_range = False
    (tmp_path / "f.bin.part").write_bytes(b"x" * 1000)
    assert download.fetch(server.url, tmp_path / "f.bin").read_bytes() == BODY


def test_another_range_than_was_asked_for_is_not_appended(server, tmp_path):
    server.shift = -1000
    path = tmp_path / "f.bin"
    (tmp_path / "f.bin.part").write_bytes(BODY[:5000])
    with refused("server"):
        download.fetch(server.url, path)
    assert download.fetch(server.url, path).read_bytes() == BODY


@pytest.mark.parametrize("length", ["many", "-5", "1e6", "\u0661"])
def test_a_length_that_is_no_number_is_a_sentence(server, tmp_path, length):
    server.length = length.encode().decode("latin-1")
    with refused("server"):
        download.fetch(server.url, tmp_path / "f.bin")


def test_an_address_that_is_none_is_a_sentence(tmp_path):
    with refused("f.bin nowhere"):
        download.fetch("nowhere", tmp_path / "f.bin")


def test_a_part_that_is_already_whole(server, tmp_path):
    (tmp_path / "f.bin.part").write_bytes(BODY)
    assert download.fetch(server.url, tmp_path / "f.bin").read_bytes() == BODY


def test_a_part_longer_than_the_file_starts_over(server, tmp_path):
    (tmp_path / "f.bin.part").write_bytes(b"of a longer file of before" + BODY)
    assert download.fetch(server.url, tmp_path / "f.bin").read_bytes() == BODY
    assert server.ranges[1:] == [None]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with refused("checksum md5:00"):
        download.fetch(server.url, tmp_path / "f.bin", "md5:00")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_the_address_and_the_folder(server, tmp_path):
    with refused(f"/nothing 404 {tmp_path}"):
        download.fetch(server.url.replace("/file", "/nothing"), tmp_path / "f.bin")


def test_no_network(tmp_path):
    with refused("127.0.0.1:9/f"):
        download.fetch("http://127.0.0.1:9/f", tmp_path / "f.bin")


def test_offline_asks_nobody(server, tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_OFFLINE", "1")
    with refused(f"{server.url} {tmp_path}"):
        download.fetch(server.url, tmp_path / "f.bin")
    assert server.ranges == []


def test_a_full_disk(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("U", (), {"free": 10})())
    with refused("1 MB"):
        download.fetch(server.url, tmp_path / "f.bin")


def test_the_data_folder_comes_before_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / ".cache" / "corerl" / "d4rl"
    cache.mkdir(parents=True)
    (cache / "a").touch()
    assert download.find("d4rl", ["b", "a"]) == cache / "a"
    monkeypatch.setenv("CORERL_DATA", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "a").touch()
    assert download.find("d4rl", ["b", "a"]) == tmp_path / "d4rl" / "a"
    assert download.data_dir("d4rl") == tmp_path / "d4rl"
