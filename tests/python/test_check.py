"""`kvferry check`, on this machine and on nodes of the test's own."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry import Node, Region, __version__, check, cli
from kvferry.vllm import contract, versions

SUBJECTS = {"ptrace", "user", "namespace", "cuda", "ucx", "openssl", "tls", "address", "memlock", "files", "vllm"}


FAKE_CUDA = Path(__file__).resolve().parents[2] / "build/tests/fake_cuda/libcuda-fake.so"


def key_file(folder: Path, text: str) -> str:
    path = folder / text
    path.write_text(text * 16)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def node(closes: Callable[[Any], Any]) -> Callable[..., str]:
    """Opens a rank's node with memory; its address."""
    pool = bytearray(4096)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pool))

    def open_one(registered: bool = True, **options: str) -> str:
        opened = closes(Node({"log_level": "error", "block_tokens": "16", **options}, {"model": "toy"}))
        if registered:
            opened.register([Region(base, 1024, 1024, 4, 1, 1, 0)])
        return check.address_of(opened)

    return open_one


def lines_of(text: str) -> dict[str, str]:
    return {line.split()[1]: line for line in text.splitlines()}


# ---- the machine ----

def test_each_line_says_ok_warn_or_fail(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["check"])
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} - {"gpu"} == SUBJECTS
    levels = [check.LEVELS.index(line.split()[0]) for line in lines]
    assert status == max(levels) < check.FAIL
    assert all(": " in line for line, level in zip(lines, levels) if level != check.OK)


def test_a_process_can_be_read_here() -> None:
    assert check.reads_another_process() == ""


def test_a_process_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "reads_another_process", lambda: "Operation not permitted")
    finding = check.check_ptrace()
    assert finding.level == check.WARN and "ptrace_scope" in finding.way_out and "not permitted" in finding.text


@pytest.mark.parametrize("name, level", [("pid:[4026531836]", check.OK), ("pid:[4026532201]", check.WARN)])
def test_pid_namespace(monkeypatch: pytest.MonkeyPatch, name: str, level: int) -> None:
    monkeypatch.setattr(check.os, "readlink", lambda path: name)
    assert check.check_pid_namespace().level == level


@pytest.mark.parametrize("library, torch_sees, level", [("", False, check.OK), ("", True, check.FAIL), ("/a", False, check.FAIL)])
def test_no_driver_of_gpus(monkeypatch: pytest.MonkeyPatch, library: str, torch_sees: bool, level: int) -> None:
    said = "CUDA cannot be used: x: cuInit: CUDA_ERROR_NO_DEVICE; install NVIDIA's driver"
    monkeypatch.setattr(check._kvferry, "check_memory", lambda kind, named: (check._kvferry.TRANSFER_SETUP, said))
    monkeypatch.setattr(check, "torch_sees_cuda", lambda: torch_sees)
    finding, = check.check_cuda(library)
    assert finding.level == level and "CUDA_ERROR_NO_DEVICE" in finding.text
    assert (finding.way_out == "install NVIDIA's driver") == (level == check.FAIL)


