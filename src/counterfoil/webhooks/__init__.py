"""Providers' events over HTTP, which make the reconciler look now: `counterfoil.webhooks:app` makes the ASGI application."""

from counterfoil.webhooks.server import app

__all__ = ["app"]
