"""The C library's nodes. The headers in include/kvferry/ say what each call means; this says how it looks in Python.

- Structs cross as bytes: a lease (kvf_lease), a prompt (kvf_prompt), a report (kvf_report). Keep them, send them, compare
  them; do not look into them.
- Other structs are objects with named fields: those that calls return are tuples, too.
- Blocks are a tuple with one bytes object for each KV group: native uint32 block ids, BLOCK_NONE where there is none.
- A batch takes a list and returns a list of statuses, one for each item. What happens to a transfer is data, never an
  exception. `Error`, `TypeError`, `ValueError` and `OverflowError` mean that the call itself was wrong.
- Calls run without the GIL. Any thread may call, except that close() refuses to run beside another call.
"""

from typing import Final, NamedTuple, TypeAlias, TypedDict

from .records import Load, Part, Point, Publication, Region

Lease: TypeAlias = bytes
Prompt: TypeAlias = bytes
Report: TypeAlias = bytes
Blocks: TypeAlias = tuple[bytes, ...]

class Verdict(NamedTuple):
    """A kvf_verdict."""

    action: int
    status: int
    keep_blocks: int
    keep_tokens: int
    recompute_tokens: int
    retry_after_ms: int

class Event(NamedTuple):
    """A kvf_event."""

    kind: int
    id: int
    user: int
    cause: int | None
    """A LEASE_END_*, of EVENT_LEASE_ENDED; a status, of EVENT_TICKET: OK, or why there is none."""
    report: Report | None
    """Of EVENT_LOAD."""
    verdict: Verdict | None
    """Of EVENT_VERDICT."""

class RequestInfo(NamedTuple):
    """A kvf_request_info."""

    id: int
    tokens: int
    counts: list[int]
    peer: str
    load_timeout_ms: int
    attachment: int

class Number(NamedTuple):
    """A kvf_stat."""

    name: str
    reason: str
    value: int
    is_gauge: bool

class Link(NamedTuple):
    """A kvf_link_stat."""

    name: str
    breaker: int
    cause: str
    is_up: bool

class Peer(NamedTuple):
    """A kvf_peer_stat."""

    id: int
    address: str
    failure: str
    """The last one's reason, or ""."""
    failure_age_ms: int
    links: list[Link]
    numbers: list[Number]
    """Those other than 0. They go by the names of stats() where those have them."""

Checked = TypedDict("Checked", {
    "address": str, "connect_ns": int, "handshake_ns": int, "round_trip_ns": int, "bytes": int, "bytes_per_s": int,
    "protocol_min": int, "protocol_max": int, "own_protocol": int, "encrypted": bool, "version": str, "transports": str})
"""A kvf_check_result."""

class Error(Exception):
    """A call was refused; the text is for a person, `status` is a kvf_status."""

    status: int

class LogQueue:
    """A kvf_log_queue: lines of nodes, for one thread that takes them. Lines that are not taken go to standard error."""

    def __new__(cls) -> LogQueue: ...
    def next(self) -> tuple[int, str]:
        """Waits for a line: its level (0: error, warn, info, 3: debug), and its text."""

