"""The timing of the tests on large logs, on a small one."""

from __future__ import annotations

import pytest

from analysis.iid import TESTS
from analysis.iid_speed import DRAFT_LEN, invented_rounds, timed


@pytest.mark.parametrize("test", TESTS)
def test_every_test_is_timed_on_what_was_asked_for(test: str) -> None:
    rounds = invented_rounds(3, 5)
    assert [len(request) for request in rounds] == [5] * 3
    assert all(k == DRAFT_LEN and 0 <= a <= k for request in rounds for k, a in request)
    elapsed_s, peak_mb, how = timed((3, 5), test)
    assert elapsed_s > 0 and peak_mb > 0 and how
