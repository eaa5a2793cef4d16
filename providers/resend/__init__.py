"""E-mail through Resend's HTTP API: what agents may send, how it is sent, what the answers prove."""
