"""Lines that clients and peers can cause at will are few."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("vllm")

from fakes import vllm_config  # noqa: E402
from kvferry import vllm_plugin  # noqa: E402
from kvferry.engine.log import KEYS_MAX, LINES_PER_S, LimitedLogger, logger  # noqa: E402
from kvferry.vllm.content import weights  # noqa: E402


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.now = 0.0
        logger = logging.Logger("test")
        logger.addHandler(self)
        self.limited = LimitedLogger(logger, lambda: self.now)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_flood_of_one_kind() -> None:
    heard = Heard()
    for i in range(20):
        heard.limited.warning("request %s fails", f"r{i}")
    assert heard.lines == [f"request r{i} fails" for i in range(LINES_PER_S)]
    heard.now = 0.99
    heard.limited.warning("request %s fails", "s")
    assert len(heard.lines) == LINES_PER_S
    heard.now = 1.0
    heard.limited.warning("request %s fails", "t")
    heard.limited.warning("request %s fails", "u")
    assert heard.lines[LINES_PER_S:] == ["request t fails (and 16 more like it)", "request u fails"]


def test_other_kinds_and_reasons_are_heard() -> None:
    heard = Heard()
    for _ in range(10):
        heard.limited.warning("one %s", "x", reason="a")
    heard.limited.warning("one %s", "x", reason="b")
    heard.limited.error("two")
    assert heard.lines == ["one x"] * LINES_PER_S + ["one x", "two"]


def test_no_words_begin_a_line_or_steer_a_terminal() -> None:
    heard = Heard()
    heard.limited.warning("%s: %s, %d", "a\nb", ValueError("\x1b[2J\x9b1m"), 3)
    assert heard.lines == ["a?b: ?[2J?1m, 3"]


def test_memory_is_bounded() -> None:
    heard = Heard()
    for i in range(3 * KEYS_MAX):
        heard.limited.warning("x", reason=str(i))
    assert len(heard.lines) == 3 * KEYS_MAX and len(heard.limited._seconds) <= KEYS_MAX


def test_what_is_said_before_the_model_is_loaded_is_vllm_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line before that would leave out all later ones of its level."""
    parents: list[str] = []
    monkeypatch.setattr(logger, "parent", logging.getLogger())
    monkeypatch.setattr(weights, "begin_beside_load", lambda *engine: parents.append(logger.parent.name))
    engine = vllm_config()
    vars(engine.kv_transfer_config).update(kv_connector="KVFerryConnector", kv_connector_module_path=None)
    vllm_plugin._begin_to_read(engine)
    assert parents == ["vllm.kvferry"]
