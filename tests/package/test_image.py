"""The steps of deploy/image's Dockerfiles, in a chroot of this machine's folders, in which Python has vLLM and no kvferry. FROM is not
run: no image is fetched."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, Venv, run

pytestmark = pytest.mark.deep

IMAGE = ROOT / "deploy/image"
LOOK = """
import json, os, stat
from importlib.metadata import entry_points, files
digests = "/model/kvferry-digests.json"
print(json.dumps({
    "plugins": [point.value for point in entry_points(group="vllm.general_plugins") if point.name == "kvferry"],
    "left": [name for name in os.listdir("/tmp") if name == "kvferry"],
    "digests": os.path.exists(digests) and [json.load(open(digests)), stat.S_IMODE(os.stat(digests).st_mode) & 0o22, os.stat(digests).st_uid]}))
"""


def instructions(file: Path) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n", " ", file.read_text()).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and not line.startswith("#"))]


def copy(context: Path, rest: str) -> str:
    """As docker does: what is in a folder, or the files that fit, into a folder."""
    pattern, folder = rest.split()
    found = sorted(context.iterdir()) if pattern == "." else sorted(context.glob(pattern))
    assert found and folder.endswith("/"), rest
    return f'mkdir -p "$ROOM{folder}" && cp -r {shlex.join(map(str, found))} "$ROOM{folder}"'


def steps(file: Path, context: Path) -> list[str]:
    made = []
    for word, rest in instructions(file):
        assert word in ("ARG", "FROM", "COPY", "RUN"), f"{word}: how is it run here?"
        if word == "COPY":
            made.append(copy(context, rest))
        elif word == "RUN":
            made.append(f'chroot "$ROOM" sh -c {shlex.quote(rest)}')
    return made


ROOM_IN = """
set -e
mount -t tmpfs tmpfs "$ROOM"
for each in /*; do
  here=$ROOM$each
  if [ -L "$each" ]; then cp -P "$each" "$here"
  elif [ "$each" = /tmp ] || [ ! -d "$each" ]; then continue
  else
    mkdir "$here" && mount --rbind "$each" "$here"
    case $each in /dev | /proc) ;; *) mount -o remount,bind,ro "$here" ;; esac
  fi
done
mkdir -p "$ROOM/tmp" "$ROOM$VENV" && mount --bind "$VENV" "$ROOM$VENV"
"""
"""The machine's folders, to be read, an empty /tmp, and the environment that is the image's Python."""


def build(folder: Path, venv: Venv, *made: str) -> dict[str, object]:
    """What is in the image then."""
    room = folder / "room"
    room.mkdir()
    script = "\n".join([ROOM_IN, *(f"{step} >&2" for step in made), f'chroot "$ROOM" python3 -c {shlex.quote(LOOK)}'])
    env = venv.env("/usr/sbin", "/usr/bin", "/sbin", "/bin") | {"ROOM": str(room), "VENV": str(venv.bin.parent), "HOME": "/tmp"}
    said = run("unshare", "--map-root-user", "--mount", "bash", "-c", script, env=env, cwd="/")
    found: dict[str, object] = json.loads(said.splitlines()[-1])
    return found


def test_the_image_has_kvferry_beside_its_vllm(vllm_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    made = steps(IMAGE / "Dockerfile", ROOT)
    assert len(made) == 3
    found = build(tmp_path, vllm_venv, *made)
    assert found == {"plugins": ["kvferry.vllm_plugin:register"], "left": [], "digests": False}


def test_weights_get_their_digests_at_the_build(vllm_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"abc")
    (model / "config.json").write_text("{}")
    found = build(tmp_path, vllm_venv, *steps(IMAGE / "Dockerfile", ROOT), *steps(IMAGE / "Dockerfile.weights", model))
    digests, written_by_others, owner = found["digests"]
    assert "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" in json.dumps(digests), "of abc"
    assert (written_by_others, owner) == (0, 0), "else an engine does not trust it"
