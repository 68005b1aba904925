"""From a node's numbers to vLLM's /metrics and its log."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import FakeNode  # noqa: E402
from kvferry import Node, _kvferry, metric_table  # noqa: E402
from kvferry.engine.config import ConfigError  # noqa: E402
from kvferry.engine.metrics import OTHER, PEER_LABELS_MAX, Meter  # noqa: E402
from kvferry.vllm.config import prefix_of  # noqa: E402
from kvferry.vllm.metrics import PromMetrics, Stats  # noqa: E402
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # noqa: E402

PEER = "10.0.0.1:7000"
CONTROL = ("control", _kvferry.BREAKER_CLOSED, "ok", True)
OPEN = ("control", _kvferry.BREAKER_OPEN, "peer_down", False)


def data(**fields: Any) -> dict[str, Any]:
    return {"counters": {}, "gauges": {}, "histograms": {}, "peers": {}, "gone": {}, **fields}


def peer(counters: Any = None, gauges: Any = None, failures: Any = None) -> dict[str, Any]:
    return {"counters": counters or {}, "gauges": gauges or {}, "failures": failures or {}}


def read(meter: Meter) -> dict[str, Any]:
    news = meter.read()
    assert news is not None
    return news


# ---- the table ----

OWN = {("no_tickets", False), ("not_loaded", False), ("internal_errors", False), ("weights_digest_mismatches", False), ("draft_layers_not_carried", True),
       ("transfers_stopped", True), ("vllm_features_off", True), ("pinned_tokens", True), ("pinned_bytes", True),
       ("oldest_lease", True), ("oldest_waiting", True), ("last_load", True)}
"""The connector's numbers, beside the library's."""


def test_each_metric_is_made_of_numbers_that_exist(closes: Callable[[Any], Any]) -> None:
    node = closes(Node({}, {}))
    names = {(name, is_gauge) for name, _, _, is_gauge in node.stats()}
    distributions = {name: [bound for bound, _, _ in buckets] for name, buckets in node.histograms()}
    assert node.peers() == []
    shown = ({(stat, False) for metric in metric_table.COUNTERS for stat in metric.stats}
             | {(stat, True) for metric in metric_table.GAUGES for stat in metric.stats})
    assert shown - names == OWN and ("lease_blocks", True) in names
    assert distributions == {stat: [round(bound * metric_table.divisor_of(stat)) for bound in
                                    metric_table.bounds_of(metric)] + [2**64 - 1]
                             for metric in metric_table.HISTOGRAMS for stat in metric.stats}


# ---- the meter ----

def metered() -> tuple[FakeNode, Meter]:
    node = FakeNode()
    return node, Meter(node, "rank 0")


def test_a_meter_says_what_is_new() -> None:
    node, meter = metered()
    assert meter.read() is None
    node.numbers = [("loads_failed", "deadline", 2, False), ("leases_untaken", "", 3, True), ("loads_done", "", 0, False)]
    assert read(meter) == data(counters={"loads_failed": {"deadline": 2}}, gauges={"leases_untaken": {"rank 0": 3}})
    assert meter.read() is None
    node.numbers = [("loads_failed", "deadline", 5, False), ("leases_untaken", "", 0, True)]
    assert read(meter) == data(counters={"loads_failed": {"deadline": 3}}, gauges={"leases_untaken": {"rank 0": 0}})


def test_a_meter_says_what_leases_take_and_when_a_load_was_good() -> None:
    node = FakeNode()
    meter = Meter(node, "control", per_block={"pinned_tokens": 10.4, "pinned_bytes": 4096})
    meter.set_gauge("oldest_lease", 0)
    assert meter.read() is None
    meter.set_gauge("oldest_lease", 5.0)
    node.numbers = [("lease_blocks", "", 3, True), ("loads_done", "", 1, False)]
    gauges = read(meter)["gauges"]
    assert time.time() - gauges.pop("last_load")["control"] == pytest.approx(0, abs=5)
    assert gauges == {"lease_blocks": {"control": 3}, "pinned_tokens": {"control": 31}, "pinned_bytes": {"control": 12288},
                      "oldest_lease": {"control": 5.0}}
    meter.set_gauge("oldest_lease", 5.0)
    assert meter.read() is None
    meter.set_gauge("oldest_lease", 0)
    assert read(meter)["gauges"] == {"oldest_lease": {"control": 0}}


def test_a_meter_reads_distributions() -> None:
    node, meter = metered()
    node.numbers = [("loads_done", "", 2, False)]
    node.distributions = [("load_ns", [(1000000, 2, 1000), (2**64 - 1, 0, 0)])]
    assert read(meter)["histograms"] == {"load_ns": {"0": [2, 1000]}}
    node.numbers = [("loads_done", "", 2, False), ("loads_failed", "deadline", 1, False)]
    node.distributions = [("load_ns", [(1000000, 3, 1800), (2**64 - 1, 0, 0)])]
    assert read(meter)["histograms"] == {"load_ns": {"0": [1, 800]}}
    assert meter.read() is None


def test_a_meter_reads_peers() -> None:
    node, meter = metered()
    node.listed = [(1, PEER, "", 0, [CONTROL], [("bytes", "", 7, False), ("reads_in_flight", "", 1, True)])]
    assert read(meter) == data(peers={PEER: peer(
        {"bytes": {"": 7}}, {"breaker": {"rank 0": {"control": 0}}, "up": {"rank 0": {"control": 1}},
                              "reads_in_flight": {"rank 0": {"": 1}}})})
    assert meter.read() is None
    node.listed = [(1, PEER, "peer_down", 2000, [OPEN], [("bytes", "", 7, False), ("reads_in_flight", "", 1, True),
                                                         ("loads_failed", "peer_down", 1, False)])]
    news = read(meter)["peers"][PEER]
    assert news["counters"] == {"loads_failed": {"peer_down": 1}}
    assert news["gauges"] == {"breaker": {"rank 0": {"control": 2}}, "up": {"rank 0": {"control": 0}}}
    assert time.time() - news["failures"]["peer_down"] == pytest.approx(2.0, abs=0.5)
    node.listed[0] = (1, PEER, "peer_down", 3000, *node.listed[0][4:])
    assert meter.read() is None  # the same failure, older


def test_a_peer_that_goes_leaves_zeros_and_comes_back_with_what_is_new() -> None:
    node, meter = metered()
    node.listed = [(1, PEER, "", 0, [OPEN], [("bytes", "", 7, False)])]
    read(meter)
    node.listed = []
    assert read(meter) == data(peers={PEER: peer(gauges={"breaker": {"rank 0": {"control": 0}}})},
                               gone={"rank 0": [PEER]})
    assert meter.read() is None
    node.listed = [(1, PEER, "", 0, [OPEN], [("bytes", "", 9, False)])]
    assert read(meter)["peers"][PEER]["counters"] == {"bytes": {"": 2}}


def test_two_lives_at_one_address() -> None:
    """The newer one's state is shown, both have counted."""
    node, meter = metered()
    node.listed = [(2, PEER, "", 0, [CONTROL], [("bytes", "", 1, False)]),
                   (1, PEER, "peer_restarted", 0, [OPEN], [("bytes", "", 5, False)])]
    news = read(meter)["peers"][PEER]
    assert news["counters"] == {"bytes": {"": 6}}
    assert news["gauges"]["breaker"] == {"rank 0": {"control": 0}}


