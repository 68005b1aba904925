"""`kvferry why`, asked as an operator of a stack would ask it."""

from __future__ import annotations

import subprocess
import sys

WELL = r"ok    6 all     no step fails: \d+ loads arrived; of D's [\d,]+ prompt tokens [\d,]+ were loaded \(\d+ %\)"
KEYS_DIFFER = (r"FAIL  3 ticket  D has taken 0 tickets; other_key (\d+); policy fail: \1 requests ended with an error: "
               "give P and D the same key_file")


def why(*urls: str) -> str:
    asked = subprocess.run([sys.executable, "-m", "kvferry.cli", "why", *urls], capture_output=True, text=True)
    return asked.stdout + asked.stderr
