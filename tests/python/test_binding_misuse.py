"""Wrong calls raise, and change nothing."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvferry
import pytest
from engines import Engine, make_prompt, pack
from kvferry import Load, Point, Publication, Region, _kvferry

MakeEngine = Callable[..., Engine]


def test_the_stub_file_names_what_the_module_has() -> None:
    stub = Path(_kvferry.__file__).with_name("_kvferry.pyi").read_text()
    module = stub
    for kind in (_kvferry.Node, _kvferry.Staging, _kvferry.Recovery):
        methods = re.split(r"\n(?:def|class) ", stub.split(f"class {kind.__name__}:")[1])[0]
        module = module.replace(methods, "")
        assert set(re.findall(r"    def ([a-z]\w*)", methods)) == {name for name in dir(kind) if name[0] != "_"}, (
            f"left: {kind.__name__} in _kvferry.pyi; right: in the module")
    named = set(re.findall(r"^(?:def|class) (\w+)", module, re.M)) | set(re.findall(r"^(\w+): Final", module, re.M))
    assert named == {name for name in dir(_kvferry) if name[0] != "_"}, "left: _kvferry.pyi; right: the module"


def test_version() -> None:
    assert kvferry.__version__ == _kvferry.VERSION == "0.1.0"


@pytest.mark.parametrize("options, named", [
    ({"chunk_byte": "65536"}, "chunk_byte"),
    ({"lease_ttl_ms": "0"}, "lease_ttl_ms"),
    ({"load_timeout_ms": "ten"}, "load_timeout_ms"),
    ({"transports": "pigeon"}, "transports"),
    ({"policy": "hope"}, "policy"),
    ({"key_file": "/nowhere/key"}, "/nowhere/key"),
    ({"listen": "0.0.0.0"}, "key"),
])
def test_a_bad_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(kvferry.Error, match=re.escape(named)) as caught:
        kvferry.Node(options, {})
    assert caught.value.status < 0


def test_a_bad_identity_is_named() -> None:
    with pytest.raises(kvferry.Error, match="too_long"):
        kvferry.Node({}, {"too_long": "x" * 200})


def refusal(call: Callable[..., object], *arguments: object) -> int:
    with pytest.raises(kvferry.Error) as caught:
        call(*arguments)
    return caught.value.status


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert refusal(kvferry.Node, {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}, {}) == _kvferry.ADDRESS_IN_USE


def test_options_are_text() -> None:
    with pytest.raises(TypeError):
        kvferry.Node({"chunk_bytes": 65536}, {})  # type: ignore[dict-item]


def test_a_closed_node_says_so() -> None:
    node = kvferry.Node({}, {})
    node.close()
    node.close()
    for call in (node.poll, node.stats, node.healthy, node.address):
        with pytest.raises(kvferry.Error, match="closed") as caught:
            call()
        assert caught.value.status == _kvferry.CLOSED


def test_memory_is_registered_once(engine: MakeEngine) -> None:
    p = engine()
    assert refusal(p.rank.register, p.pool.regions()) == _kvferry.EXISTS


def test_an_empty_region_is_refused(closes: Callable[[Any], Any]) -> None:
    assert refusal(closes(kvferry.Node({}, {})).register, [Region(0, 0, 0, 0, 1, 1, 0)]) == _kvferry.INVALID


def test_memory_of_another_kind_is_not_taken_for_the_host_s(engine: MakeEngine, closes: Callable[[Any], Any]) -> None:
    region = engine().pool.regions()[0]
    for other in (region._replace(memory=_kvferry.MEMORY_CUDA), region._replace(memory=31), region._replace(device=1)):
        refused = refusal(closes(kvferry.Node({}, {})).register, [other])
        assert refused in (_kvferry.INVALID, _kvferry.TRANSFER_SETUP)  # the latter: here is no driver of GPUs


def test_a_point_reaches_the_library(engine: MakeEngine) -> None:
    """Host memory knows none: what comes with one is refused, and nothing has been published or begun."""
    p, prompt = engine(), make_prompt(16)
    _, _, ticket = p.publish([1], prompt)
    _, lease, _ = p.control.lease_reserve(1, 32)
    assert lease is not None
    publications = [Publication(lease, prompt, 0, pack([3]))]
    loads = [Load(1, ticket, prompt, 0, 0, pack([2]))]
    for point in (Point(_kvferry.MEMORY_CUDA, 0, 1), Point(_kvferry.MEMORY_HOST, 0, 0)):
        assert p.rank.lease_publish(publications, point) == [_kvferry.INVALID]
        assert p.rank.load_start(loads, point) == [_kvferry.INVALID]
    assert p.rank.lease_publish(publications, None) == [_kvferry.OK]
    assert p.rank.load_start(loads, None) == [_kvferry.OK]


def test_a_control_node_has_no_address(engine: MakeEngine) -> None:
    with pytest.raises(kvferry.Error):
        engine().control.address()


def test_ranks_must_be_address_records(engine: MakeEngine) -> None:
    p = engine()
    for records in ([], [b"?"], [p.rank.address()] * 2):
        with pytest.raises(kvferry.Error):
            p.control.set_ranks(records)
    for records in ([b"x" * 200], [b""] * 65):
        with pytest.raises(ValueError):
            p.control.set_ranks(records)


@pytest.mark.parametrize("call", [
    lambda p: p.rank.lease_end([b"short"]),
    lambda p: p.control.request_report([b"short"]),
    lambda p: p.control.request_open("ticket", b"short", 0, {}),
    lambda p: p.rank.load_start([Load(1, "ticket", make_prompt(3), 0, 0, (b"abc",))]),
    lambda p: p.rank.load_start([Load(1, "ticket", make_prompt(3), 0, 0, pack(*[[1]] * 17))]),
    lambda p: _kvferry.prompt_hash(b"abc", b""),
    lambda p: _kvferry.report(1, 64, 1, 1, 0),
    lambda p: p.control.request_released([1], 64),
])
def test_bytes_of_a_wrong_length(engine: MakeEngine, call: Callable[[Engine], object]) -> None:
    with pytest.raises(ValueError):
        call(engine())


@pytest.mark.parametrize("call", [
    lambda p: p.rank.lease_end([None]),
    lambda p: p.rank.lease_end(b"no list"),
    lambda p: p.rank.load_abort(["1"]),
    lambda p: p.rank.load_start([(1, "ticket")]),
    lambda p: p.rank.lease_publish([(1, 2, 3, 4)]),
    lambda p: p.rank.register([(1, 2)]),
])
def test_wrong_types(engine: MakeEngine, call: Callable[[Engine], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        call(engine())


@pytest.mark.parametrize("call, kind, said", [
    (lambda p: p.rank.load_start([(1, "ticket")]), TypeError, "a load, request_id: 'tuple' object has no attribute"),
    (lambda p: p.rank.load_start([Load("1", "", b"", 0, 0, ())]), TypeError, "a load, request_id: "),
    (lambda p: p.rank.load_start([Load(1, 5, b"", 0, 0, ())]), TypeError, "a load, ticket: "),
    (lambda p: p.rank.load_start([Load(1, "", b"x", 0, 0, ())]), ValueError, "a load, prompt: a prompt is 68 bytes long, not 1"),
    (lambda p: p.rank.load_start([Load(1, "", make_prompt(3), -1, 0, ())]), OverflowError, "a load, timeout_ms: "),
    (lambda p: p.rank.load_start([Load(1, "", make_prompt(3), 0, 1 << 64, ())]), OverflowError, "a load, user: "),
    (lambda p: p.rank.load_start([Load(1, "", make_prompt(3), 0, 0, [b""])]), ValueError, "a load, destination: "),
    (lambda p: p.rank.lease_publish([Publication(b"", b"", 0, ())]), ValueError, "a publication, lease: "),
    (lambda p: p.rank.register([Region(1, 2, 3, 1 << 32, 5, 6, 7)]), OverflowError, "a region, blocks: "),
    (lambda p: p.rank.register([Region(1, 2, 3, 4, 5, 6, 7, "cuda")]), TypeError, "a region, memory: "),
    (lambda p: p.rank.register([Region(1, 2, 3, 4, 5, 6, 7, 1, -1)]), OverflowError, "a region, device: "),
    (lambda p: p.rank.load_start([], Point("cuda", 0, 0)), TypeError, "an ordering point, memory: "),
    (lambda p: p.rank.lease_publish([], Point(1, -1, 0)), OverflowError, "an ordering point, device: "),
    (lambda p: p.rank.lease_publish([], Point(1, 0, 1 << 64)), OverflowError, "an ordering point, handle: "),
])
def test_what_is_wrong_names_its_field(engine: MakeEngine, call: Callable[[Engine], object], kind: type[Exception],
                                       said: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(said)):
        call(engine())


def test_numbers_out_of_range(engine: MakeEngine) -> None:
    p = engine()
    for blocks in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            p.control.lease_reserve(blocks, 10)
    with pytest.raises(OverflowError):
        p.control.lease_reserve_blocks(pack([1]), -1)
    with pytest.raises(OverflowError):
        p.rank.load_abort([1 << 64])


def test_unknown_ids_are_data(engine: MakeEngine) -> None:
    p = engine()
    assert p.rank.load_abort([1, 2]) == [_kvferry.NOT_FOUND] * 2
    assert p.control.lease_release([1]) == [_kvferry.NOT_FOUND]
    assert p.control.request_begin([1]) == [_kvferry.NOT_FOUND]
    assert p.control.request_report([_kvferry.report(1, 0, 1, 1, 0)]) == [_kvferry.NOT_FOUND]
    assert p.rank.load_start([]) == []
    assert p.rank.poll() == []


def test_status_meanings() -> None:
    assert _kvferry.status_meaning(_kvferry.LEASE_EXPIRED) == "The producer has taken the blocks back."
    assert _kvferry.status_meaning(12345) == _kvferry.status_meaning(_kvferry.INVALID)
    with pytest.raises(TypeError):
        _kvferry.status_meaning("x")  # type: ignore[arg-type]


def test_status_names() -> None:
    assert _kvferry.status_name(_kvferry.LEASE_EXPIRED) == "lease_expired"
    assert _kvferry.status_name(12345) == _kvferry.status_name(_kvferry.INVALID)
    assert _kvferry.status_name(1 << 40) == _kvferry.status_name(_kvferry.INVALID)


def test_a_forked_child_leaves_the_node_alone(engine: MakeEngine) -> None:
    p = engine()
    child = os.fork()
    if child == 0:
        try:
            p.rank.poll()
        except kvferry.Error:
            del p
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert p.rank.poll() == []