class Node:
    """A kvf_node. Closed by close(), or when the object goes."""

    def __new__(cls, options: dict[str, str], identity: dict[str, str], index: int | None = None,
                log: LogQueue | None = None) -> Node:
        """Opens a node. With an index: it is an engine's node, the index-th on its host, and listens where
        kvf_address_choose() says. `log`: where its lines go; None: to standard error. Error: an option is unknown or its value
        bad (the text names it), or the system refused."""

    def close(self) -> None: ...
    def register(self, regions: list[Region], parts: list[Part] | None = None, share: tuple[int, int, int] = (0, 1, 1)) -> None:
        """With parts: kvf_node_register_layout(); `share` is (first_head, heads, heads_total) of a kvf_share."""

    def unregister(self) -> int:
        """Ends all leases and aborts all loads: a status. OK: nothing touches the memory any more; AGAIN: call again."""

    def address(self) -> bytes: ...
    def set_ranks(self, records: list[bytes]) -> None: ...
    def healthy(self) -> bool: ...
    def poll(self) -> list[Event]:
        """Up to 256 events. Never blocks."""

    def fileno(self) -> int:
        """Readable while poll() has something to report: kvf_node_event_fd()."""

    def stats(self) -> list[Number]: ...

    def histograms(self) -> list[tuple[str, list[tuple[int, int, int]]]]:
        """(name, its buckets: (upper bound, count, sum)). The unit is the last word of the name."""

    def peers(self) -> list[Peer]: ...
    def lease_reserve_blocks(self, blocks: Blocks, pool_blocks: int) -> tuple[int, Lease | None, int]:
        """(status, lease, lease id)."""

    def lease_reserve(self, blocks: int, pool_blocks: int) -> tuple[int, Lease | None, int]:
        """The same of so many blocks, before they are known."""

    def lease_release(self, lease_ids: list[int]) -> list[int]: ...
    def lease_ended(self, lease_ids: list[int], rank: int) -> list[int]:
        """OK for each that has now ended on all ranks, and is released; AGAIN: others have not said so."""

    def ticket_make(self, lease: Lease, prompt: Prompt, blocks: Blocks) -> tuple[int, str | None]:
        """(status, ticket)."""

    def lease_publish(self, publications: list[Publication], after: Point | None = None) -> list[int]:
        """`after`: when their bytes are complete; None: they are."""

    def lease_end(self, leases: list[Lease]) -> list[int]: ...
    def leases_end_lingering(self) -> None: ...
    def ticket_offer(self, ticket: str) -> int:
        """Offers the ticket, once, to nodes that ask for its prompt, until its lease ends: a status."""

    def ticket_find(self, prompt: Prompt, at: str | None, timeout_ms: int, user: int) -> tuple[int, int]:
        """(status, find id): asks the option peers for the prompt's ticket, or that one at HOST:PORT alone. With OK one
        EVENT_TICKET follows, within timeout_ms; 0: handshake_timeout_ms."""

    def ticket_take(self, find_id: int) -> str | None:
        """The ticket of a find whose event has said OK, once; None: it is not there, or not any more."""

    def ticket_prompt(self, ticket: str) -> tuple[int, Prompt | None]:
        """(status, the prompt that the ticket is for; of several, the first's). BAD_TICKET: it is not genuine; OTHER_KEY, INCOMPATIBLE: it cannot
        be read here."""

    def request_open(self, ticket: str, prompt: Prompt, user: int,
                     options: dict[str, str], keep_from_tokens: int = 0, name: str = "") -> tuple[int, RequestInfo | None]:
        """(status, info). `options` are those in which the request differs from the node. A shorter good prefix of a failed load
        than keep_from_tokens is not kept. `name`: the engine's, for the log. Error: a bad option (the text names it)."""

    def request_refused(self, status: int, tokens: int, options: dict[str, str]) -> Verdict:
        """What to do with a prompt whose ticket request_open() has refused."""

    def request_wait(self, request_ids: list[int], waits: bool) -> list[int]: ...
    def request_begin(self, request_ids: list[int]) -> list[int]: ...
    def request_report(self, reports: list[Report]) -> list[int]: ...
    def request_released(self, request_ids: list[int], rank: int) -> list[int]: ...
    def request_stuck(self, request_ids: list[int]) -> list[int]: ...
    def request_cancel(self, request_ids: list[int]) -> list[int]: ...
    def request_detach(self, request_ids: list[int]) -> list[int]: ...
    def load_start(self, loads: list[Load], after: Point | None = None) -> list[int]:
        """`after`: no byte is written before it."""

    def load_abort(self, request_ids: list[int]) -> list[int]: ...
    def load_stuck(self, request_ids: list[int]) -> list[int]:
        """OK for each that is not released release_timeout_ms after its outcome."""


class Staging:
    """A kvf_staging. Closed by close(), or when the object goes."""

    def __new__(cls, pool: list[Region], blocks: int, cuda_library: str = "") -> Staging:
        """Error: there is no such memory."""

    def close(self) -> None: ...
    def regions(self) -> list[tuple[int, ...]]:
        """Each a Region's fields."""

    def copy(self, number: int, source: Blocks, destination: Blocks, on: Point | None = None) -> int: ...
    def copied(self) -> int: ...

class RecoveryEvent(NamedTuple):
    """A kvf_recovery_event."""

    kind: int
    status: int
    request_id: int
    user: int
    ranks_mask: int
    blockers: int
    confirmed_blocks: int
    computed_tokens: int
    recompute_tokens: int

class Recovery:
    """A kvf_recovery: one thread at a time."""

    def __new__(cls, ranks: int, block_tokens: int, requests_max: int, recompute_max_tokens: int,
                pool_blocks: list[int]) -> Recovery:
        """`pool_blocks` by KV group. Error: a number is bad."""

    def admit(self, request_id: int, user: int, local_prefix_tokens: int, tokens: int, prompt_tokens: int,
              blocks: Blocks) -> int: ...
    def end(self, request_id: int) -> int: ...
    def report(self, report: Report) -> int: ...
    def released(self, request_id: int, rank: int) -> int: ...
    def events(self) -> list[RecoveryEvent]:
        """All that there are."""

    def open(self) -> int:
        """How many requests are in the table."""

