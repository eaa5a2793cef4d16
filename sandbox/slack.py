"""Decides which part of Slack's Web API exists here. Every call is a POST; an error is `ok: false`, mostly with HTTP 200."""

from __future__ import annotations

from counterfoil.sandbox import slack_messages as messages
from counterfoil.sandbox import slack_scheduled as scheduled
from counterfoil.sandbox.slack_answers import answered, error_body, refuse
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Handler, Provider, Reply, Request, Route


def _me(store: Store, request: Request) -> Reply:
    """Whose token it is; each token is an app of its own in one workspace."""
    user, bot = messages.user_of(request), messages.bot_of(request)
    return answered(store, url="https://sandbox.slack.com/", team_id="T0SANDBOX", user_id=user, bot_id=bot)


def _info(store: Store, request: Request) -> Reply:
    """A channel that begins with D is a direct message; shared are those that the setting `slack_shared` names."""
    channel = messages.channel_of(request)
    shared, direct = channel in store.config.slack_shared, channel.startswith("D")
    about = {"id": channel, "is_im": direct, "is_mpim": False, "is_archived": False, "is_org_shared": False}
    if not direct:  # Slack leaves these out of a direct message
        about |= {"is_ext_shared": shared, "is_shared": shared, "is_pending_ext_shared": False}
    return answered(store, channel=about)


def _unknown(_store: Store, _request: Request) -> Reply:
    raise refuse("unknown_method")


def _login(request: Request) -> Reply | None:
    return None if request.headers.get("authorization", "").startswith("Bearer ") else refuse("not_authed").reply


def _at(operation: str, handler: Handler) -> Route:
    def run(store: Store, request: Request) -> Reply:
        scheduled.post_due(store)
        return handler(store, request)

    return Route("POST", f"/api/{operation}", operation, run)


SLACK = Provider(
    name="slack",
    encoding="by_type",
    error=error_body,
    admit=_login,
    routes=(
        _at("auth.test", _me),
        _at("conversations.info", _info),
        _at("conversations.history", messages.history),
        _at("conversations.replies", messages.replies),
        _at("chat.postMessage", messages.post),
        _at("chat.delete", messages.delete),
        _at("chat.scheduleMessage", scheduled.schedule),
        _at("chat.scheduledMessages.list", scheduled.list_scheduled),
        _at("chat.deleteScheduledMessage", scheduled.delete),
        Route("*", "/{tail:.*}", "unknown", _unknown),
    ),
)
