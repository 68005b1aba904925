"""`kvferry check`: what works on this machine, or between this machine and a node. Each finding says the way out."""

from __future__ import annotations

import ctypes
import glob
import http.client
import importlib.util
import itertools
import os
import re
import resource
import signal
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from . import Error, Node, __version__, _kvferry, prompt_hash

OK, WARN, FAIL = range(3)
LEVELS = ("ok", "warn", "FAIL")
FDS_WANTED = 4096
"""connections_max of each kind, and as many data connections."""
MEMLOCK_WANTED = 64 << 20
CAP_SYS_PTRACE = 19
MACHINE_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of Linux: what a container shows that has one of its own is another number."""
PR_SET_PTRACER = 0x59616d61
PTRACER_ANY = ctypes.c_ulong(-1)
HANDSHAKE_TIMEOUT_MS = "5000"
HTTP_TIMEOUT_S = 2.0
NO_KEY = "you gave no key: --key-file FILE"
WAYS_OUT = {
    "peer_down": "start the engine; open the port in firewalls",
    "handshake_refused": "give both nodes the same key_file, and the same option tls",
    "handshake_timeout": "is it a kvferry node that listens there, and with the same option tls?",
    "incompatible": "install one version of kvferry on all machines",
    "protocol": "is it a kvferry node that listens there?",
}


class Finding(NamedTuple):
    level: int
    subject: str
    text: str
    way_out: str = ""

    def line(self) -> str:
        text = f"{self.text.rstrip('.')}: {self.way_out}" if self.way_out else self.text
        return f"{LEVELS[self.level]:4}  {self.subject:10} {text}"


def verdict(findings: list[Finding]) -> int:
    """The exit status: 0 all is well, 1 something may be, 2 something does not work."""
    return max((finding.level for finding in findings), default=OK)


# ---- this machine ----

def read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def reads_another_process() -> str:
    """Why process_vm_readv cannot read a process that allows it, as engines do; empty if it can."""
    libc = ctypes.CDLL(None, use_errno=True)
    theirs, ours = ctypes.create_string_buffer(b"before"), ctypes.create_string_buffer(6)
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PTRACER, PTRACER_ANY, 0, 0, 0)
        theirs.value = b"after!"
        os.write(ready_w, b"x")
        signal.pause()
    try:
        os.read(ready_r, 1)
        local = _Iovec(ctypes.addressof(ours), 6)
        remote = _Iovec(ctypes.addressof(theirs), 6)
        count = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        return "" if count == 6 and ours.raw == b"after!" else os.strerror(ctypes.get_errno())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready_r)
        os.close(ready_w)


def check_ptrace() -> Finding:
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope") or "none"
    found = re.search(r"CapEff:\s*(\w+)", read_text("/proc/self/status"))
    capable = found is not None and int(found.group(1), 16) >> CAP_SYS_PTRACE & 1 == 1
    state = f"yama scope {scope}, CAP_SYS_PTRACE {'yes' if capable else 'no'}"
    if trouble := reads_another_process():
        return Finding(WARN, "ptrace", f"transport local cannot read another process ({trouble}; {state}); tcp is taken instead",
                       "allow process_vm_readv in the container's seccomp profile (docker: --cap-add SYS_PTRACE), "
                       "or set kernel.yama.ptrace_scope to 1")
    return Finding(OK, "ptrace", f"another process can be read ({state})")


def check_user() -> Finding:
    return Finding(OK, "user", f"{os.geteuid()}: engines that read each other by transport local run as the same user")


def check_pid_namespace() -> Finding:
    try:
        name = os.readlink("/proc/self/ns/pid")
    except OSError:
        name = "unknown"
    if name != MACHINE_PID_NAMESPACE:
        return Finding(WARN, "namespace", f"{name} is not the machine's; engines in another one are read by tcp, those on GPUs as well",
                       "share it for transport local (docker: --pid; Kubernetes: shareProcessNamespace)")
    return Finding(OK, "namespace", f"{name}: engines that read each other by transport local share it")


def torch_sees_cuda() -> bool:
    """Asked only where there are devices: to import torch takes seconds."""
    if not glob.glob("/dev/nvidia[0-9]*") or importlib.util.find_spec("torch") is None:
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


WITHOUT_HANDLES = "the transport local is left out there, and tcp is taken instead"
WITHOUT_KERNELS = ("copies take their place, which is slower: the driver's libnvidia-ptxjitcompiler.so.1 must be there, "
                   "CUDA_DISABLE_PTX_JIT unset, and some memory of the device free")


def check_cuda(library: str) -> list[Finding]:
    """The driver, and what each GPU can do. That there is none is no trouble unless somebody wants one."""
    status, found = _kvferry.check_memory(_kvferry.MEMORY_CUDA, library)
    if status != _kvferry.OK:
        trouble, _, way_out = found.rpartition("; ")
        if library or torch_sees_cuda():
            return [Finding(FAIL, "cuda", trouble, way_out)]
        return [Finding(OK, "cuda", f"{trouble}; only KV on GPUs needs it")]
    findings = [Finding(OK, "cuda", found)]
    for index in itertools.count():
        status, found = _kvferry.check_device(_kvferry.MEMORY_CUDA, index)
        if status == _kvferry.NOT_FOUND:
            break
        findings.append(Finding(OK, "gpu", found) if status == _kvferry.OK else Finding(
            WARN, "gpu", found, WITHOUT_HANDLES if status == _kvferry.TRANSFER_SETUP else WITHOUT_KERNELS))
    return findings


def ucx_libraries() -> list[str]:
    """The UCX of the system, and those that wheels bring along."""
    places = [*glob.glob("/usr/lib/*/libucp.so.0"), *glob.glob("/usr/lib64/libucp.so.0"), *glob.glob("/usr/local/lib/libucp.so.0")]
    for name in ("nixl", "nixl_cu12", "nixl_cu13", "libucx"):
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            places += glob.glob(f"{folder}/**/libucp*.so*", recursive=True)
            places += glob.glob(f"{Path(folder).parent}/.{name}*.libs/libucp*.so*")
            places += glob.glob(f"{Path(folder).parent}/{name}*.libs/libucp*.so*")
    return sorted({os.path.realpath(place) for place in places})


def check_ucx() -> Finding:
    found = ucx_libraries()
    if not found:
        return Finding(OK, "ucx", "not there; only the transport ucx needs it (libucx0, or pip install libucx-cu12)")
    if len(found) > 1:
        return Finding(WARN, "ucx", f"several: {', '.join(found)}", "name one by the option ucx_library; two in one process take "
                       "each other's signal handlers and memory hooks")
    return Finding(OK, "ucx", found[0])


def check_openssl() -> Finding:
    loaded = sorted(set(re.findall(r"\S*/libcrypto[^\s]*", read_text("/proc/self/maps"))))
    named = f"{ssl.OPENSSL_VERSION}; loaded: {', '.join(loaded) or 'none'}"
    if ssl.OPENSSL_VERSION_INFO < (3, 0):
        return Finding(FAIL, "openssl", named, "kvferry needs OpenSSL 3.0 or later")
    return Finding(OK, "openssl", named)


def address_of(node: Node) -> str:
    """Where a node listens, as a ticket of its own names it."""
    prompt = prompt_hash(bytes(4), b"")
    node.set_ranks([node.address()])
    _, lease, _ = node.lease_reserve(1, 0)
    assert lease is not None
    _, ticket = node.ticket_make(lease, prompt, (bytes(4),))
    assert ticket is not None
    _, request = node.request_open(ticket, prompt, 0, {})
    assert request is not None
    return request[3]


def check_tls() -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_text(os.urandom(16).hex())
        key.chmod(0o600)
        options = {"key_file": str(key), "tls": "always", "log_level": "error"}
        try:
            node = Node({**options, "listen": "127.0.0.1"}, {})
        except Error as error:
            return Finding(FAIL, "tls", f"a node with a key does not open ({error})", "see openssl above")
        try:
            status, message, _ = _kvferry.check_node(address_of(node), options)
        finally:
            node.close()
    if status != _kvferry.OK:
        return Finding(FAIL, "tls", f"a handshake with this machine itself: {message}", "see openssl above")
    return Finding(OK, "tls", "TLS 1.3 with a shared key works")


def split_listen(listen: str) -> tuple[str, str]:
    """Its place, and its port or range of ports, if it has one."""
    if listen.count(":") > 1 and not listen.startswith("["):
        return listen, ""  # IPv6
    host, separator, port = listen.rpartition(":")
    return (host, port) if separator and not port.endswith("]") else (listen, "")


def check_address(listen: str, key_file: str) -> tuple[Finding, str]:
    """Where an engine would listen, with this key. It is tried, at any port: what the address comes to, "" if to none."""
    host = split_listen(listen)[0]
    if host in ("0.0.0.0", "[::]", "::"):
        return Finding(WARN, "address", f"{host} names no address", "set advertise, too, or an address, an interface or a network"), host
    given = {"listen": host} if host else {}
    try:
        node = Node({"transports": "tcp", "log_level": "error", "key_file": key_file, **given}, {}, 0)
    except Error as error:
        return Finding(FAIL, "address", str(error), "name the engines' key by --key-file, and an address of this machine"), ""
    try:
        host = address_of(node).rpartition(":")[0]
    finally:
        node.close()
    if host == "127.0.0.1" and not listen:
        return Finding(OK, "address", f"engines listen on {host}, for this host alone; with a key (--key-file), and a default route "
                                      "or KVFERRY_LISTEN, for others"), host
    return Finding(OK, "address", f"engines listen on {host}, and tickets name it"), host


def check_port(listen: str, host: str, ranks: int) -> list[Finding]:
    """Whether each rank's port is free at `host`; a port that any may take is."""
    first, _, last = split_listen(listen)[1].partition("-")
    if not first.isdigit() or int(first) == 0 or not host:
        return []
    if last.isdigit():
        free = sum(port_trouble(host, number) == "" for number in range(int(first), min(int(last), 65535) + 1))
        return [Finding(OK if free >= ranks else FAIL, "port", f"{free} of {first}-{last} are free, for {ranks} ranks",
                        "" if free >= ranks else "give a longer range, or leave the ports out")]
    findings = []
    for rank in range(ranks):
        number = int(first) + rank
        trouble = port_trouble(host, number)
        findings.append(Finding(FAIL, "port", f"{number} of rank {rank}: {trouble}", "choose another, or leave the port out") if trouble
                        else Finding(OK, "port", f"{number} of rank {rank} is free"))
    return findings


