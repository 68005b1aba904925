"""`kvferry why`, `kvferry options` and `kvferry explain`, on pages of metrics that are written here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import RECORDED, Serve

pytest.importorskip("prometheus_client")

from kvferry import _kvferry, cli  # noqa: E402
from kvferry.metric_table import PREFIX, names  # noqa: E402
from kvferry.vllm.config import OF_CONNECTOR  # noqa: E402
from kvferry.vllm_options import TABLE  # noqa: E402
from kvferry.why import judge, table  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RAY = "ray_vllm_kvferry_"
P_WELL = {"leases_published_total": 40, 'leases_ended_total{cause="completed"}': 40}
D_WELL = {"requests_total": 40, "loads_total": 40, 'verdicts_total{action="use"}': 40,
          'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': 900, 'vllm:prompt_tokens_by_source_total{source="local_compute"}': 100,
          'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 0, "vllm:request_prompt_tokens_count": 10,
          "vllm:request_prompt_tokens_sum": 1000, 'vllm:cache_config_info{block_size="32"}': 1}
IDLE = {"requests_total": 0, "leases_published_total": 0}
Counts = dict[str, float]


def page(counts: Counts, prefix: str = PREFIX, **labels: str) -> bytes:
    """One engine's metrics, a line each: "NAME" or "NAME{LABEL="VALUE"}"."""
    def line(name: str, value: float) -> str:
        bare, _, rest = name.partition("{")
        all_labels = ",".join([*filter(None, [rest.rstrip("}")]), *(f'{label}="{text}"' for label, text in labels.items())])
        bare = (prefix.replace("kvferry_", "") if "ray" in prefix else "vllm:") + bare.removeprefix("vllm:") if "vllm:" in bare else prefix + bare
        return f"{bare}{{{all_labels}}} {value}\n"
    return "".join(line(name, value) for name, value in counts.items()).encode()


def without(counts: Counts, *names_: str) -> Counts:
    return {name: value for name, value in counts.items() if name.partition("{")[0] not in names_}


def failed(reason: str, count: int = 40) -> Counts:
    """All D's loads."""
    return without(D_WELL, "loads_total") | {f'load_failures_total{{reason="{reason}"}}': count}


def why(serve: Serve, capsys: pytest.CaptureFixture[str], *pages: bytes | Counts) -> tuple[int, list[str]]:
    status = cli.main(["why", *(serve(one if isinstance(one, bytes) else page(one)) for one in pages)])
    return status, capsys.readouterr().out.splitlines()


def first(serve: Serve, capsys: pytest.CaptureFixture[str], *pages: bytes | Counts) -> str:
    status, lines = why(serve, capsys, *pages)
    assert (status == 1) == lines[0].startswith("FAIL") and lines[1] == "" and lines[8] == ""
    assert [line.split()[1] for line in lines[2:8]] == list("123456")
    if lines[0].startswith("FAIL"):
        assert next(line for line in lines[2:8] if line.startswith("FAIL")) == lines[0]
    return lines[0]


