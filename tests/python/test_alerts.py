"""The alerts for Prometheus, by its own promtool, under each of the names that metrics have."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/kvferry.rules.yml"
RUNBOOK = ROOT / "docs/alerts.md"
PROMTOOL = ROOT / ".cache/prometheus/promtool"
PREFIXES = ("kvferry_", "vllm:kvferry_", "ray_kvferry_", "ray_vllm_kvferry_")
STEPS = 90  # minutes
WHO = 'engine="0", instance="10.0.0.1:8000", model_name="m", namespace="n", pod="p"'

Series = dict[str, str]
"""By name and further labels, what a series is, as promtool writes it."""
GROWS, STAYS = f"0+600x{STEPS}", f"7x{STEPS}"
NEVER, ONE = f"0x{STEPS}", f"1x{STEPS}"

CASES: dict[str, tuple[Series, Series]] = {
    "KVFerryNoTickets": ({'no_tickets_total{reason="weights_unknown"}': GROWS},
                         {'no_tickets_total{reason="aborted"}': GROWS, 'no_tickets_total{reason="no_lease"}': f"0+6x{STEPS}",
                          "leases_published_total": GROWS}),
    "KVFerryNotLoaded": ({'not_loaded_total{reason="not_taken"}': GROWS, "requests_total": GROWS, "loads_total": GROWS},
                         {'not_loaded_total{reason="not_taken"}': f"0+6x{STEPS}", "requests_total": GROWS, "loads_total": GROWS}),
    "KVFerryNoLoads": ({"requests_total": GROWS}, {"requests_total": GROWS, "loads_total": GROWS}),
    "KVFerryLoadsFail": ({'load_failures_total{reason="peer_down"}': f"0+60x{STEPS}", "loads_total": GROWS},
                         {'load_failures_total{reason="peer_down"}': f"0+6x{STEPS}", "loads_total": GROWS}),
    "KVFerryRequestsFail": ({'verdicts_total{action="fail"}': GROWS}, {'verdicts_total{action="fail"}': STAYS}),
    "KVFerryRecomputes": ({'verdicts_total{action="recompute"}': GROWS, 'verdicts_total{action="use"}': GROWS},
                          {'verdicts_total{action="recompute"}': f"0+6x{STEPS}", 'verdicts_total{action="use"}': GROWS}),
    "KVFerryNotReleased": ({'loads_not_released{node="rank 0"}': ONE}, {'loads_not_released{node="rank 0"}': NEVER}),
    "KVFerryTransfersStopped": ({'transfers_stopped{node="control"}': ONE}, {'transfers_stopped{node="control"}': NEVER}),
    "KVFerryWeightsDigest": ({"weights_digest_mismatches_total": f"0x30 1x{STEPS}"}, {"weights_digest_mismatches_total": ONE}),
    "KVFerryInternalErrors": ({'internal_errors_total{hook="update"}': f"0x30 1x{STEPS}"}, {'internal_errors_total{hook="update"}': ONE}),
    "KVFerryChecksums": ({"checksum_mismatches_total": f"0x30 1x{STEPS}"}, {"checksum_mismatches_total": STAYS}),
    "KVFerryPeerDown": ({'peer_breaker{node="rank 0", link="tcp", path="tcp", peer="x"}': f"2x{STEPS}",
                         'peer_breaker{node="rank 1", link="tcp", path="tcp", peer="x"}': NEVER},
                        {'peer_breaker{node="rank 0", link="tcp", path="tcp", peer="x"}': ONE}),
    "KVFerryAnotherKey": ({'sessions_refused_total{reason="handshake_refused"}': GROWS},
                          {'sessions_refused_total{reason="protocol"}': GROWS}),
    "KVFerryLeasesExpire": ({'leases_ended_total{cause="expired"}': GROWS, 'leases_ended_total{cause="completed"}': GROWS},
                            {'leases_ended_total{cause="expired"}': f"0+6x{STEPS}", 'leases_ended_total{cause="completed"}': GROWS}),
    "KVFerryAdmissionSlow": ({'oldest_waiting_timestamp_seconds{node="control"}': ONE},
                             {'oldest_waiting_timestamp_seconds{node="control"}': NEVER}),
}
"""By alert: what makes it fire, and what is like it and does not."""


def series(prefix: str, name: str) -> str:
    bare, _, labels = name.partition("{")
    return f"{prefix}{bare}{{{', '.join(filter(None, (labels.removesuffix('}'), WHO)))}}}"


def case(prefix: str, inputs: Series, expression: str, samples: list[float]) -> dict[str, Any]:
    return {"interval": "1m",
            "input_series": [{"series": series(prefix, name), "values": values} for name, values in inputs.items()],
            "promql_expr_test": [{"expr": expression, "eval_time": "80m",
                                  "exp_samples": [{"labels": "{}", "value": value} for value in samples]}]}


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def test_each_alert_has_a_case_and_a_runbook_entry() -> None:
    assert alerts() == list(CASES)
    entries = dict(re.findall(r"^## (\w+)\n\n(\w.+)", RUNBOOK.read_text(), re.M))
    assert list(entries) == alerts()
    assert re.findall(r"runbook: docs/alerts.md#(\w+)", RULES.read_text()) == [name.lower() for name in alerts()]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_alerts_fire_when_they_should_and_else_not(prefix: str, tmp_path: Path) -> None:
    """None fires at what is like the trouble of one of them."""
    tests = [one for alert, (fires, quiet) in CASES.items() for one in (
        case(prefix, fires, f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})', [1]),
        case(prefix, quiet, 'count(ALERTS{alertstate="firing"})', []))]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))  # YAML, too
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault_in_the_rules() -> None:
    done = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"{len(CASES)} rules found" in done.stdout, done.stdout + done.stderr
