"""Any HTTP API that takes an idempotency key, by configuration: `[http.NAME]` is a tool."""
