"""Decides the shape of AWS's errors in its REST protocol with JSON."""

from __future__ import annotations

from counterfoil.sandbox.wire import Json

_CODES = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    409: "ConflictException",
    429: "ThrottlingException",
    500: "InternalServerException",
}


def error_body(status: int, code: str, message: str) -> Json:
    """`code` where it is one of AWS's, else the usual one of the status."""
    named = code if code.endswith("Exception") or code == "IdempotentParameterMismatch" else _CODES.get(status, "Error")
    return {"code": named, "Message": message}
