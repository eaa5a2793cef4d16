"""What the one suite needs to know of a tool; it is the kit's, so that anybody's own adapter passes the same suite."""

from __future__ import annotations

from counterfoil.testing.subject import NO_BODY, Subject

__all__ = ["NO_BODY", "Subject"]
