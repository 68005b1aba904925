"""Where things lie in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEV = ROOT / "tools" / "dev"
CACHE = ROOT / ".cache"
MODELS = CACHE / "models"
SMOLLM2 = MODELS / "smollm2"
FAST = MODELS / "fast"
FAST_OTHER = MODELS / "fast-other"
FAST_HYBRID = MODELS / "fast-hybrid"
ADAPTERS = {name: MODELS / f"fast-{name}" for name in ("adapter-a", "adapter-b")}
"""LoRA adapters of FAST and FAST_OTHER, by name."""
KEY = CACHE / "kvferry.key"
OTHER_KEY = CACHE / "kvferry-other.key"
PLANTED = CACHE / "mutants" / "packages"
"""A folder a planted bug, with the package built from that patch of tests/mutants."""
FAKE_CUDA = ROOT / "build" / "tests" / "fake_cuda" / "libcuda-fake.so"
VLLM = CACHE / "vllm"
"""A folder for each release that is beside the one in .venv: for PYTHONPATH."""
LMCACHE = CACHE / "lmcache"
LOGS = CACHE / "logs"