@pytest.mark.parametrize("prefix", [PREFIX, "vllm:kvferry_"])
def test_all_is_well(serve: Serve, capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    status, lines = why(serve, capsys, page(D_WELL, prefix), page(P_WELL, prefix))
    assert status == 0
    assert lines[0] == ("ok    6 all     no step fails: 40 loads arrived; of D's 1,000 prompt tokens 900 were loaded (90 %), 0 were in its own "
                        "cache, 100 were computed there")
    assert all(line.startswith("ok ") for line in lines[2:8]) and "since each engine's start" in lines[-1]
    assert lines[3].endswith("D has seen 40 of P's 40 tickets")


FAILS = {
    "nobody asks P": (IDLE, IDLE, "1 tickets not_asked: .*do_remote_decode"),
    "no room at P": ({'no_tickets_total{reason="no_lease"}': 30, "leases_published_total": 10}, D_WELL,
                     "1 tickets P has given 10 tickets; no_lease 30: .*more decode engines"),
    "P is stopped": (P_WELL | {'transfers_stopped{node="control"}': 1}, D_WELL, "1 tickets transfers_stopped: "),
    "the router drops tickets": (P_WELL, IDLE, "2 router  not_brought: D has seen 0 of P's 40 tickets: .*kv_transfer_params"),
    "the router drops some": (P_WELL | {'leases_ended_total{cause="expired"}': 20}, D_WELL | {"requests_total": 20},
                              "2 router  not_brought: D has seen 20 of P's 40 tickets: "),
    "another key": (P_WELL, IDLE | {'load_failures_total{reason="other_key"}': 40}, "3 ticket  D has taken 0 tickets; other_key 40: .*key_file"),
    "other weights": (P_WELL, IDLE | {'load_failures_total{reason="incompatible"}': 40}, "3 ticket .*incompatible 40: .*same model"),
    "D's weights": (P_WELL, IDLE | {'not_loaded_total{reason="weights_unknown"}': 40}, "4 use     D has left 40 tickets unused; weights_unknown 40"),
    "D is stopped": (P_WELL, D_WELL | {'transfers_stopped{node="control"}': 1}, "4 use     transfers_stopped: "),
    "a short lease": (P_WELL, failed("lease_expired"), "5 load    0 loads arrived; lease_expired 40: .*lease_ttl_ms"),
    "a wrong port": (P_WELL, failed("peer_down") | {'peer_load_failures_total{reason="peer_down",peer="10.0.0.1:7"}': 40},
                     "5 load    0 loads arrived; peer_down 40 at 10.0.0.1:7: .*kvferry check 10.0.0.1:7"),
    "a reason of tomorrow": (P_WELL, failed("new_reason"), "5 load .*new_reason 40: kvferry explain new_reason"),
    "errors, as the policy says": (P_WELL, failed("lease_expired") | {'verdicts_total{action="fail"}': 40},
                                   "5 load .*lease_expired 40; policy fail: 40 requests ended with an error: "),
    "errors of a budget": (P_WELL, D_WELL | {'verdicts_total{action="fail"}': 20}, "6 all     policy_fail: 20 requests of 60 ended with an error"),
}
LESS = {
    "short prompts": (P_WELL, D_WELL | {"vllm:request_prompt_tokens_sum": 200}, "6 all     short_prompts: a prompt has 20 tokens on average, a block 32"),
    "D's own cache": (P_WELL, D_WELL | {'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 901}, "6 all     own_cache: .* 901 were in"),
}


@pytest.mark.parametrize("p, d, said", FAILS.values(), ids=FAILS)
def test_the_first_step_that_fails(serve: Serve, capsys: pytest.CaptureFixture[str], p: Counts, d: Counts, said: str) -> None:
    assert re.match("FAIL  " + said, first(serve, capsys, p, d))


@pytest.mark.parametrize("p, d, said", LESS.values(), ids=LESS)
def test_less_than_it_looks(serve: Serve, capsys: pytest.CaptureFixture[str], p: Counts, d: Counts, said: str) -> None:
    assert re.match("less  " + said, first(serve, capsys, p, d))


@pytest.mark.parametrize("d, said", [(IDLE, "2 router  not_brought: "), (failed("peer_down", 10), "5 load ")])
def test_room_that_is_held_by_leases_that_nobody_ends(serve: Serve, capsys: pytest.CaptureFixture[str], d: Counts, said: str) -> None:
    """It is the consequence."""
    p = {'no_tickets_total{reason="no_lease"}': 30, "leases_published_total": 10}
    _, lines = why(serve, capsys, p, d)
    assert lines[0].startswith("FAIL  " + said) and lines[2].startswith("FAIL  1 tickets P has given 10 tickets; no_lease 30: ")


def test_an_engine_beside_them_that_is_idle(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(serve, capsys, P_WELL, IDLE, D_WELL)[0] == 0


def test_the_first_of_several(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    line = first(serve, capsys, P_WELL, failed("deadline") | {'load_failures_total{reason="bad_ticket"}': 30, "requests_total": 10})
    assert line.startswith("FAIL  3 ticket  D has taken 10 tickets; bad_ticket 30: ")


def test_a_few_failures_are_said_and_are_no_failing_step(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """These pages are of a release that had no metrics of the last step."""
    status, lines = why(serve, capsys, (RECORDED / "d_2.txt").read_bytes(), (RECORDED / "p_2.txt").read_bytes())
    assert status == 0 and lines[0].startswith("ok    6 all     no step fails: 4,160 loads arrived; peer_down 5, lease_expired 1")
    assert lines[7].startswith("?     6 all     D's page has no vllm:prompt_tokens_by_source_total, ")


def test_a_page_without_the_size_of_a_block(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """As Ray's is."""
    assert first(serve, capsys, P_WELL, without(D_WELL, "vllm:cache_config_info")).endswith(
        "900 were loaded (90 %), 0 were in its own cache, 100 were computed there; "
        "prompts are not compared with a block: D's page has no vllm:cache_config_info")


def test_loopback_on_two_hosts() -> None:
    """The hosts are those of the URLs."""
    def of(url: str, counts: Counts) -> judge.Engine:
        snapshot = judge.Snapshot(url, 0.0, judge_samples(counts))
        return judge.Engine(snapshot, snapshot)
    d = failed("peer_down") | {'peer_load_failures_total{reason="peer_down",peer="127.0.0.1:7"}': 40}
    for p_host, says in (("10.0.0.2", True), ("10.0.0.1", False)):
        made = judge.lines(judge.sides_of([of(f"http://{p_host}:8000/metrics", P_WELL), of("http://10.0.0.1:8000/metrics", d)]))
        line = judge.verdict(made).text_of()
        assert line.startswith("FAIL  5 load ") and ("loopback address" in line) == says and "127.0.0.1:7" in line


def judge_samples(counts: Counts) -> list[judge.Sample]:
    from kvferry.top import scrape

    return scrape.parse(page(counts).decode(), of_vllm=tuple(table.OF_VLLM.values()))


def test_ranks_are_counted_once(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    p = P_WELL | {"leases_published_total": 80, 'sessions_open{node="rank 0"}': 1, 'sessions_open{node="rank 1"}': 1}
    _, lines = why(serve, capsys, p, D_WELL | {'requests_open{node="control"}': 3})
    assert lines[6].endswith("40 loads arrived, 3 requests not over yet")
    assert lines[2].endswith("P has given 40 tickets") and lines[3].startswith("ok")


def test_ray_shows_all_replicas_on_one_page(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    both = page(P_WELL, RAY, ReplicaId="p") + page(failed("deadline"), RAY, ReplicaId="d")
    assert first(serve, capsys, both).startswith("FAIL  5 load    0 loads arrived; deadline 40: ")
    assert why(serve, capsys, page(P_WELL, RAY, ReplicaId="p") + page(D_WELL, RAY, ReplicaId="d"))[0] == 0


# ---- one of the two ----

def test_without_p(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = why(serve, capsys, D_WELL)
    assert status == 0 and lines[2].startswith("?     1 tickets P is missing: ") and lines[3].endswith("D has seen 40 tickets")
    assert first(serve, capsys, failed("deadline")).startswith("FAIL  5 load ")


def test_without_d(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = why(serve, capsys, P_WELL | {'leases_ended_total{cause="expired"}': 7})
    assert status == 0 and lines[2].startswith("ok    1 tickets P has given 40") and all("D is missing: " in line for line in lines[3:8])
    assert "at P 7 leases of 40 ran out unread" in lines[3]


# ---- what cannot be read, and two looks ----

def test_an_engine_that_cannot_be_read(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", serve(503)]) == 2
    assert cli.main(["why", serve(page(D_WELL)), serve(503)]) == 2
    assert "HTTP 503: is this the port of a vLLM API server?" in capsys.readouterr().err
    assert cli.main(["why", serve(page(failed("peer_down"))), serve(503)]) == 1  # P is dead, and D knows
    assert cli.main(["why", "h:99999"]) == 2


def test_what_came_since(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """An old failure is over; an engine that was started anew in between counts from 0."""
    old = page(failed("deadline") | {"vllm:request_prompt_tokens_count": 90, "loads_total": 100})
    new = page(D_WELL | {"requests_total": 80, "loads_total": 140, 'load_failures_total{reason="deadline"}': 40})
    assert cli.main(["why", "--since", "0.1", serve(page(P_WELL), page(P_WELL | {"leases_published_total": 80})), serve(old, new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("P has given 40 tickets") and lines[6].endswith("5 load    40 loads arrived")
    assert lines[-1] == "Counted in the last 0.1 s."


def test_without_prometheus_client_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client.parser'] = None; from kvferry.cli import main; sys.exit(main(['why', 'h']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install" in done.stderr


# ---- the table ----

def test_each_reason_has_a_step_and_a_remedy() -> None:
    of_loads = {reason[0] for reason in _kvferry.reasons() if reason[1] not in ("nothing", "call")}
    known = {name for step in table.STEPS for name in step.causes}
    assert of_loads <= known
    assert all(cause.remedy and cause.remedy[-1] != "." for step in table.STEPS for cause in step.causes.values())
    meanings = of_loads | {"limit"}
    assert all(cause.meaning or name in meanings for step in table.STEPS for name, cause in step.causes.items())


def test_each_metric_of_a_step_exists() -> None:
    assert {PREFIX + name for step in table.STEPS for name in step.metrics} <= {name for name, _, _ in names()}


def test_each_log_line_of_a_step_is_written_somewhere() -> None:
    """But for what stands for something else there."""
    sources = "".join(path.read_text() for folder in ("python/kvferry", "src") for path in (ROOT / folder).rglob("*.*")
                      if path.suffix in (".py", ".c") and path.parent.name != "why")
    for step in table.STEPS:
        words = [part.strip(" ()") for part in re.split(r"REASON:?|\d of \d|=", step.log)]
        assert all(part in sources for part in words), f"{step.name}: no line of the log has {words}: mend `log` in why/table.py"


# ---- the library's tables ----

def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row[0] for row in TABLE} == set(OF_CONNECTOR)
    assert cli.main(["options"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [row[0] for row in (*_kvferry.options(), *TABLE)]
    assert cli.main(["options", "lease_ttl_ms"]) == 0
    assert "default: 30000 ms\nallowed: 100 to 3600000 ms\n" in capsys.readouterr().out
    assert cli.main(["options", "lease_wait_ms"]) == 0
    assert cli.main(["options", "lease_ttl"]) == 2
    assert "did you mean lease_ttl_ms?" in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 0
    listed = capsys.readouterr().out.split()
    assert {reason[0] for reason in _kvferry.reasons()} | table.causes_of_connector().keys() <= set(listed)
    for name in listed:
        assert cli.main(["explain", name]) == 0
        assert len(capsys.readouterr().out) > 20
    assert cli.main(["explain", "lease_expired"]) == 0
    assert "another producer, or a new ticket, may help" in (said := capsys.readouterr().out) and "kvferry why, step load, at D: " in said
    assert cli.main(["explain", "leas_expired"]) == 2 and cli.main(["explain", "zzz"]) == 2
    assert "did you mean lease_expired?" in (said := capsys.readouterr().err) and "`kvferry explain` lists them" in said
