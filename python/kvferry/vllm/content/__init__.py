"""What KV is computed from beside a prompt's tokens: weights, LoRA adapters, processors of media. Tickets and loads are of one
content only (promise P1), so these modules say what it is, and when a call has changed it.

    identity   fields that never change while an engine runs; its nodes compare them when they connect
    prompts    the identity of a prompt on this engine, as it is now
    weights    which files the weights are of; updates: which calls of workers may change them
    adapters   what each rank's LoRA adapters are
    state      the scheduler side's: what calls say of all these
    calls      around vLLM's calls that change them, whose transfers end before (../transfers)
"""
