"""Decides what an HTTP tool may be told by configuration alone: its call, its key, what each status proves, its look-up.

Only shapes and what contradicts itself are judged here; what any tool needs (a class, an undo, a way to find out) is
judged where tools are declared.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from counterfoil.settings_providers import Count, Seconds, SecondsOrZero, Section, Word

OF, KEY = "of", "key"
"""Placeholders besides the arguments: the receipt of the action that is taken back, and our key."""
HEADERS_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "accept"})
STRING_CHARS_MAX = 2000
_HOLE = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9/_.~?&=:,@!$'()*;\[\]-]*")


def placeholders(template: str) -> tuple[str, ...]:
    """The names in braces, in order."""
    return tuple(_HOLE.findall(template))


def _template(value: str) -> str:
    path = _HOLE.sub("x", value).partition("?")[0]
    if not value.startswith("/") or "//" in path or {".", ".."} & set(path.split("/")):
        raise ValueError(
            "a path begins with one / and has no empty, . or .. part: the address is providers.NAME.base_url"
        )
    if not _LITERAL.fullmatch(_HOLE.sub("", value)):
        raise ValueError("outside braces a path holds what a URL may hold unescaped, and no #")
    return value


def _pointer(value: str) -> str:
    if (value and not value.startswith("/")) or re.search(r"~(?![01])", value):
        raise ValueError('a JSON pointer begins with /, such as "/data/id"')
    return value


def _header(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", value):
        raise ValueError("expected the name of an HTTP header")
    if value.lower() in HEADERS_OURS:
        raise ValueError("this header is set with the request itself")
    return value


Template = Annotated[str, Field(max_length=1000), AfterValidator(_template)]
Pointer = Annotated[str, Field(max_length=200), AfterValidator(_pointer)]
HeaderName = Annotated[str, AfterValidator(_header)]
Status = Annotated[int, Field(ge=200, le=599)]
Bound = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]


class HttpArgument(Section):
    """`[http.NAME.arguments.ARGUMENT]`: what a model may pass."""

    type: Literal["string", "integer", "number", "boolean"]
    description: str = ""  # shown to the model
    required: bool = True  # an argument that may be missing is not sent when it is
    min_length: Annotated[int, Field(ge=0, le=65_536)] = 0
    max_length: Annotated[int, Field(ge=1, le=65_536)] | None = None  # None = 2000 characters: a note, not a book
    pattern: str | None = None
    choices: tuple[str, ...] = ()  # the only texts that are taken
    minimum: Bound | None = None
    maximum: Bound | None = None
    send_as: Word | None = None  # None = its own name; for fields whose name no argument can have, such as "from"

    @model_validator(mode="after")
    def _limits_fit_the_type(self) -> Self:
        texts = self.min_length or self.max_length or self.pattern is not None or self.choices
        if texts and self.type != "string":
            raise ValueError("min_length, max_length, pattern and choices are for strings")
        if (self.minimum, self.maximum) != (None, None) and self.type not in ("integer", "number"):
            raise ValueError("minimum and maximum are for integers and numbers")
        return self


class HttpHeader(Section):
    """`[http.NAME.headers.HEADER]`: one header; a secret is read by workers, at each call."""

    value: str | None = None
    secret: Literal["api_key", "token"] | None = None  # [providers.NAME]'s own, or that of the tenant's account
    secret_env: Word | None = None  # the name of a variable of the worker
    secret_file: Path | None = None  # read anew at each call, so that a rotated one is in force at once
    prefix: str = ""  # goes before the secret, such as "Bearer "

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.value, self.secret, self.secret_env, self.secret_file)) != 1:
            raise ValueError("give one of value, secret, secret_env and secret_file")
        return self


class HttpLookup(Section):
    """`[http.NAME.lookup]`: the one GET that tells what became of a call."""

    path: Template
    lag_s: SecondsOrZero  # no default: an index that lags, taken for one that does not, shows absence too soon
    items: Pointer | None = None  # where the list is in the answer; None = the answer is the object itself
    more: Pointer | None = (
        None  # where a list says that it goes on; without it an empty page is taken for the whole list
    )
    key_field: Pointer | None = None  # where an object shows our key; needed in lists, whose filter may be ignored
    match: dict[str, Pointer] = Field(
        default_factory=dict
    )  # argument -> where an object shows it; another value goes to a person
    absent: tuple[Status, ...] = (404,)  # with a JSON body, and only where one object is asked for
    not_done: tuple[str, ...] = ()  # values of status_field that say that the call has not taken effect

    @model_validator(mode="after")
    def _a_list_shows_keys(self) -> Self:
        if self.items is not None and self.key_field is None:
            raise ValueError("a list (items) needs key_field: an API that ignores the filter lists what others made")
        if self.more is not None and self.items is None:
            raise ValueError("more is for lists (items)")
        return self


class HttpTool(Section):
    """`[http.NAME]`: one tool, one request."""

    provider: Word  # [providers.NAME] has base_url, times and limits; one queue for each provider
    description: Annotated[str, Field(min_length=1, max_length=2000)]  # what the model reads
    cls: Literal["reversible", "compensatable", "irreversible"] = Field(alias="class")
    version: Count = 1  # raise it when recorded calls must not be sent as this one
    effect: Word
    target: Word
    audience: tuple[Word, ...]
    once_per: tuple[Word, ...]  # [] = may repeat; no default, since a wrong one is a second effect
    once_scope: Literal["run", "tenant"] = "run"
    effect_scope: Literal["run", "tenant"] = "run"
    undo: Word | None = None
    amount: tuple[Word, ...] = ()  # the argument with minor units, and the currency's
    approval: Literal["always"] | None = None

    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"
    path: Template
    arguments: dict[str, HttpArgument] = Field(default_factory=dict)
    body: tuple[str, ...] | None = None  # None = all arguments that the path does not hold; [] = no body
    headers: dict[HeaderName, HttpHeader] = Field(default_factory=dict)

    key_header: HeaderName | Literal[""] = "Idempotency-Key"  # "" = none is sent
    key_format: Literal["bare", "quoted"] = "bare"  # the RFC draft wants quotes, most services take it as it is
    key_field: Word | None = None  # a field of the body that holds our key, too, where a look-up can find it
    key_ttl_s: Seconds | None = None  # None = the service does not answer a repeated key from its store

    success: tuple[Status, ...] = (200, 201)  # not 202: what was taken in has not happened yet
    mismatch: tuple[Status, ...] = (422,)  # as in the RFC draft: this key came with another body
    in_flight: tuple[Status, ...] = (
        409,
    )  # as in the RFC draft: this key's first request is under way; () = the API has no such answer
    refused: tuple[Status, ...] = (400, 401, 403, 404, 410, 413)  # nothing was done, for good
    retryable: tuple[Status, ...] = (429,)  # nothing was done, for now
    receipt: Pointer = "/id"  # text or an integer; an answer without one proves nothing
    result: dict[Word, Pointer] = Field(default_factory=dict)  # what the model sees; nothing else of the answer does
    status_field: Pointer | None = None  # None = the object's presence is success
    done: tuple[str, ...] = ()  # the values of status_field that are success
    failed: tuple[str, ...] = ()  # those that say that it will never be; any other proves nothing yet

    landing_max_s: SecondsOrZero = 120  # a request takes effect within this long after its connection ends, or never
    on_absent: Literal["not_executed", "operator_review"] = "operator_review"
    uncertain: Literal["operator_review"] | None = None  # to be said where there is neither key_ttl_s nor a look-up
    lookup: HttpLookup | None = None

    @property
    def takes_of(self) -> bool:
        """It is about an action that it takes back."""
        return OF in placeholders(self.path)

    @property
    def has_secret(self) -> bool:
        """Some header of it is a secret."""
        return any(source.value is None for source in self.headers.values())

    @property
    def in_body(self) -> tuple[str, ...]:
        """The arguments that the body holds."""
        return tuple(a for a in self.arguments if a not in placeholders(self.path)) if self.body is None else self.body

    def field_of(self, argument: str) -> str:
        """The body's name for the argument."""
        return self.arguments[argument].send_as or argument

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name in self.arguments:
            if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name == "expected_version":
                raise ValueError(f"arguments.{name}: not a name for an argument; `send_as` names the body's field")
        own = set(self.arguments)
        _known("path", placeholders(self.path), own | {OF, KEY})
        _known("body", self.in_body, own)
        required = {name for name, argument in self.arguments.items() if argument.required}
        _known("path (needs required arguments)", placeholders(self.path), required | {OF, KEY})
        if self.lookup is not None:
            _known("lookup.path", placeholders(self.lookup.path), required | {KEY} | ({OF} if self.takes_of else set()))
            _known("lookup.match", self.lookup.match, own)
            if not {KEY, OF} & set(placeholders(self.lookup.path)) and self.lookup.key_field is None:
                raise ValueError("lookup: its path holds neither {key} nor {of}, so it needs key_field")
        fields = [self.field_of(name) for name in self.in_body] + ([self.key_field] if self.key_field else [])
        _once("body", fields)
        return self

    @model_validator(mode="after")
    def _answers_fit(self) -> Self:
        if any(not 200 <= status < 300 for status in self.success) or not self.success:
            raise ValueError("success lists statuses from 200 to 299")
        if 204 in self.success and not self.takes_of:
            raise ValueError(
                "success: 204 shows no receipt; only a tool that takes back ({of} in its path) may have it"
            )
        for name in ("mismatch", "in_flight", "refused"):
            if any(not 400 <= status < 500 for status in getattr(self, name)):
                raise ValueError(f"{name} lists statuses from 400 to 499: beyond them a request may have taken effect")
        if any(not 400 <= status < 500 and status != 503 for status in self.retryable):
            raise ValueError("retryable lists statuses from 400 to 499, and 503 where nothing was done then, for sure")
        _once("statuses", [*self.mismatch, *self.in_flight, *self.refused, *self.retryable])
        lookup = self.lookup
        values = [*self.done, *self.failed, *(lookup.not_done if lookup else ())]
        if bool(self.status_field is not None) != bool(self.done) or (values and not self.done):
            raise ValueError("status_field and done belong together; failed and lookup.not_done need both")
        _once("done, failed and lookup.not_done", values)
        if lookup is not None and self.status_field is None and self._asks_for_what_it_takes_back(lookup):
            raise ValueError("lookup: what is taken back is there before and after: give status_field")
        return self

    def _asks_for_what_it_takes_back(self, lookup: HttpLookup) -> bool:
        """The look-up reads the very object that the request is about, by its own address and not by our key."""
        by_key = KEY in placeholders(lookup.path) or lookup.key_field is not None
        parts, about = lookup.path.partition("?")[0].split("/"), self.path.partition("?")[0].split("/")
        return self.takes_of and not by_key and about[: len(parts)] == parts

    @model_validator(mode="after")
    def _key_is_sent(self) -> Self:
        sent = self.key_header or self.key_field or KEY in placeholders(self.path)
        if self.key_ttl_s is not None and not sent:
            raise ValueError("key_ttl_s is given, and no key is sent: give key_header")
        if self.key_field and self.method == "DELETE":
            raise ValueError("key_field: a DELETE has no body")
        if self.key_header and self.key_header.lower() in {name.lower() for name in self.headers}:
            raise ValueError("headers: the key's header is sent with our key")
        return self


def _known(what: str, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what} names {name!r}; there are: {', '.join(sorted(known)) or 'none'}")


def _once(what: str, values: Iterable[object]) -> None:
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{what}: {twice!r} is there twice")