# ---- ranks and steps ----

def test_numbers_of_several_nodes_and_steps_add_up() -> None:
    a = Stats(data=data(counters={"loads_done": {"": 1}}, gauges={"leases_untaken": {"rank 0": 1}},
                        histograms={"load_ns": {"3": [1, 5]}},
                        peers={PEER: peer({"bytes": {"": 1}}, {"breaker": {"rank 0": {"control": 2}}},
                                          {"deadline": 5.0})}, gone={"rank 0": ["x"]}))
    b = Stats(data=data(counters={"loads_done": {"": 2}}, gauges={"leases_untaken": {"rank 1": 5, "rank 0": 2}},
                        histograms={"load_ns": {"3": [2, 7], "4": [1, 9]}},
                        peers={PEER: peer({"bytes": {"": 2}}, {"breaker": {"rank 1": {"control": 0}}},
                                          {"deadline": 4.0})}, gone={"rank 1": ["x"]}))
    assert a.aggregate(b).data == data(
        counters={"loads_done": {"": 3}}, gauges={"leases_untaken": {"rank 0": 2, "rank 1": 5}},
        histograms={"load_ns": {"3": [3, 12], "4": [1, 9]}},
        peers={PEER: peer({"bytes": {"": 3}}, {"breaker": {"rank 0": {"control": 2}, "rank 1": {"control": 0}}},
                          {"deadline": 5.0})}, gone={"rank 0": ["x"], "rank 1": ["x"]})


