"""Real vLLM engines, prefill and decode, on one machine: what the demo and the end-to-end tests drive."""
