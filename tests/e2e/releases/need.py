"""What a test does about a release that is not there."""

from __future__ import annotations

import pytest
from pd.releases import SUPPORTED, missing


def need(version: str) -> None:
    """A supported one has to be there; PyPI's newest may be one that cannot be."""
    if why := missing(version):
        (pytest.fail if version in SUPPORTED else pytest.skip)(f"not run: {why}")