def test_the_log_line() -> None:
    assert Stats(data=data(counters={"load_pings": {"": 1}})).reduce() == {"loads": 0}
    assert Stats(data=data(
        counters={"loads_done": {"": 3}, "bytes_loaded": {"": 2_560_000}, "loads_failed": {"deadline": 1, "peer_down": 2},
                  "verdicts": {"use": 3, "recompute": 2, "fail": 1}, "recomputed_tokens": {"deadline": 30, "peer_down": 12},
                  "leases_ended": {"completed": 9, "expired": 1}, "tickets_refused": {"bad_ticket": 4}},
        gauges={"blocks_quarantined": {"rank 0": 2, "rank 1": 2}},
        histograms={"load_ns": {"1": [2, 4_000_000], "2": [1, 5_000_000]}},
        peers={PEER: peer(gauges={"breaker": {"rank 0": {"control": _kvferry.BREAKER_OPEN}}}), "b": peer()})).reduce() == {
        "loads": 3, "loaded MB": 2.6, "mean load ms": 3.0, "failed deadline": 1, "failed peer_down": 2,
        "failed bad_ticket": 4, "recomputed requests": 2, "recomputed tokens": 42, "failed requests": 1,
        "leases expired": 1, "quarantined blocks": 4, "peers with an open breaker": 1}


# ---- Prometheus ----

def config(**options: str) -> Any:
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=options))


class Prom:
    def __init__(self, **options: str) -> None:
        self.registry = CollectorRegistry()

        def kind(cls: Any) -> Any:
            return lambda **arguments: cls(registry=self.registry, **arguments)

        self.metrics = PromMetrics(config(**options),
                                   {Counter: kind(Counter), Gauge: kind(Gauge), Histogram: kind(Histogram)},
                                   ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]})

    def value(self, name: str, engine: str = "0", **labels: str) -> float | None:
        return self.registry.get_sample_value("kvferry_" + name, {"model_name": "m", "engine": engine, **labels})

    def series(self, label: str, value: str) -> int:
        return sum(sample.labels.get(label) == value for metric in self.registry.collect() for sample in metric.samples)


@pytest.fixture
def prom() -> Prom:
    return Prom()


def test_each_metric_of_the_table_is_registered(prom: Prom) -> None:
    shown = {(metric.name, metric.type) for metric in prom.registry.collect()}
    assert shown == {(name.removesuffix("_total") if kind == "counter" else name, kind)
                     for name, kind, _ in metric_table.names()}


def prefixes_shown(prom: Prom) -> set[str]:
    known = {name.removeprefix(metric_table.PREFIX) for name, _, _ in metric_table.names()}
    bare = {name.removesuffix("_total") for name in known}
    return {metric.name.removesuffix(next(name for name in sorted(bare, key=len, reverse=True) if metric.name.endswith(name)))
            for metric in prom.registry.collect()}


def test_there_is_one_set_of_names() -> None:
    assert prefixes_shown(Prom()) == {"kvferry_"}
    assert prefixes_shown(Prom(metrics_prefix="vllm:kvferry_")) == {"vllm:kvferry_"}


