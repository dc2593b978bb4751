"""The auditor: finds the mistakes by which locks go stale, are robbed, or hold nothing.

`audit(paths, settings)` reads Python files and says what it found; it changes nothing, runs
nothing of what it reads, and imports nothing else of this package.
"""

from __future__ import annotations

from .finding import Finding, Notice, Span
from .scan import AuditReport, audit
from .settings import Settings, Unusable

__all__ = ["AuditReport", "Finding", "Notice", "Settings", "Span", "Unusable", "audit"]
