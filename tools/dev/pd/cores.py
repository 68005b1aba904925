"""Shares the machine's cores between the two engines."""

from __future__ import annotations

import os


def split_cores() -> tuple[str, str]:
    """Core lists for P and D, in the form that VLLM_CPU_OMP_THREADS_BIND takes; at most four each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return str(cores[0]), str(cores[0])
    half = min(len(cores) // 2, 4)
    return join(cores[:half]), join(cores[half:2 * half])


def join(cores: list[int]) -> str:
    return ",".join(str(core) for core in cores)
