"""The release of filelock whose names these are."""

from __future__ import annotations

__version__ = version = "4.2.11"
__version_tuple__ = version_tuple = (4, 2, 11)
