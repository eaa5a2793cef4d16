"""Every exception that callers may meet: their own mistake or our outage, never a provider's word.

CounterfoilError (RuntimeError)
├── ConfigError            the configuration is wrong: names the key, and the nearest valid name
├── ToolDefinitionError    a tool's declaration is refused: names file and line
├── ArgumentError          an argument is refused at the door: `path` into the arguments, `code`
├── StepConflict           the step was recorded with another tool
├── StepRace               the caller's snapshot is too old to allocate a step; retry the transaction
├── IntentConflict         the step was recorded with other arguments
├── RunTakenOver           another handle re-opened this run
├── RunBusy                another process serves this conversation
├── NotFound               there is no such action or run, or this login may not see it
├── NotAllowed             the run is closed or unwinding, or the role has no right to this tenant
│   ├── LedgerLostTime     the caller was told of ends that the ledger does not have: it was restored to an earlier time
│   ├── LimitReached       a cap of the configuration: `limit` is its setting
│   └── DecisionRefused    a person's decision does not stand: changed, expired, decided by somebody else, one's own, …
└── LedgerUnavailable      Postgres could not be reached, or the connection was lost

All subclass RuntimeError, which agent frameworks do not retry by default. Each has a stable `code` and an `exit_code`
for the command line, an `http_status` for an application's own answers, and says what to do next. The same call again is
safe after each of them, so a gateway that repeats a 429 or a 503 does no harm; a mistake has a status that nobody repeats.
"""

from __future__ import annotations

_REASON_CHARS_MAX = 300
"""Of the sentence that says what is wrong with an argument."""


class CounterfoilError(RuntimeError):
    """Base of all errors that Counterfoil raises on purpose."""

    code = "error"
    exit_code = 1
    http_status = 500

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message if not fix else f"{message} {fix}")
        self.message = message
        self.fix = fix


class ConfigError(CounterfoilError):
    """The configuration is wrong; `key` is the setting, in the form the user wrote it."""

    code = "config"
    exit_code = 2
    http_status = 500

    def __init__(self, message: str, *, key: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.key = key


class ToolDefinitionError(CounterfoilError):
    """A tool's declaration is refused; `file` and `line` are where the tool is defined."""

    code = "tool_definition"
    exit_code = 2
    http_status = 500

    def __init__(self, message: str, *, file: str = "", line: int = 0, fix: str = "") -> None:
        super().__init__(f"{file}:{line}: {message}" if file else message, fix=fix)
        self.file = file
        self.line = line


class ArgumentError(CounterfoilError):
    """An argument is refused at the door, before any row; `path` is a place such as `$.items[2].name`.

    `reason` says what is wrong with it, in the validator's own sentence: one line, at most 300 characters. That of a
    tool's own code may quote the value, so it is in no message: tell it to whoever gave the argument, and log the message.
    """

    code = "invalid_argument"
    exit_code = 2
    http_status = 422

    def __init__(self, message: str, *, path: str, code: str, fix: str = "", reason: str = "") -> None:
        super().__init__(f"{path}: {message}", fix=fix)
        self.path = path
        self.code = code
        said = reason or (f"{message} {fix}" if fix else message)
        printable = "".join(c if c.isprintable() else " " for c in said[: 4 * _REASON_CHARS_MAX])
        self.reason = " ".join(printable.split())[:_REASON_CHARS_MAX]


class StepConflict(CounterfoilError):
    """This step of the run is recorded with another tool, or the label cannot be used."""

    code = "step_conflict"
    exit_code = 4
    http_status = 409


class StepRace(CounterfoilError):
    """The caller's transaction (REPEATABLE READ or stricter) cannot see a row that decides the step: retry it whole."""

    code = "step_race"
    exit_code = 1
    http_status = 503


class IntentConflict(CounterfoilError):
    """This step of the run is recorded with other arguments; `action_id` is the recorded action."""

    code = "intent_conflict"
    exit_code = 4
    http_status = 409

    def __init__(self, message: str, *, action_id: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.action_id = action_id


class RunTakenOver(CounterfoilError):
    """Another handle opened this run after this one did; this handle may not propose any more."""

    code = "run_taken_over"
    exit_code = 4
    http_status = 409


class RunBusy(CounterfoilError):
    """Another process serves this conversation, and has done so for longer than this one would wait."""

    code = "run_busy"
    exit_code = 4
    http_status = 409


class NotAllowed(CounterfoilError):
    """The run unwinds or is closed, or the login has no right to this tenant or verb."""

    code = "not_allowed"
    exit_code = 4
    http_status = 403


class LedgerLostTime(NotAllowed):
    """The caller was told of ends that are not on record: nothing of the run goes on before a person knows why."""

    code = "ledger_lost_time"
    http_status = 409


class LimitReached(NotAllowed):
    """A cap of the configuration is reached and nothing was recorded; `limit` is the setting that holds it."""

    code = "limit_reached"
    http_status = 429

    def __init__(self, message: str, *, limit: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.limit = limit


class DecisionRefused(NotAllowed):
    """A person's decision does not stand, and changed nothing; `code` says why, such as changed, expired or decided."""

    http_status = 409

    def __init__(self, message: str, *, code: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.code = code


class NotFound(CounterfoilError):
    """No such action, run, tool or file that the caller may see."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class LedgerUnavailable(CounterfoilError):
    """Postgres could not be reached, or the connection was lost while a statement ran (its outcome is then unknown)."""

    code = "ledger_unavailable"
    exit_code = 5
    http_status = 503


class BrokerUnavailable(CounterfoilError):
    """The broker could not be reached; actions wait in Postgres, nothing is lost."""

    code = "broker_unavailable"
    exit_code = 5
    http_status = 503
