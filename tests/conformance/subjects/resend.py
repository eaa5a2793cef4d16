"""What the suite does at Resend: no look-up there, so that a repeat of the key is what tells."""

from __future__ import annotations

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.resend.client import ResendAdapter
from counterfoil.providers.resend.config import ResendConfig
from counterfoil.sandbox.client import Sandbox


def adapter(sandbox: Sandbox) -> Adapter:
    return ResendAdapter(ResendConfig(api_key="re_sandbox", sender="shop@example.org", base_url=sandbox.resend.url))


SUBJECTS = tuple(
    Subject(
        name=name,
        arguments={"to": "jo@example.com", "subject": "Your order", "body": "On its way.", "reference": "1182"},
        target="jo@example.com",
        provider="resend",
        adapter=adapter,
        operation="emails.send",
        effect="email",
        deduplicates=True,
    )
    for name in ("resend_send", "resend_correction")
)