def port_trouble(host: str, port: int) -> str:
    """Why nobody can listen there; "" if it is free."""
    try:
        info = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(info[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(info[4])
    except (OSError, OverflowError) as error:
        return str(error)
    return ""


def check_limit(subject: str, what: int, wanted: int, meaning: str, way_out: str) -> Finding:
    soft, _ = resource.getrlimit(what)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return Finding(WARN, subject, f"{soft}, {meaning}", way_out)
    return Finding(OK, subject, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))


def check_vllm() -> list[Finding]:
    """Its version, and all that an engine's start would look at, and more: what its workers import."""
    if importlib.util.find_spec("vllm") is None:
        return [Finding(WARN, "vllm", "not in this Python", "install kvferry next to vLLM, and run kvferry from there")]
    from kvferry.vllm import contract, versions
    version = importlib.import_module("vllm").__version__
    found = f"{version}; kvferry {__version__} is tested with {versions.names()}"
    try:
        versions.check(version)
    except versions.VersionError as error:
        return [Finding(FAIL, "vllm", str(error), "install one of these")]
    tested = versions.is_tested(version)
    findings = [Finding(OK, "vllm", found) if tested else
                Finding(WARN, "vllm", found, "engines start if all that kvferry needs is there; report what you see")]
    return findings + [contract_finding(entry.name, text, entry.why, entry.is_guard, tested) for entry, text in contract.troubles()]


def contract_finding(name: str, text: str, why: str, is_guard: bool, tested: bool) -> Finding:
    """What an engine with kvferry makes of a name of vLLM's that is not as it was."""
    if is_guard:
        return Finding(FAIL, "vllm", f"{name} {text}: engines that use it do not start ({why})", "take a tested vLLM")
    if tested:
        return Finding(OK, "vllm", f"off in this version: {why}")
    return Finding(WARN, "vllm", f"{name} {text}; off: {why}", 'take a tested vLLM, or give the option "untested_vllm": "allow"')


def check_machine(listen: str, key_file: str, ranks: int, cuda_library: str) -> list[Finding]:
    address, host = check_address(listen, key_file)
    return [
        check_ptrace(), check_user(), check_pid_namespace(), *check_cuda(cuda_library), check_ucx(), check_openssl(), check_tls(),
        address, *check_port(listen, host, ranks),
        check_limit("memlock", resource.RLIMIT_MEMLOCK, MEMLOCK_WANTED if glob.glob("/sys/class/infiniband/*") else 0,
                    "too little to register KV memory with RDMA (transport ucx)",
                    "ulimit -l unlimited (docker: --ulimit memlock=-1)"),
        check_limit("files", resource.RLIMIT_NOFILE, FDS_WANTED, "few for many peers", f"ulimit -n {FDS_WANTED}"),
        *check_vllm(),
    ]


# ---- a node elsewhere ----

def is_ours(host: str) -> bool:
    """Whether it is an address of this machine: only there a socket can be bound to it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
        return True
    except OSError:
        return False


def check_transports(offered: list[str], host: str) -> Finding:
    if not offered:
        return Finding(WARN, "transports", "the node offers none yet", "its engine has not registered its memory: wait, or read its log")
    here = {"tcp": True, "local": is_ours(host) and not reads_another_process(), "ucx": bool(ucx_libraries())}
    both = [name for name in offered if here.get(name, False)]
    text = f"the node offers {', '.join(offered)}; this machine can use {', '.join(both) or 'none of them'}"
    if not both:
        return Finding(FAIL, "transports", text, "name tcp in the engines' option transports")
    return Finding(OK, "transports", text)


def speaks_http(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with closing(http.client.HTTPConnection(host.strip("[]"), int(port), timeout=HTTP_TIMEOUT_S)) as connection:
            connection.request("GET", "/health")
            connection.getresponse()
        return True
    except (OSError, http.client.HTTPException):
        return False


def way_out_of_address(address: str) -> str:
    """Of one that names no place."""
    port = address.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port) <= 65535:
        return "give HOST:PORT with a port of 1 to 65535"
    return "is the host's name right, and known here?"


def way_out_of_handshake(reason: str, address: str, options: dict[str, str]) -> str:
    if reason == "handshake_refused" and not options.get("key_file"):
        return NO_KEY
    if reason in ("protocol", "handshake_timeout") and speaks_http(address):
        return "this is an HTTP server: give the control address of a rank, which D's log names (peer HOST:PORT)"
    return WAYS_OUT.get(reason, "")


def check_node(address: str, options: dict[str, str]) -> list[Finding]:
    status, message, found = _kvferry.check_node(address, {**options, "handshake_timeout_ms": HANDSHAKE_TIMEOUT_MS})
    reason = _kvferry.status_name(status)
    host = found["address"].rpartition(":")[0].strip("[]")
    reach = Finding(FAIL, "reach", f"{address}: {message}", WAYS_OUT["peer_down"])
    if not found["address"]:
        return [reach._replace(way_out=way_out_of_address(address))]
    if status == _kvferry.INVALID:
        way_out = "name a key file that this user can read: --key-file FILE" if options.get("key_file") else NO_KEY
        return [Finding(FAIL, "key", message, way_out)]
    if not found["connect_ns"]:
        return [reach]
    failed = Finding(FAIL, "handshake", f"{reason}: {message}", way_out_of_handshake(reason, found["address"], options))
    findings = [Finding(OK, "reach", f"{address}, connected in {found['connect_ns'] / 1e6:.2f} ms")]
    if not found["handshake_ns"]:
        return [*findings, failed]
    key = "the key fits" if options.get("key_file") else "neither side has a key"
    tls = "TLS 1.3" if found["encrypted"] else "no TLS"
    findings += [
        Finding(OK, "handshake", f"{key}, {tls}: {found['handshake_ns'] / 1e6:.1f} ms"),
        Finding(OK, "version", f"there kvferry {found['version']}, protocol {found['protocol_min']} to {found['protocol_max']}; "
                f"here kvferry {__version__}, protocol {found['own_protocol']}"),
        check_transports([name for name in found["transports"].split(",") if name], host),
    ]
    if status != _kvferry.OK:
        return [*findings, failed._replace(subject="ping")]
    findings.append(Finding(OK, "ping", f"a round trip takes {found['round_trip_ns'] / 1e6:.2f} ms, the node's thread included"))
    if not found["bytes"]:
        return [*findings, Finding(WARN, "speed", "the node sends no more test bytes in this second", "others check it too: check again")]
    return [*findings, Finding(OK, "speed", f"{found['bytes_per_s'] / 1e9:.2f} GB/s: {found['bytes'] >> 20} MiB of test bytes, "
                               f"on one control connection, {tls}")]


def run(address: str | None, options: dict[str, str], listen: str, ranks: int, say: Callable[[str], None]) -> int:
    if address is None:
        findings = check_machine(listen, options.get("key_file", ""), ranks, options.get("cuda_library", ""))
    else:
        findings = check_node(address, options)
    for finding in findings:
        say(finding.line())
    return verdict(findings)
