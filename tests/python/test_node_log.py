"""Lines of the library's nodes come to the engine's log, and are not lost where that hangs."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engines import Log, make_prompt, wait_until
from kvferry import Node
from kvferry.engine.config import open_node
from kvferry.engine.log import logger, node_log

WRITTEN = r"kvferry {} \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z pid {}: {}\n"
"""What nobody has taken, on standard error."""


@pytest.fixture
def node(closes: Callable[[Any], Any]) -> Node:
    return closes(open_node({"listen": "127.0.0.1", "log_level": "debug"}, {"model": "toy"}, "here", 0))


def test_lines_come_with_their_level_in_order(log: Log, node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("cmpl-a", "cmpl-\n\x1b", "cmpl-c"):
        node.request_open("nonsense", make_prompt(4), 0, {}, 0, name)
    node.close()
    first, *refused = log.lines
    assert re.fullmatch(r"INFO kvferry: listens on 127\.0\.0\.1:\d+ \(lo\): .*", first)
    assert refused == [f"WARNING kvferry: request {name}: ticket refused: bad_ticket: malformed or altered"
                       for name in ("cmpl-a", "cmpl-??", "cmpl-c")]
    assert capfd.readouterr().err == ""


def test_where_the_log_hangs_lines_go_to_standard_error(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    begun, gate = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            begun.set()
            gate.wait(60)
    stuck, said = Stuck(), ""

    def is_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.count("\n") == 2
    logger.addHandler(stuck)
    try:
        node.request_open("nonsense", make_prompt(4), 0, {}, 0, "cmpl-in-hand")
        assert begun.wait(10)
        for name in ("cmpl-a", "cmpl-b"):
            node.request_open("nonsense", make_prompt(4), 0, {}, 0, name)
        wait_until("the lines", is_said)
    finally:
        logger.removeHandler(stuck)
        gate.set()
    assert re.fullmatch("".join(WRITTEN.format("warn", os.getpid(), f"request {name}: ticket refused: .*")
                                for name in ("cmpl-a", "cmpl-b")), said)


HOLDS_THE_GIL = """
import ctypes, logging, os
logging.basicConfig()
from kvferry.engine.config import open_node
node = open_node({"listen": "", "peers": "127.0.0.1:1"}, {"model": "toy"}, "here")
ctypes.PyDLL(None).sleep(4)  # nothing runs in Python meanwhile
os._exit(0)
"""


def test_no_thread_of_the_library_waits_for_the_gil() -> None:
    """Its threads go on for the four seconds, and what they log is on standard error after one. They dial after 0.5 and 1.5 s."""
    done = subprocess.run([sys.executable, "-c", HOLDS_THE_GIL], capture_output=True, text=True, timeout=60)
    lines = re.findall(WRITTEN.format("warn", r"\d+", "peer 127.0.0.1:1: peer_down: cannot connect.*"), done.stderr)
    assert len(lines) >= 2, done.stderr


AT_THE_END = """
import logging
if {}:
    logging.basicConfig(level=logging.INFO)
from kvferry.engine.config import open_node
node = open_node({{"listen": "127.0.0.1"}}, {{"model": "toy"}}, "here", 0)
"""


@pytest.mark.parametrize("has_log, begins", [(True, "INFO:kvferry:kvferry: listens on "), (False, "kvferry info: listens on ")])
def test_a_process_that_closes_nothing_ends_and_loses_nothing(has_log: bool, begins: str) -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END.format(has_log)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.startswith(begins) and done.stderr.count("\n") == 1, done.stderr


def test_a_forked_child_has_a_log_of_its_own(node: Node) -> None:
    ours = node_log()
    assert ours is not None and node_log() is ours
    child = os.fork()
    if child == 0:
        os._exit(0 if node_log() is not ours else 1)
    assert os.waitpid(child, 0)[1] == 0