def test_gpus_that_can_do_less(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [(check._kvferry.OK, "0 a"), (check._kvferry.TRANSFER_SETUP, "1 b"), (check._kvferry.TRANSFER_FAILED, "2 c"),
               (check._kvferry.NOT_FOUND, "")]
    monkeypatch.setattr(check._kvferry, "check_memory", lambda kind, named: (check._kvferry.OK, "CUDA 12.8"))
    monkeypatch.setattr(check._kvferry, "check_device", lambda kind, index: devices[index])
    findings = check.check_cuda("")
    assert [(finding.level, finding.subject, finding.text) for finding in findings] == [
        (check.OK, "cuda", "CUDA 12.8"), (check.OK, "gpu", "0 a"), (check.WARN, "gpu", "1 b"), (check.WARN, "gpu", "2 c")]
    assert "local is left out" in findings[2].way_out and "libnvidia-ptxjitcompiler.so.1" in findings[3].way_out


@pytest.mark.skipif(not FAKE_CUDA.exists(), reason="build/ has no fake of CUDA's driver")
@pytest.mark.parametrize("compiler, level, kernels", [("1", "ok ", "kernels: yes"),
                                                      ("0", "warn ", "kernels: CUDA_ERROR_JIT_COMPILER_NOT_FOUND")])
def test_gpus_of_the_fake_driver(compiler: str, level: str, kernels: str) -> None:
    done = subprocess.run([sys.executable, "-m", "kvferry.cli", "check", "--cuda-library", str(FAKE_CUDA)], capture_output=True,
                          text=True, check=False, env={**os.environ, "KVFERRY_FAKE_CUDA_COMPILER": compiler})
    lines = done.stdout.splitlines()
    cuda, = [line for line in lines if line.split()[1] == "cuda"]
    gpus = [line for line in lines if line.split()[1] == "gpu"]
    assert cuda.startswith("ok ") and "CUDA 12.8, 2 devices: 0 Fake GPU 0 GPU-" in cuda
    assert len(gpus) == 2 and all(line.startswith(level) and "by IPC handle (cudaMalloc): yes" in line for line in gpus)
    assert all(kernels in line for line in gpus)


@pytest.mark.parametrize("found, level", [([], check.OK), (["/a"], check.OK), (["/a", "/b"], check.WARN)])
def test_ucx(monkeypatch: pytest.MonkeyPatch, found: list[str], level: int) -> None:
    monkeypatch.setattr(check, "ucx_libraries", lambda: found)
    assert check.check_ucx().level == level


@pytest.mark.parametrize("version, level", [
    ("0.32.0", check.OK), ("0.29.4", check.OK), ("0.33.0", check.OK), ("0.30.0", check.WARN), ("0.34.0", check.WARN), ("0.28.1", check.FAIL)])
def test_vllm_beside_those_tested(monkeypatch: pytest.MonkeyPatch, version: str, level: int) -> None:
    vllm = pytest.importorskip("vllm")
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(contract, "troubles", list)
    (finding,) = check.check_vllm()
    assert finding.level == level and version in finding.text


@pytest.mark.parametrize("is_guard, version, level", [(True, "0.32.0", check.FAIL), (True, "0.34.0", check.FAIL),
                                                      (False, "0.32.0", check.OK), (False, "0.34.0", check.WARN)])
def test_a_contract_that_is_broken(monkeypatch: pytest.MonkeyPatch, is_guard: bool, version: str, level: int) -> None:
    vllm = pytest.importorskip("vllm")
    entry = next(entry for entry in contract.CONTRACT if entry.is_guard == is_guard)
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(contract, "troubles", lambda: [(entry, "is not there")])
    _, finding = check.check_vllm()
    assert finding.level == level and entry.why in finding.text


def test_the_readme_names_the_same_versions_of_vllm() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert f"vLLM {versions.names()}" in readme


def test_a_low_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.resource, "getrlimit", lambda what: (64, 64))
    assert check.check_limit("files", resource.RLIMIT_NOFILE, 65, "few", "raise it") == (check.WARN, "files", "64, few", "raise it")
    assert check.check_limit("files", resource.RLIMIT_NOFILE, 64, "few", "raise it").level == check.OK


def test_ports_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first, = check.check_port(f"lo:{port}", "127.0.0.1", 1)
        assert check.check_port(f"lo:{port}-{port}", "127.0.0.1", 1)[0].level == check.FAIL
    assert first.level == check.FAIL and f"{port} of rank 0" in first.text
    assert check.check_port(f"lo:{port}", "127.0.0.1", 1)[0].level == check.OK
    assert check.check_port(f"lo:{port}-{port}", "127.0.0.1", 1)[0].level == check.OK
    for listen in ("127.0.0.1", "127.0.0.1:0", "::1", "[::1]"):
        assert check.check_port(listen, "127.0.0.1", 1) == []
    assert check.check_port(f"lo:{port}", "", 1) == []


def test_an_address_for_all_names_none() -> None:
    assert check.check_address("0.0.0.0:7000", "")[0].level == check.WARN


def test_where_an_engine_would_listen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for listen in ("", "lo", "lo:7000-7099", "127.0.0.0/8:7000"):
        finding, host = check.check_address(listen, "")
        assert (finding.level, host) == (check.OK, "127.0.0.1")
        assert ("for this host alone" in finding.text) == (listen == "")
    finding, host = check.check_address("10.99.99.99:7000", "")
    assert (finding.level, host) == (check.FAIL, "") and "needs a shared key" in finding.text and "--key-file" in finding.way_out
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.77")
    assert check.check_address("", "")[1] == "127.0.0.1"
    assert check.check_address("", key_file(tmp_path, "a"))[1] == "127.0.0.77"


@pytest.mark.parametrize("listen, parts", [
    ("10.0.0.1", ("10.0.0.1", "")), ("10.0.0.0/8:7000", ("10.0.0.0/8", "7000")), ("eth0:70-79", ("eth0", "70-79")), ("fd00::1", ("fd00::1", "")),
    ("[fd00::1]", ("[fd00::1]", "")), ("[fd00::1]:70", ("[fd00::1]", "70")), ("", ("", ""))])
def test_places_and_ports(listen: str, parts: tuple[str, str]) -> None:
    assert check.split_listen(listen) == parts


# ---- a node ----

@pytest.mark.parametrize("tls", ["never", "always"])
def test_a_node_with_our_key(node: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str], tls: str) -> None:
    key = key_file(tmp_path, "a")
    address = node(key_file=key, tls=tls)
    assert cli.main(["check", address, "--key-file", key, "--tls", tls]) == check.OK
    lines = lines_of(capsys.readouterr().out)
    assert list(lines) == ["reach", "handshake", "version", "transports", "ping", "speed"]
    assert re.search(r"connected in \d+\.\d\d ms", lines["reach"])
    assert "the key fits" in lines["handshake"] and ("no TLS" in lines["handshake"]) == (tls == "never")
    assert f"there kvferry {__version__}, protocol " in lines["version"] and f"here kvferry {__version__}" in lines["version"]
    assert "offers local, tcp; this machine can use local, tcp" in lines["transports"]
    assert re.search(r"a round trip takes \d+\.\d\d ms", lines["ping"])
    assert re.search(r" \d+\.\d\d GB/s: \d+ MiB of test bytes", lines["speed"])


