"""`kvferry top`, on recorded metrics."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pages import RECORDED, Serve

pytest.importorskip("rich")
pytest.importorskip("prometheus_client")

from kvferry import cli  # noqa: E402
from kvferry.metric_table import PREFIX, VLLM_PREFIX  # noqa: E402
from kvferry.top import rows, scrape  # noqa: E402



def once(*urls: str, interval: str = "0.2") -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "kvferry.cli", "top", "--once", "--interval", interval, *urls],
                          capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "150"})
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def line_with(text: str, *words: str) -> str:
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, text
    return lines[0]


def recorded(name: str, prefix: str) -> bytes:
    return (RECORDED / name).read_bytes().replace(PREFIX.encode(), prefix.encode())


@pytest.mark.parametrize("prefix", [PREFIX, VLLM_PREFIX])
def test_one_frame_of_both_sides(serve: Serve, prefix: str) -> None:
    d, p = (serve(*(recorded(f"{side}_{number}.txt", prefix) for number in (1, 2))) for side in "dp")
    status, shown = once(d, p)
    assert status == 0
    assert line_with(shown.partition("peers")[0], d).split()[4] == "18.0"
    good, bad = line_with(shown, "10.0.0.1:41234"), line_with(shown, "10.0.0.2:41234")
    assert "control:up local:idle tcp:up" in good
    assert "control:open" in bad and "peer_down" in bad
    assert shown.index(bad) < shown.index(good)  # what is in trouble comes first
    assert line_with(shown, "lease_expired").split()[-3:] == ["1", "0", "129"]
    assert line_with(shown.partition("peers")[0], p).split()[7] == "8"


def test_rates_are_of_the_time_between_two_looks() -> None:
    def snapshot(name: str, at: float) -> scrape.Snapshot:
        return scrape.Snapshot("http://d", at, scrape.parse((RECORDED / name).read_text()))

    both = rows.pair(snapshot("d_2.txt", 14.0), snapshot("d_1.txt", 10.0))
    row, = rows.engines([both])
    assert (row.loads_per_s, row.failures_per_s, row.bytes_per_s) == (10.0, 0.5, 80e6)
    assert row.load_ms == pytest.approx(18.0) and row.recomputed_per_s == 62.5
    bad, good = rows.peers([both])
    assert bad.links == [("control", 2, False), ("local", 0, False), ("tcp", 0, False)]  # the worst of two nodes
    assert (good.loads_per_s, good.reads, bad.failures) == (10.0, 4, 6)
    assert bad.last_failure == "peer_down"
    first, = rows.engines([rows.pair(snapshot("d_1.txt", 10.0), None)])
    assert first.loads_per_s is None and first.load_ms is None
    restarted, = rows.engines([rows.pair(snapshot("d_1.txt", 14.0), snapshot("d_2.txt", 10.0))])
    assert restarted.loads_per_s is None


@pytest.mark.parametrize("answer, said", [
    (503, "HTTP 503"), (b"vllm:x 1\n", "KVFerryConnector"), (b"kvferry_loads_total{ 1\n", "not Prometheus text"),
    (b"", "KVFerryConnector"),
])
def test_an_engine_without_our_metrics(serve: Serve, answer: bytes | int, said: str) -> None:
    good = serve("d_1.txt")
    status, shown = once(serve(answer), good)
    assert status == 1 and said in shown
    assert "10.0.0.1:41234" in shown  # the other one is shown all the same


def test_no_engine() -> None:
    with socket.socket() as held:  # nobody listens there, and nobody else is given it
        held.bind(("127.0.0.1", 0))
        status, shown = once(f"127.0.0.1:{held.getsockname()[1]}")
    assert status == 1 and "connection refused" in shown and "not up" in shown


def test_what_is_no_http_server_prints_no_bytes_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer() -> None:
            other, _ = server.accept()
            with other:
                other.sendall(b"P\x01\xcd\xfeKnot a frame\r\n")
        thread = threading.Thread(target=answer)
        thread.start()
        trouble = scrape.take(scrape.metrics_url(f"127.0.0.1:{server.getsockname()[1]}"), 5.0).trouble
        thread.join()
    assert trouble == "it does not speak HTTP: is this the port of a vLLM API server?"


def test_an_engine_that_hangs_keeps_nobody_waiting(serve: Serve) -> None:
    began = time.monotonic()
    now = scrape.take_all([scrape.metrics_url(serve("d_1.txt", wait_s=3.0)), scrape.metrics_url(serve("d_1.txt"))], 0.3)
    assert time.monotonic() - began < 2.0
    assert "no answer in 0.3 s" in now[0].trouble and now[1].samples


def test_an_answer_that_does_not_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "ANSWER_BYTES_MAX", 1000)
    assert "longer than" in scrape.take(scrape.metrics_url(serve("d_1.txt")), 5.0).trouble


def test_what_peers_are_called_does_not_steer_the_terminal(serve: Serve) -> None:
    line = b'kvferry_peer_breaker{engine="0",peer="\x1b]0;evil\x07[red]",node="rank 0",link="tcp",path="tcp"} 7\n'
    _, shown = once(serve(line))
    assert "\x1b" not in shown and "?]0;evil?[red]" in shown and "tcp:open" in shown


@pytest.mark.parametrize("url, full", [
    ("h:1", "http://h:1/metrics"), ("http://h:1/", "http://h:1/metrics"), ("https://h/metrics", "https://h/metrics"),
    ("[::1]:8000", "http://[::1]:8000/metrics"),
])
def test_addresses(url: str, full: str) -> None:
    assert scrape.metrics_url(url) == full


@pytest.mark.parametrize("url", ["ftp://h", "http://", "h:port", "h:99999"])
def test_a_bad_address_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", url]) == 2
    assert url in capsys.readouterr().err


def hear_ctrl_c() -> None:
    """As in a terminal: a shell that starts the tests in the background makes them, and their children, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_live_view_cleanly(serve: Serve) -> None:
    url = serve("d_1.txt", "d_2.txt")
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "kvferry.cli", "top", "--interval", "0.2", url], stdout=theirs,
                               stderr=theirs, stdin=theirs, preexec_fn=hear_ctrl_c,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"})
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 30

    def read(until: Callable[[], bool]) -> bytes:
        nonlocal shown
        while not until() and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:
                    break
        return shown

    read(lambda: shown.count(b"10.0.0.1:41234") >= 2)
    process.send_signal(signal.SIGINT)
    read(lambda: process.poll() is not None)
    assert process.wait(10) == 0
    os.close(ours)
    text = shown.decode(errors="replace")
    assert "Traceback" not in text and "10.0.0.1:41234" in text
    assert re.search(r"\x1b\[\?1049l", text) and "\x1b[?25h" in text  # the screen and the cursor are given back


def test_neither_vllm_nor_torch_is_imported() -> None:
    code = ("import sys; from kvferry.top import main, rows, scrape, view; "
            "print([name for name in sys.modules if name.partition('.')[0] in ('vllm', 'torch')])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_rich_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['rich.console'] = None; from kvferry.cli import main; sys.exit(main(['top', 'h']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install" in done.stderr
