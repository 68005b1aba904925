"""Stands for setuptools while pip downloads a source distribution (--no-build-isolation): pip wants its metadata, and a build
would need what only its own builders have. The file PKG-INFO is the metadata."""

import shutil
from email.parser import HeaderParser
from pathlib import Path


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    package = HeaderParser().parsestr(Path("PKG-INFO").read_text())
    info = Path(folder, f"{package['Name']}-{package['Version']}.dist-info")
    info.mkdir()
    shutil.copy("PKG-INFO", info / "METADATA")
    return info.name
