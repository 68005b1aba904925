"""The control file of libkvferry-chaos.so, as tools/chaos/control.h has it in C: what goes wrong in one engine."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "KVFERRY_CHAOS_FILE"
MAGIC = 0x534F41484346566B
VERSION = 2
CALLS = ("process_vm_readv", "sendmsg", "recvmsg", "send", "recv", "connect",
         "ucp_get_nbx", "ucp_request_check_status", "ucp_am_send_nbx")
KINDS = ("fail", "delay", "shorten", "flip")
PER_MILLION = 1_000_000

HEAD = struct.Struct("=QIIIIQ4Q")
ON_AT = 20
RULE = struct.Struct("=II")
COUNT = struct.Struct("=Q")
RULES_AT = HEAD.size
INJECTED_AT = RULES_AT + RULE.size * len(CALLS) * len(KINDS)
FILE_BYTES = INJECTED_AT + COUNT.size * len(CALLS) * len(KINDS)


@dataclass(frozen=True)
class Rule:
    """Of so many calls in a million, this kind of fault; value: an errno (for UCX a status), or milliseconds."""

    call: str
    kind: str
    per_million: int
    value: int = 0


class Control:
    """A file without a name, which is gone when we are: programs that we start open it through /proc."""

    def __init__(self, name: str, seed: int) -> None:
        self._fd = os.memfd_create(f"kvferry-chaos-{name}")
        os.truncate(self._fd, FILE_BYTES)
        self._map = mmap.mmap(self._fd, FILE_BYTES)
        HEAD.pack_into(self._map, 0, MAGIC, VERSION, len(CALLS), len(KINDS), 0, seed & (2**64 - 1), 0, 0, 0, 0)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def switch_on(self, rules: Sequence[Rule]) -> None:
        """These rules and no others."""
        self.switch_off()
        for rule in rules:
            at = RULES_AT + RULE.size * place(rule.call, rule.kind)
            RULE.pack_into(self._map, at, rule.per_million, rule.value)
        self._switch(1)

    def switch_off(self) -> None:
        self._switch(0)
        self._map[RULES_AT:INJECTED_AT] = bytes(INJECTED_AT - RULES_AT)

    def _switch(self, on: int) -> None:
        struct.pack_into("=I", self._map, ON_AT, on)

    def injected(self) -> dict[str, int]:
        """By "call kind", those that happened."""
        counts = {f"{call} {kind}": COUNT.unpack_from(self._map, INJECTED_AT + COUNT.size * place(call, kind))[0]
                  for call in CALLS for kind in KINDS}
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        self.switch_off()
        self._map.close()
        os.close(self._fd)


def place(call: str, kind: str) -> int:
    return CALLS.index(call) * len(KINDS) + KINDS.index(kind)
