"""Rounds of others' logs: `[[[k, a], …], …]`, one list a request, checked row by row.

Guarantees: what is returned is possible; what is not is refused by request and round, counted from
1. Must never know a test.
"""

from __future__ import annotations

import json
from pathlib import Path

from analysis.iid_result import Round
from engine.errors import ConfigError

SHAPE = "[[[k, a], …], …]: a list of requests, each a list of rounds"


def read_requests(path: Path) -> list[list[Round]]:
    """Read a JSON file of rounds.

    Raises:
        ConfigError: no such file, not JSON, or an impossible row.
    """
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: lists nested too deep; needed: {SHAPE}") from error
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not JSON: {error}") from error
    try:
        return checked_requests(parsed)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def checked_requests(parsed: object) -> list[list[Round]]:
    """Insist on a study of possible rounds.

    Raises:
        ConfigError: not a list, empty, or a round that is not a pair of integers 0 ≤ a ≤ k.
    """
    if not isinstance(parsed, list):
        raise ConfigError(f"holds {_kind(parsed)}; needed: {SHAPE}")
    if not parsed:
        raise ConfigError("holds no request (empty)")
    return [_checked_request(request, idx + 1) for idx, request in enumerate(parsed)]


def _checked_request(request: object, number: int) -> list[Round]:
    if not isinstance(request, list):
        raise ConfigError(f"request {number}: {_kind(request)} is not a list of rounds")
    if not request:
        raise ConfigError(f"request {number}: empty; leave a request without rounds out")
    return [
        _checked_round(row, f"request {number}, round {idx + 1}") for idx, row in enumerate(request)
    ]


def _checked_round(row: object, place: str) -> Round:
    if not isinstance(row, list) or len(row) != 2:
        raise ConfigError(f"{place}: {_kind(row)} is not a pair [k, a]")
    for name, number in zip(("k", "a"), row, strict=True):
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(f"{place}: {name} = {_kind(number)} is not an integer")
        if number < 0:
            raise ConfigError(f"{place}: {name} = {number} is negative")
    draft_len, accepted_len = row
    if accepted_len > draft_len:
        raise ConfigError(
            f"{place}: a = {accepted_len} > k = {draft_len}: more accepted than drafted"
        )
    return draft_len, accepted_len


def _kind(found: object) -> str:
    """How an unexpected value is named: itself if short."""
    text = json.dumps(found)
    return text if len(text) <= 40 else f"{text[:37]}…"
