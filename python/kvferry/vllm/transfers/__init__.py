"""Leases and loads between an engine's steps: they end before vLLM resets its pool, pauses, or gets other weights.

    core    an engine between two steps, and its ranks
    calls   around vLLM's calls before which they end; and the start, when scheduler side and engine meet
"""