def test_the_key_of_the_environment(node: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """As an engine's pod has it, which the alerts' runbook runs this in."""
    key = key_file(tmp_path, "a")
    monkeypatch.setenv("KVFERRY_KEY_FILE", key)
    assert cli.main(["check", node(key_file=key, tls="never"), "--tls", "never"]) == check.OK
    assert "the key fits" in lines_of(capsys.readouterr().out)["handshake"]


def test_a_node_without_memory(node: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", node(registered=False)]) == check.WARN
    assert "offers none yet: its engine has not registered" in lines_of(capsys.readouterr().out)["transports"]


@pytest.mark.parametrize("offered, host, level, both", [(["local", "tcp"], "192.0.2.1", check.OK, "use tcp"),
                                                        (["local"], "192.0.2.1", check.FAIL, "none of them"),
                                                        (["local"], "127.0.0.1", check.OK, "use local"),
                                                        (["later"], "::1", check.FAIL, "none of them")])
def test_transports_that_both_can_use(offered: list[str], host: str, level: int, both: str) -> None:
    finding = check.check_transports(offered, host)
    assert finding.level == level and both in finding.text


def test_a_node_without_a_key(node: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", node()]) == check.OK
    assert "neither side has a key" in capsys.readouterr().out


@pytest.mark.parametrize("tls", ["never", "always"])
def test_a_node_with_another_key(node: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str], tls: str) -> None:
    address = node(key_file=key_file(tmp_path, "a"), tls=tls)
    assert cli.main(["check", address, "--key-file", key_file(tmp_path, "b"), "--tls", tls]) == check.FAIL
    line = lines_of(capsys.readouterr().out)["handshake"]
    assert line.startswith("FAIL") and "handshake_refused" in line and "key_file" in line


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        assert cli.main(["check", f"127.0.0.1:{unheard.getsockname()[1]}"]) == check.FAIL
    assert "firewalls" in lines_of(capsys.readouterr().out)["reach"]


def test_something_else_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer() -> None:
            while True:
                try:
                    other, _ = server.accept()
                except OSError:
                    return
                with other:
                    other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert cli.main(["check", f"127.0.0.1:{server.getsockname()[1]}"]) == check.FAIL
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    said = lines_of(capsys.readouterr().out)["handshake"]
    assert said.startswith("FAIL") and "this is an HTTP server: give the control address of a rank" in said and ".:" not in said


def test_a_server_that_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "HANDSHAKE_TIMEOUT_MS", "100")
    monkeypatch.setattr(check, "HTTP_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert cli.main(["check", f"127.0.0.1:{server.getsockname()[1]}"]) == check.FAIL
    assert "handshake_timeout_ms: is it a kvferry node" in lines_of(capsys.readouterr().out)["handshake"]


@pytest.mark.parametrize("address, way_out", [
    ("host", "HOST:PORT"), ("127.0.0.1:0", "a port of 1 to 65535"), ("127.0.0.1:x", "a port of 1 to 65535"), ("127.0.0.1:70000", "a port of 1 to 65535"),
    ("nohost.invalid:7000", "is the host's name right")])
def test_a_bad_address(capsys: pytest.CaptureFixture[str], address: str, way_out: str) -> None:
    assert cli.main(["check", address]) == check.FAIL
    said = lines_of(capsys.readouterr().out)["reach"]
    assert way_out in said and "firewalls" not in said


@pytest.mark.parametrize("tls, what", [("never", "handshake"), ("off_loopback", "handshake"), ("always", "key")])
def test_without_the_node_s_key(node: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str], tls: str, what: str) -> None:
    address = node(key_file=key_file(tmp_path, "a"), tls=tls)
    assert cli.main(["check", address, "--tls", tls]) == check.FAIL
    assert lines_of(capsys.readouterr().out)[what].endswith(": you gave no key: --key-file FILE")


def test_a_key_file_that_cannot_be_read(node: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", node(), "--key-file", "/nonexistent"]) == check.FAIL
    said = lines_of(capsys.readouterr().out)["key"]
    assert "No such file" in said and said.endswith(": name a key file that this user can read: --key-file FILE")


# ---- the command ----

@pytest.mark.parametrize("words, said", [(["--version"], f"kvferry {__version__}"), (["--help"], "check"),
                                         (["check", "--help"], "--key-file"), (["top", "--help"], "--once")])
def test_help_and_version(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "kvferry.cli", *words], capture_output=True, text=True, check=False,
                          env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0 and said in done.stdout
