"""An engine is drained from another host with the key, and not without it; nor by another user of its own host."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from network import Host
from sites import Site

pytest.importorskip("uvicorn")

PORT = 8000
LIMIT_S = 30.0
SERVER = """
import sys
from pathlib import Path
import uvicorn
from kvferry.engine import errors
from kvferry.engine.drain import Drain, Look
from kvferry.engine.middleware import KVErrors
from kvferry.engine.questions import Questions
from kvferry.key import read_keys
errors.MEMORY_FOLDER = Path(sys.argv[1])
class Server(KVErrors):
    def engine_of(self, scope):
        return "engine"
async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
folder = errors.Failures(500).folder
drain = Drain(folder, "engine", 3600000, read_keys(Path(sys.argv[3])), lambda: Look(0, 0, [], []))
questions = Questions(folder, drain.answer)
uvicorn.run(Server(application), host=sys.argv[2], port=int(sys.argv[4]), lifespan="off", log_level="error")
"""


def drain(host: Host, url: str, key: Path | None, user: int | None = None) -> tuple[int, str]:
    words = ["setpriv", f"--reuid={user}", "--clear-groups"] if user is not None else []
    asked = subprocess.run(host.command(*words, sys.executable, "-m", "kvferry.cli", "drain", url, "--timeout", "0.1",
                                        *(["--key-file", str(key)] if key else [])),
                           capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return asked.returncode, asked.stdout + asked.stderr


def phase(host: Host, url: str) -> str:
    said = host.run(sys.executable, "-c", "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())",
                    f"http://{url}/kvferry/drain")
    return str(json.loads(said)["engines"][0]["phase"])


@pytest.fixture
def key(tmp_path: Path) -> Path:
    tmp_path.joinpath("key").write_text(secrets.token_hex(32))
    tmp_path.joinpath("key").chmod(0o600)
    return tmp_path / "key"


@pytest.fixture
def served(site: Callable[..., Site], key: Path) -> Iterator[tuple[Site, str]]:
    """P's API server, on the address that D sees."""
    made = site("P", "D")
    address = made.network.address("P")
    with tempfile.TemporaryDirectory(prefix="kvf-") as memory:
        server = made.network.hosts["P"].start(sys.executable, "-c", SERVER, memory, address, str(key), str(PORT))
        try:
            end = time.monotonic() + LIMIT_S
            while True:
                try:
                    assert phase(made.network.hosts["D"], f"{address}:{PORT}") == "open"
                    break
                except Exception:
                    assert time.monotonic() < end and server.poll() is None
                    time.sleep(0.2)
            yield made, f"{address}:{PORT}"
        finally:
            server.kill()
            server.wait()


def test_from_another_host(served: tuple[Site, str], key: Path, tmp_path: Path) -> None:
    site, url = served
    elsewhere = site.network.hosts["D"]
    (tmp_path / "other").write_text(secrets.token_hex(32))
    for wrong, why in ((None, "give --key-file"), (tmp_path / "other", "not proved")):
        status, said = drain(elsewhere, url, wrong)
        assert status == 2 and why in said, said
    assert phase(elsewhere, url) == "open"
    status, said = drain(elsewhere, url, key)
    assert status == 1 and said.startswith("engine engine: leaving: "), said
    assert phase(elsewhere, url) == "leaving"


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")
def test_as_another_user_of_its_host(served: tuple[Site, str], key: Path) -> None:
    """Who cannot read the key."""
    site, url = served
    own = site.network.hosts["P"]
    status, said = drain(own, url, key, user=65534)
    assert status == 2 and "Permission denied" in said, said
    status, said = drain(own, url, None, user=65534)
    assert status == 2 and "give --key-file" in said, said
    assert phase(own, url) == "open"
