"""The options of the vLLM connector alone, beside those of the library. It imports nothing of vLLM: `kvferry options` prints it."""

from __future__ import annotations

TABLE = (
    ("error_status", "500", "500 or 503", "HTTP status of the error that the client of a failed request gets."),
    ("weights_id", "(none)", "a text", "Names the weights where kvferry cannot see their files: the same on all engines that have them."),
    ("weights_digest", "read", "read or trust", "Whether an engine starts with the digests that a file beside its weights names."),
    ("carry_drafts", "true", "true or false, also on or off", "Whether the KV of draft models is carried: the same on both sides."),
    ("loads_in_flight", "256", "a whole number, 1 or more", "Most loads under way on a decode engine; others wait in vLLM's queue."),
    ("load_bytes_in_flight", "(the engine's pool)", "a whole number, 1 or more", "Most bytes a rank of loads under way."),
    ("lease_wait_ms", "0", "a whole number, 0 or more", "How long a prompt waits for its lease before it is computed."),
    ("untested_vllm", "refuse", "refuse or allow", "Whether a version of vLLM that kvferry is not tested with may lack a feature."),
    ("rpcs_that_keep_weights", "(none)", "a list of names", "Calls of a worker extension that leave the weights alone."),
    ("drain_grace_ms", "15000", "a whole number", "How long an engine that leaves still takes prompts."),
    ("metrics_prefix", "kvferry_", "kvferry_ or vllm:kvferry_", "Prefix of the names of metrics; under Dynamo vllm:kvferry_ is the default."),
)
"""(name, default, allowed, meaning); docs/options.md says more."""