def prompt_hash(token_ids: bytes, salt: bytes) -> Prompt:
    """token_ids: native uint32s."""

def prompt_set_model(prompt: Prompt, model: bytes) -> Prompt:
    """The prompt as computed by this model: any bytes that name weights and adapter by their content."""

def check_node(address: str, options: dict[str, str]) -> tuple[int, str, Checked]:
    """(status, what is wrong, what was found): kvf_check_node() of HOST:PORT. Error: a bad option."""

def check_memory(kind: int, library: str) -> tuple[int, str]:
    """(status, what was found or is wrong): kvf_check_memory() of MEMORY_HOST or MEMORY_CUDA."""

def check_device(kind: int, index: int) -> tuple[int, str]:
    """(status, what it can do): kvf_check_device(), which may make a context on it; NOT_FOUND: there are no more."""

def report(request_id: int, rank: int, blocks: int, prefix: int, status: int) -> Report:
    """One rank's report, for a load that load_start() refused."""

def status_name(status: int) -> str: ...
def status_meaning(status: int) -> str:
    """One sentence for a person."""

def error_text() -> str:
    """kvf_error_text(): why the last call of this thread that failed, or the last one of a batch, has failed."""

def reasons() -> list[tuple[str, str, bool, bool, bool, bool, str]]:
    """The table of statuses: (name, what is lost, retry here, retry elsewhere, recompute safe, trips a breaker, meaning)."""

def options() -> list[tuple[str, str, str, str, str]]:
    """The option table: (name, unit, default, allowed, meaning)."""

VERSION: Final[str]
BLOCK_NONE: Final[int]
BLOCKS_PER_LEASE_MAX: Final[int]
GROUPS_MAX: Final[int]
MEMORY_HOST: Final[int]
MEMORY_CUDA: Final[int]
EVENT_LEASE_ENDED: Final[int]
EVENT_LOAD: Final[int]
EVENT_RELEASED: Final[int]
EVENT_VERDICT: Final[int]
EVENT_REQUEST_RELEASED: Final[int]
EVENT_REQUEST_STUCK: Final[int]
EVENT_TICKET: Final[int]
LEASE_END_COMPLETED: Final[int]
LEASE_END_ABANDONED: Final[int]
LEASE_END_EXPIRED: Final[int]
LEASE_END_REVOKED: Final[int]
BREAKER_CLOSED: Final[int]
BREAKER_HALF_OPEN: Final[int]
BREAKER_OPEN: Final[int]
ACTION_USE: Final[int]
ACTION_RECOMPUTE: Final[int]
ACTION_FAIL: Final[int]
PART_KV: Final[int]
PART_KEYS: Final[int]
PART_VALUES: Final[int]
PART_LATENT: Final[int]
PART_INDEX: Final[int]
PART_STATE: Final[int]
PART_CONVOLUTION: Final[int]
RECOVERY_READY: Final[int]
RECOVERY_REWIND: Final[int]
RECOVERY_TERMINATE: Final[int]
RECOVERY_ABORT: Final[int]
RECOVERY_RELEASE: Final[int]

OK: Final[int]
TRANSFER_FAILED: Final[int]
TRANSFER_STALLED: Final[int]
CHECKSUM: Final[int]
CANCELLED: Final[int]
BAD_TICKET: Final[int]
LEASE_EXPIRED: Final[int]
LEASE_UNKNOWN: Final[int]
NOT_PUBLISHED: Final[int]
DEADLINE: Final[int]
ABORTED: Final[int]
NO_LEASE: Final[int]
DRAINING: Final[int]
LEASE_CROWDED: Final[int]
OTHER_KEY: Final[int]
PEER_DOWN: Final[int]
PEER_RESTARTED: Final[int]
HANDSHAKE_TIMEOUT: Final[int]
HANDSHAKE_REFUSED: Final[int]
INCOMPATIBLE: Final[int]
TRANSFER_SETUP: Final[int]
PROTOCOL: Final[int]
RANK_LOST: Final[int]
NO_MEMORY: Final[int]
NO_RESOURCE: Final[int]
INVALID: Final[int]
NOT_FOUND: Final[int]
LIMIT: Final[int]
ADDRESS_IN_USE: Final[int]
SYSTEM: Final[int]
CLOSED: Final[int]
EXISTS: Final[int]
AGAIN: Final[int]