def test_under_dynamo_names_are_like_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker lets only those through."""
    monkeypatch.setitem(sys.modules, "dynamo.vllm", ModuleType("dynamo.vllm"))
    assert prefixes_shown(Prom()) == {"vllm:kvferry_"}
    assert prefixes_shown(Prom(metrics_prefix="kvferry_")) == {"kvferry_"}


def test_a_bad_prefix_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="metrics_prefix"):
        prefix_of({"metrics_prefix": "mine_"})


def test_counters_and_gauges(prom: Prom) -> None:
    assert prom.value("loads_total") == 0
    for news in (data(counters={"recomputed_tokens": {"deadline": 7}, "loads_failed": {"deadline": 1}, "ranks_lost": {"": 2}},
                      gauges={"leases_untaken": {"rank 0": 1, "rank 1": 1}}),
                 data(counters={"tickets_refused": {"bad_ticket": 1}, "from a newer library": {"": 1}},
                      gauges={"leases_untaken": {"rank 0": 0}, "from a newer library": {"rank 0": 1}})):
        prom.metrics.observe(news, 0)
    assert prom.value("recomputed_tokens_total", reason="deadline") == 7
    assert [prom.value("load_failures_total", reason=reason) for reason in ("deadline", "rank_lost", "bad_ticket")
            ] == [1, 2, 1]
    assert [prom.value("leases_untaken", node=node) for node in ("rank 0", "rank 1")] == [0, 1]
    assert prom.value("loads_total", engine="1") == 0


def test_counted_time_is_in_seconds(prom: Prom) -> None:
    prom.metrics.observe(data(counters={"device_copy_ns": {"": 2_500_000_000}}), 0)
    assert prom.value("device_copy_seconds_total") == pytest.approx(2.5)


def test_distributions_keep_buckets_and_sums(prom: Prom) -> None:
    prom.metrics.observe(data(histograms={"load_ns": {"1": [2, 4_600_000], "14": [1, 40_000_000_000]}}), 0)
    assert prom.value("load_seconds_bucket", le="0.001") == 0
    assert prom.value("load_seconds_bucket", le="0.0025") == 2
    assert prom.value("load_seconds_bucket", le="30.0") == 2
    assert prom.value("load_seconds_bucket", le="+Inf") == 3
    assert prom.value("load_seconds_sum") == pytest.approx(40.0046)


def test_values_on_a_bound_stay_below_it(prom: Prom) -> None:
    for i, bound in enumerate(metric_table.SECONDS):
        prom.metrics.observe(data(histograms={"load_ns": {str(i): [3, 3 * round(bound * 1e9)]}}), 0)
        assert prom.value("load_seconds_bucket", le=str(bound)) == 3 * (i + 1)


def test_engines_are_kept_apart(prom: Prom) -> None:
    news = data(counters={"loads_done": {"": 1}}, gauges={"leases_untaken": {"rank 0": 4}},
                peers={PEER: peer({"bytes": {"": 1}}, {"reads_in_flight": {"rank 0": {"": 1}}})})
    prom.metrics.observe(news, 1)
    assert prom.value("loads_total", engine="1") == 1 and prom.value("loads_total") == 0
    assert prom.value("leases_untaken", engine="1", node="rank 0") == 4
    assert prom.value("peer_reads_in_flight", engine="1", node="rank 0", peer=PEER) == 1
    prom.metrics.observe(data(gone={"rank 0": [PEER]}), 0)
    assert prom.series("peer", PEER) > 0
    prom.metrics.observe(data(gone={"rank 0": [PEER]}), 1)
    assert prom.series("peer", PEER) == 0


def test_peers(prom: Prom) -> None:
    prom.metrics.observe(data(peers={PEER: peer(
        {"loads_failed": {"peer_down": 2}, "bytes": {"": 5}},
        {"breaker": {"rank 0": {"control": 2, "tcp": 0}, "control": {"control": 1}}, "reads_in_flight": {"rank 0": {"": 3}}},
        {"peer_down": 99.0})}), 0)
    assert prom.value("peer_load_failures_total", peer=PEER, reason="peer_down") == 2
    assert prom.value("peer_loaded_bytes_total", peer=PEER) == 5
    assert prom.value("peer_breaker", peer=PEER, node="rank 0", link="control", path="control") == 2
    assert prom.value("peer_breaker", peer=PEER, node="rank 0", link="tcp", path="tcp") == 0
    assert prom.value("peer_breaker", peer=PEER, node="control", link="control", path="control") == 1
    assert prom.value("peer_reads_in_flight", peer=PEER, node="rank 0") == 3
    assert prom.value("peer_last_failure_timestamp_seconds", peer=PEER, reason="peer_down") == 99.0


def test_a_peer_s_label_goes_with_the_last_node_that_lists_it(prom: Prom) -> None:
    prom.metrics.observe(data(peers={PEER: peer({"bytes": {"": 5}}, {"up": {"rank 0": {"control": 1},
                                                                             "rank 1": {"control": 1}}})}), 0)
    prom.metrics.observe(data(gone={"rank 0": [PEER]}), 0)
    assert prom.series("peer", PEER) > 0
    prom.metrics.observe(data(gone={"rank 1": [PEER]}), 0)
    assert prom.series("peer", PEER) == 0
    prom.metrics.observe(data(gone={"rank 1": [PEER]}), 0)


def test_peer_labels_are_bounded(prom: Prom) -> None:
    for i in range(PEER_LABELS_MAX + 2):
        prom.metrics.observe(data(peers={f"10.0.0.1:{i}": peer({"bytes": {"": 1}}, {"up": {"rank 0": {"tcp": 1}}})}), 0)
    assert prom.series("peer", f"10.0.0.1:{PEER_LABELS_MAX}") == 0
    assert prom.value("peer_loaded_bytes_total", peer=OTHER) == 2
    prom.metrics.observe(data(gone={"rank 0": ["10.0.0.1:0"]}), 0)
    prom.metrics.observe(data(peers={"new": peer({"bytes": {"": 1}})}), 0)
    assert prom.value("peer_loaded_bytes_total", peer=OTHER) == 3  # its own label takes one


SERVER = """
    import sys, json
    from types import ModuleType, SimpleNamespace
    from prometheus_client import Counter, Gauge, Histogram
    from kvferry.vllm.metrics import PromMetrics
    prom = PromMetrics(SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config={})), {Counter: Counter, Gauge: Gauge, Histogram: Histogram},
                       ["engine"], {0: ["0"]})
    print("ready", flush=True)
    for line in sys.stdin:
        prom.observe(json.loads(line), 0)
        print("observed", flush=True)
