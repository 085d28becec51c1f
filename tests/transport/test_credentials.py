"""Plans are whole before anybody calls, and secrets stay out of what is printed."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ConfigError
from engine.transport.handshake import ListenerHandshake
from tests.transport.two_ends import PUBLIC, caller, credentials, exchange, private_of


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"node_id": ""}, "''.*1..64"),
        ({"node_id": "x" * 65}, "cannot name"),
        ({"cluster_id": "a\nb"}, r"a\?b.*printable"),
        ({"suite": "x" * 65}, "cannot name"),
        ({"callers": {"input": "\x1b"}}, "cannot name"),
        ({"callers": {"": "stage-0"}}, "cannot name"),
        ({"callers": {"input": "stage-9"}}, "no key of stage-9.*coordinator, stage-0"),
        ({"static_private": b""}, "stage-1.*static key has 0 bytes.*needs 32"),
        ({"cluster_secret": bytes(31)}, "cluster secret has 31 bytes"),
        ({"peer_keys": PUBLIC | {"stage-2": b"short"}}, "key of stage-2 has 5 bytes"),
        ({"peer_keys": PUBLIC | {"": bytes(32)}}, "cannot name"),
        ({"static_private": bytes(32), "suite": "plain"}, "static key has 32 bytes.*needs 0"),
    ],
)
def test_bad_plans_are_refused(changed: dict[str, Any], words: str) -> None:
    """Catches a half-made plan that fails only when somebody calls."""
    with pytest.raises(ConfigError, match=words):
        credentials(**changed)


def test_calls_that_the_plan_does_not_hold() -> None:
    """Catches a call to a node whose key nobody could check."""
    with pytest.raises(ConfigError, match="stage-0: the plan holds no key of stage-9"):
        caller(to="stage-9")
    for wrong in ({"role": ""}, {"to": "x" * 65}):
        with pytest.raises(ConfigError, match="cannot name"):
            caller(**wrong)


def test_secrets_stay_out_of_reprs() -> None:
    """Catches a key in a log line or a traceback."""
    outcome = exchange(caller(), ListenerHandshake(credentials()))
    shown = repr([credentials(), *outcome.established.values()])
    for secret in (
        private_of("stage-1"),
        bytes(range(32)),
        *(one.send_secret for one in outcome.established.values()),
    ):
        assert repr(secret)[2:-1] not in shown
