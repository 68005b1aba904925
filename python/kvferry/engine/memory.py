"""torch's names of memory and types, in the library's numbers."""

from kvferry import _kvferry

MEMORY = {"cpu": _kvferry.MEMORY_HOST, "cuda": _kvferry.MEMORY_CUDA}
"""By kinds of devices."""
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4, "float8_e5m2": 5, "int8": 6, "uint8": 7}
"""kvf_dtype: parts of different types do not pair."""