"""


def test_several_api_servers_each_hear_a_part(tmp_path: Path) -> None:
    """vLLM gives each step's numbers to one of its servers; what any of them shows is right."""
    import json

    from prometheus_client import multiprocess

    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    servers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(SERVER)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]

    def observe(server: subprocess.Popen[str], news: dict[str, Any]) -> None:
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps(news) + "\n")
        server.stdin.flush()
        assert server.stdout.readline() == "observed\n"

    try:
        for server in servers:
            assert server.stdout and "ready\n" in iter(server.stdout.readline, ""), "vLLM may say something before"
        one, two = servers
        observe(one, data(counters={"loads_done": {"": 1}}, gauges={"leases_untaken": {"rank 0": 3, "rank 1": 3}}))
        observe(two, data(counters={"loads_done": {"": 2}}, gauges={"leases_untaken": {"rank 1": 1}}))
        observe(one, data(peers={PEER: peer(gauges={"breaker": {"rank 0": {"control": 2}}})}))
        observe(two, data(peers={PEER: peer(gauges={"breaker": {"rank 0": {"control": 0}}})}, gone={"rank 0": [PEER]}))
    finally:
        for server in servers:
            server.terminate()
            server.communicate()
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(tmp_path))
    assert registry.get_sample_value("kvferry_loads_total", {"engine": "0"}) == 3
    assert [registry.get_sample_value("kvferry_leases_untaken", {"engine": "0", "node": node})
            for node in ("rank 0", "rank 1")] == [3, 1]
    assert registry.get_sample_value("kvferry_peer_breaker", {"engine": "0", "peer": PEER, "node": "rank 0",
                                                              "link": "control", "path": "control"}) == 0
