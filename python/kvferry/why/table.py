"""The steps between a prompt at P and its tokens at D, in the order in which to look, and what can be wrong in each.

The steps of docs/why.md and the second table of docs/reasons.md are this one. It imports nothing, so that tools can read it without
an engine.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    remedy: str
    meaning: str = ""
    """"": the library has it (`kvf_status_at()`)."""


class Step(NamedTuple):
    name: str
    question: str
    side: str
    metrics: tuple[str, ...]
    """Without the prefix."""
    log: str
    causes: dict[str, Cause]


REPORT = "keep the log, start the engine anew, and report the error that the log names"
SAME_FILES = "wait until the weights are read (kvferry ready says so); if they have no files, set weights_id on both sides"
AFTER_UPDATE = "send the prompt again; a prompt that is under way during an update of weights or adapters is computed here"
ADAPTER = "load the LoRA adapter on P and D before its requests come, and leave its files unchanged"
ASK_AGAIN = "a few are normal under load; send the prompt again"

CONTENT = {
    "weights_unknown": Cause(SAME_FILES, "This engine's weights have no digest, or none yet; the log says which."),
    "cache_old": Cause("call vLLM's /reset_prefix_cache after each update of weights or adapters",
                       "The weights or the content of a LoRA adapter changed, and vLLM's prefix cache was not emptied since."),
    "lora_unknown": Cause(ADAPTER, "Not all ranks have read the LoRA adapter, or not the same one, or vLLM reads it in every step."),
    "lora_changed": Cause(ADAPTER,
                          "The adapter changed while the prompt was computed or loaded; or D dropped it from memory, and will read "
                          "it again."),
    "weights_changed": Cause(AFTER_UPDATE, "The weights changed while the prompt was computed, or its request waited."),
    "images_unhashed": Cause("leave mm_processor_cache_gb above 0, or prefix caching on",
                             "vLLM does not hash the prompt's images (`mm_processor_cache_gb` 0, no prefix caching)."),
    "content_unseen": Cause("nothing helps today: such prompts are computed on D",
                            "TensorRT-LLM: the engine does not show the content of the request's LoRA adapter, images, embeddings or "
                            "salt."),
    "no_token_ids": Cause("nothing helps today: such prompts are computed on D", "The prompt is of embeddings, or still grows."),
    "too_short": Cause("nothing is lost: one token is computed at once",
                       "The prompt is one token, and a model's states are handed over before the last token."),
    "in_a_list": Cause("send each prompt in a request of its own",
                       "The prompt is not the first in a completions request: vLLM returns only the first ticket, and hands one ticket to all."),
    "preempted": Cause("give the engine a larger KV cache, or fewer requests at a time",
                       "vLLM took the blocks back. D computes what its prefix cache has lost, as the lease ended with the load. On "
                       "P: the request ended before it was computed again."),
    "internal_error": Cause(REPORT, "kvferry has failed, with a traceback in the log; the request goes on without a transfer."),
}
"""Causes of no ticket on P, and of a ticket that D does not use."""

TICKETS = Step("tickets", "Does P give tickets?", "P", ("leases_published_total", "no_tickets_total", "transfers_stopped"),
               "gets no ticket: REASON", {
    "not_asked": Cause("send requests through a router for prefill and decode, with do_remote_decode in what it sends to P (docs/routers.md)",
                       "Nobody has asked P for a ticket: requests go to D directly, or the router is none for prefill and decode."),
    "transfers_stopped": Cause(REPORT, "After an internal error P hands nothing over until it is started anew."),
    "no_lease": Cause("leases of others leave no room: start more decode engines, give P a larger KV cache, raise lease_pool_share_percent, "
                      "or let prompts wait (lease_wait_ms)"),
    "limit": Cause("one prompt is more than lease_pool_share_percent of P's KV cache, or than 65,536 blocks: give P a larger KV cache"),
    "draining": Cause("P is about to leave (kvferry drain): send requests to another P"),
    **CONTENT,
    "no_page": Cause("give the engine a larger KV cache", "TensorRT-LLM: a block of the prompt is gone when its request ends."),
    "prompt_logprobs": Cause("leave prompt_logprobs out of requests to P",
                             "The request asks for them; a model with states then computes the whole prompt on every engine."),
    "paused": Cause("resume the engine (/resume)", "vLLM is paused and waits for work to end."),
    "lease_ended": Cause(ASK_AGAIN, "The lease ended before its request, or a rank could not publish it."),
    "aborted": Cause("look why clients leave, or why P's requests fail",
                     "The request ended early: its client left, vLLM aborted it, or it failed."),
})

ROUTER = Step("router", "Does the router bring them to D?", "P and D", ("requests_total", "leases_ended_total", "leases_untaken"),
              "leases expired=", {
    "not_brought": Cause("let the router send P's kv_transfer_params on to D, whole and unchanged (docs/routers.md); name all decode engines here",
                         "P has given tickets that no decode engine named here has seen. They run out at P (cause `expired`)."),
})

TICKET = Step("ticket", "Does D take them?", "D", ("load_failures_total",), "ticket refused: REASON", {
    "bad_ticket": Cause("send each ticket with the prompt that it is for, unchanged; do P and D tokenize alike?"),
    "other_key": Cause("give P and D the same key_file (kvferry key prints a key's id), or neither of them one"),
    "incompatible": Cause("start P and D with the same model files, dtype, block size and version of kvferry; the log names what differs"),
})

USE = Step("use", "Does D use them?", "D", ("not_loaded_total", "transfers_stopped"), "its ticket is ignored (REASON)", {
    "transfers_stopped": Cause(REPORT, "After an internal error D loads nothing until it is started anew."),
    **CONTENT,
    "not_taken": Cause("name kvferry first in the MultiConnector, and leave prompt_logprobs out of requests",
                       "Another connector of a MultiConnector loads the prompt, or vLLM recomputes it for its logprobs."),
    "discarded": Cause(AFTER_UPDATE,
                       "vLLM was reset, paused or updated during the load, or while the loaded prompt waited for a place."),
    "late": Cause("send the ticket to D sooner, before the prompt",
                  "TensorRT-LLM: the engine asked for the prompt before its blocks were there."),
    "not_asked_for": Cause("send each ticket with the prompt that it is for",
                           "TensorRT-LLM: the engine did not ask for the prompt within `staged_ttl_ms`: another prompt's ticket, or "
                           "the client left."),
    "staging_full": Cause("give the staging more room (staging_bytes)", "TensorRT-LLM: the staging has no room for all of the prompt."),
    "no_longer_than_cached": Cause("nothing is lost: D has the prompt", "TensorRT-LLM: the engine has as much of the prompt itself."),
    "ticket_refused": Cause("D's log has the reason: look for it in steps 3 and 5",
                            "TensorRT-LLM: D refused the ticket; the log has the status."),
    "load_failed": Cause("D's log has the reason: look for it in steps 3 and 5",
                         "TensorRT-LLM: the load failed; the log has the status."),
})

REACH = "from D's host: kvferry check PEER. Is P up, is its address right (listen, advertise), does a firewall or network policy stand between?"

LOAD = Step("load", "Do the loads arrive?", "D", ("loads_total", "load_failures_total", "peer_load_failures_total", "requests_open"),
            "REASON: 0 of 9 tokens were loaded", {
    "lease_expired": Cause("P took the blocks back before D had read them. Raise lease_ttl_ms above the time from P's answer to D's request; is D "
                           "full, or the router slow?"),
    "lease_unknown": Cause("P has ended the lease long ago: raise lease_ttl_ms, and use each ticket once"),
    "not_published": Cause("P had not computed the blocks in time: is P overloaded, or stuck?"),
    "peer_down": Cause(REACH),
    "loopback": Cause("tickets name a loopback address, which is of one host alone: give P and D a key_file, or P the option listen",
                      "D looks for P on its own host, since P listens on loopback: so it does without a key."),
    "peer_restarted": Cause("P was started anew, or another process has its address: old tickets are lost; if it goes on, from D's host: kvferry "
                            "check PEER"),
    "handshake_timeout": Cause("is it a kvferry node that listens there, with the same option tls, and is P's host overloaded? From D's host: "
                               "kvferry check PEER"),
    "handshake_refused": Cause("give P and D the same key_file, and the same option tls"),
    "transfer_setup": Cause("name a transport in the option transports that both hosts have (tcp always works), open its ports (data_ports); from "
                            "D's host: kvferry check PEER"),
    "transfer_failed": Cause("the transport failed: the log says how; look at the network, or try \"transports\": \"tcp\""),
    "transfer_stalled": Cause("no byte came for stall_timeout_ms: look at the network and at P's load"),
    "deadline": Cause("the load took longer than load_timeout_ms: look at the network (kvferry check PEER shows GB/s), or raise it"),
    "checksum": Cause("bytes were damaged: look at memory, network card and driver of P's and D's host, and take the bad one out of use"),
    "protocol": Cause("is it a kvferry node that listens there, of the same release? From D's host: kvferry check PEER"),
    "lease_crowded": Cause("more decode engines than P can count use one ticket: ask P for a ticket each"),
    "cancelled": Cause(ASK_AGAIN),
    "aborted": Cause("a rank gave its load up: its log says why"),
    "rank_lost": Cause("a rank of D hangs or has died: replace the engine"),
    "no_memory": Cause("give D's host more memory"),
    "no_resource": Cause("raise loads_max, or start more decode engines"),
})

ALL = Step("all", "Is it as much as it looks?", "D", ("verdicts_total", "recomputed_tokens_total", "loaded_blocks_total"), "recomputed tokens=", {
    "policy_fail": Cause('set "kv_load_failure_policy": "recompute" on D, if clients shall wait instead of getting an error',
                         "The policy `fail` ends a request with an error when its load fails; vLLM's default is `fail`."),
    "short_prompts": Cause("nothing is wrong: a load saves time only from some blocks on. Send short prompts to D without P",
                           "Prompts are shorter than a block."),
    "own_cache": Cause("nothing is wrong: what D has in its own prefix cache is not loaded. Ask prompts that D has not seen, or reset its cache",
                       "D finds most tokens in its own prefix cache."),
})

STEPS = (TICKETS, ROUTER, TICKET, USE, LOAD, ALL)
OF_VLLM = {
    "by_source": "prompt_tokens_by_source_total", "prompts": "request_prompt_tokens_count", "tokens": "request_prompt_tokens_sum",
    "cache": "cache_config_info"}
"""vLLM's own metrics that the last step needs, without `vllm:`."""


def causes_of_connector() -> dict[str, Cause]:
    """Those that are no status of the library: why P gives no ticket, or D does not use one."""
    ours = {name: cause for step in (TICKETS, USE) for name, cause in step.causes.items() if cause.meaning}
    return {name: cause for name, cause in ours.items() if name not in ("not_asked", "transfers_stopped")}


def find(reason: str) -> list[tuple[Step, Cause]]:
    return [(step, step.causes[reason]) for step in STEPS if reason in step.causes]
