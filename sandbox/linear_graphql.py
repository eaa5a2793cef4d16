"""Decides which GraphQL the Linear of the sandbox understands: documents are parsed, checked against the schema, executed.

Loaded at Linear's first request: the GraphQL library and the schema take a quarter of a second, which nobody else waits for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    GraphQLError,
    GraphQLSchema,
    GraphQLSyntaxError,
    OperationDefinitionNode,
    build_schema,
    execute_sync,
    get_operation_ast,
    parse,
    validate,
)

from counterfoil.sandbox.linear_errors import CODES, InputError, error_body
from counterfoil.sandbox.wire import Json, Reply

SDL = Path(__file__).with_name("linear.graphql")


@cache
def schema() -> GraphQLSchema:
    """Linear's schema, as far as it is played."""
    return build_schema(SDL.read_text())


def problems(document: str) -> list[str]:
    """What is wrong with a document by the schema; empty for one that Linear would take."""
    try:
        return [error.message for error in validate(schema(), _parsed(document))]
    except GraphQLSyntaxError as error:
        return [error.message]


def root_field(raw: bytes) -> str | None:
    """The first field of the operation that a request's body asks for, such as `issueCreate`; None where it has none."""
    try:
        body = json.loads(raw)
        operation = get_operation_ast(_parsed(body["query"]), body.get("operationName"))
    except (ValueError, TypeError, KeyError, AttributeError, GraphQLSyntaxError):
        return None
    return _first(operation) if operation is not None else None


def answer(body: Json, resolvers: Mapping[str, Any]) -> Reply:
    """Executes the request's document: 400 for one that the schema refuses, else 200, with errors or without."""
    document = body.get("query")
    if not isinstance(document, str):
        return Reply(400, error_body(400, "GRAPHQL_VALIDATION_FAILED", "Must provide a query."))
    if wrong := problems(document):
        return Reply(400, error_body(400, "GRAPHQL_VALIDATION_FAILED", "; ".join(wrong)))
    result = execute_sync(
        schema(),
        _parsed(document),
        root_value=resolvers,
        variable_values=body.get("variables"),
        operation_name=body.get("operationName"),
    )
    errors = [_shown(error) for error in result.errors or ()]
    if errors and result.data is None and not any(error.get("path") for error in errors):
        return Reply(400, {"errors": errors})  # the variables do not fit: nothing was executed
    return Reply(200, {"data": result.data, **({"errors": errors} if errors else {})})


@lru_cache(maxsize=256)
def _parsed(document: str) -> DocumentNode:
    return parse(document)


def _first(operation: OperationDefinitionNode) -> str | None:
    fields = [node.name.value for node in operation.selection_set.selections if isinstance(node, FieldNode)]
    return fields[0] if fields else None


def _shown(error: GraphQLError) -> Json:
    """An error in Linear's form. What is not a refusal of ours is a bug of the sandbox, and is raised."""
    original = error.original_error
    if isinstance(original, GraphQLError):  # a variable that does not fit
        original = None
    if original is not None and not isinstance(original, InputError):
        raise original
    code = "INPUT_ERROR" if original is not None else "BAD_USER_INPUT"
    extensions: Json = {"code": code, "type": CODES[code], "userError": True, "userPresentableMessage": error.message}
    if original is not None and original.argument is not None:
        extensions["validationErrors"] = [{"property": original.argument}]
    return {"message": error.message, "path": error.path, "extensions": extensions}
