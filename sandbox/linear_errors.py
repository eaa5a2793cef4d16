"""Decides the shape of Linear's errors: a code and a type in the extensions of each."""

from __future__ import annotations

from counterfoil.sandbox.wire import Json

CODES = {
    "INPUT_ERROR": "invalid input",
    "BAD_USER_INPUT": "graphql error",
    "GRAPHQL_VALIDATION_FAILED": "graphql error",
    "AUTHENTICATION_ERROR": "authentication error",
    "FORBIDDEN": "forbidden",
    "RATELIMITED": "ratelimited",
    "INTERNAL_SERVER_ERROR": "internal error",
}
"""The type that goes with each code."""
_OF_STATUS = {
    400: "GRAPHQL_VALIDATION_FAILED",
    401: "AUTHENTICATION_ERROR",
    403: "FORBIDDEN",
    404: "GRAPHQL_VALIDATION_FAILED",
    429: "RATELIMITED",
}


class InputError(Exception):
    """A resolver's refusal, raised before it has written anything. `argument` is the input field that it names, if any."""

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


def error_body(status: int, code: str, message: str) -> Json:
    """One error; a code that is none of Linear's becomes the one that fits the status."""
    known = code if code in CODES else _OF_STATUS.get(status, "INTERNAL_SERVER_ERROR")
    extensions = {"code": known, "type": CODES[known], "userError": status < 500, "userPresentableMessage": message}
    return {"errors": [{"message": message, "extensions": extensions}]}
