"""Decides how boto3 is opened: with the credentials it is given and no others, through `OneShot`, and one request a call.

By default it looks for credentials and a region in the environment, in files and at the instance's metadata service, sends
a failed request up to three times, and fills in a client token of its own, another one on each call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import boto3.session
import botocore.session
import requests
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from requests.structures import CaseInsensitiveDict

from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.aws.outcomes import Reply, reply_of
from counterfoil.providers.oneshot import OneShot

_FILES = ("config_file", "credentials_file")


class OneAnswer:
    """What boto3's event `before-send` asks: sends the signed request itself, so that boto3 sends nothing."""

    def __init__(self, transport: OneShot) -> None:
        self._transport = transport
        self.reply: Reply | None = None
        """The last answer, None while there is none."""

    def __call__(self, request: AWSPreparedRequest, **_more: object) -> AWSResponse:
        self.reply = None
        prepared = requests.PreparedRequest()
        prepared.method, prepared.url, prepared.body = request.method, request.url, request.body
        prepared.headers = CaseInsensitiveDict(
            {name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
        )
        answer = self._transport.send(prepared)
        self.reply = reply_of(answer.status_code, answer.headers, answer.content)
        return AWSResponse(request.url, answer.status_code, answer.headers, _Raw(answer.content))


class _Raw:
    """A body that has been read, as botocore reads one."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def open_scheduler(config: AwsConfig, transport: OneShot) -> tuple[Any, OneAnswer]:
    """A client of EventBridge Scheduler for one account and region."""
    logging.getLogger("botocore").setLevel(logging.WARNING)  # below that it logs whole requests
    nowhere = {
        name: (None, None, os.devnull if name in _FILES else default, convert)
        for name, (_, _, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    }
    session: Any = boto3.session.Session(
        botocore_session=botocore.session.Session(session_vars=nowhere),
        region_name=config.region,
        aws_access_key_id=config.access_key,
        aws_secret_access_key=config.secret_key,
        aws_session_token=config.session_token,
    )
    once = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        ignore_configured_endpoint_urls=True,
        proxies={},
    )
    client = session.client("scheduler", endpoint_url=config.base_url, config=once)
    answers = OneAnswer(transport)
    client.meta.events.register("before-send.scheduler", answers)
    return client, answers
