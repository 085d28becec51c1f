"""Where a job stands while it runs: what its receipt will say, counted early."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.records import RoundLimits
from engine.coordinator.rounds import RoundMachine
from tests.coordinator.test_rounds_machine import ScriptedPolicy, Storm, Text, jobs


@settings(max_examples=60)
@given(job=jobs(), draw=st.data())
def test_where_a_job_stands_is_what_its_records_say(
    job: tuple[Text, RoundLimits, ScriptedPolicy], draw: st.DataObject
) -> None:
    """Catches a live view that counts otherwise than the receipt will."""
    text, limits, policy = job
    machine = RoundMachine(text.prompt, limits, policy)
    Storm(text, machine, draw).run()
    standing, records = machine.flight.standing(), machine.records()
    assert standing.num_in_flight == 0
    assert standing.num_accepted >= sum(record.accepted_len for record in records)
    assert standing.num_tested >= standing.num_accepted
