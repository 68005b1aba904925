"""README.md's quickstart, line by line as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Venv
from pd import metrics
from pd.client import Reply
from pd.paths import DEV, FAST, LOGS

pytestmark = pytest.mark.deep

LIMIT_S = 400.0
REPLY_S = 15.0
NAMESPACES = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""All ports are free there, and all that was started ends with it, its shared memory too."""
SCRIPT = """
set -e
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
set -m
{ %s
} >"$SAID"
PYTHONPATH="$DEV" "$PYTHON" "$AFTER_A_KILL" "$(jobs -p %%1)" >"$REPLIES"
curl -fsS http://127.0.0.1:8200/metrics
"""
SMALL = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
         "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Engines without a GPU, on two cores, that compile nothing."""


def quickstart() -> str:
    found = re.search(r"^## Quickstart\n.*?^```\n(.*?)^```\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def carried(said: str) -> int:
    """The tokens that were loaded, of the first line of `kvferry why`, which comes last."""
    found = re.findall(r"^ok .* (\d[\d,]*) were loaded", said, re.MULTILINE)
    assert found, said[-4000:]
    return int(found[0].replace(",", ""))


def test_the_quickstart_answers_over_kvferry(vllm_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    """Then P is killed: README promises right tokens."""
    said, replies = tmp_path / "said", tmp_path / "replies"
    env = vllm_venv.env(os.environ["PATH"]) | SMALL | {
        "MODEL": str(FAST), "SAID": str(said), "REPLIES": str(replies), "DEV": str(DEV), "PYTHON": sys.executable,
        "AFTER_A_KILL": str(Path(__file__).with_name("after_a_kill.py"))}
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / "quickstart.log").open("w") as log:
        done = subprocess.run([*NAMESPACES, "bash", "-c", SCRIPT % quickstart()], cwd=ROOT, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=log, timeout=LIMIT_S)
    everything = said.read_text()
    assert done.returncode == 0, everything[-4000:] + (LOGS / "quickstart.log").read_text()[-4000:]
    assert f"Processing ./dist/{wheel.name}" in everything
    assert everything.count("kvferry: policy recompute, from vLLM's kv_load_failure_policy") == 2, "one line an engine"
    answer = re.search(r'^\{"id".*\}', everything, re.MULTILINE)
    assert answer is not None, everything[-4000:]
    assert json.loads(answer[0])["choices"][0]["text"]
    assert carried(everything) > 0
    reply = {name: Reply(**fields) for name, fields in json.loads(replies.read_text()).items()}
    assert reply["before"].tokens == reply["killed"].tokens == reply["altered"].tokens != [], reply
    assert reply["failed"].reason == "bad_ticket", reply
    assert max(one.seconds for one in reply.values()) < REPLY_S, reply
    decode = metrics.parse(done.stdout)
    assert metrics.total(decode, "kvferry_loads_total") == 2
    assert metrics.by_label(decode, "kvferry_recomputed_tokens_total", "reason").keys() == {"peer_down", "bad_ticket"}
