"""E-mail over SMTP: what agents may send, how it is sent, what the server's answers prove."""
