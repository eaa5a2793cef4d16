"""Zendesk: tickets, internal notes and public replies through zenpy, found again by external id and audit metadata."""
