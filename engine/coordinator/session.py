"""A coordinator's session with one warm ring: jobs one after another.

Guarantees: job numbers rise within a session; a prompt that does not fit is refused before a frame
is sent; a ring of which it is unknown what is pending takes no more jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.coordinator.attested import Pinned
from engine.coordinator.challenged import check_replicas
from engine.coordinator.job import DraftMeans, JobRequest, JobResult, OnCommit
from engine.coordinator.job_run import JobRun
from engine.coordinator.records import Standing
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.ring_links import RingAddresses, RingLinks
from engine.draft.head import EagleHead
from engine.errors import ConfigError, JobError, LinkClosedError, RemoteProtocolError
from engine.transport.credentials import Credentials
from engine.transport.message import Challenge
from engine.transport.probe import LinkProbe, ProbePlan
from engine.trust.challenge import Compared, Replica, Terms


def _ignore(ids: Sequence[int], standing: Callable[[], Standing]) -> None:
    return None


class Session:
    """Open links to a ring; a context manager that closes them.

    Args:
        context_len: positions the model can hold.
        pinned: whom attested jobs must be signed by; None: they are refused.
        head: what learned drafters draft with; None: they fall back to n-grams.

    Raises:
        LinkClosedError: a stage cannot be reached or refuses.
    """

    def __init__(
        self,
        addresses: RingAddresses,
        credentials: Credentials,
        context_len: int,
        pinned: Pinned | None = None,
        head: Callable[[], EagleHead] | None = None,
    ) -> None:
        self._links = RingLinks(addresses, credentials)
        self._context_len = context_len
        self._pinned = pinned
        self._nonces: set[str] = set()  # of attested jobs
        # What a job learns of the ring's cost, the next one uses; so a head that is ready.
        self._means = DraftMeans(RingCost(), head)
        # Wall-clock milliseconds: likely no other coordinator's numbers. Their order means nothing.
        self._last_job = time.time_ns() // 1_000_000
        self.usable = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, request: JobRequest, on_commit: OnCommit = _ignore) -> JobResult:
        """Run one job; a failure of the job is in the result.

        Args:
            on_commit: called with newly committed ids and what counts where the job stands.

        Raises:
            LinkClosedError: an earlier job left the ring in an unknown state.
        """
        if not self.usable:
            raise LinkClosedError("an earlier job lost this ring; bring up a new one")
        needed_len = len(request.prompt_ids) + request.levers.max_new_tokens
        if not request.prompt_ids or needed_len > self._context_len:
            return JobResult(failure=self._does_not_fit(request))
        if request.levers.attestation:
            refusal = self._why_not_attested(request.nonce)
            if refusal:
                return JobResult(failure=JobError("attestation", refusal))
            self._nonces.add(request.nonce)
        self._last_job += 1
        try:
            self.check()
        except LinkClosedError as error:
            self.usable = False
            return JobResult(failure=JobError("link_lost", str(error)), ring_usable=False)
        result = JobRun(
            self._links, self._last_job, request, self._means, on_commit, self._pinned
        ).execute()
        result.uncorrelated += self._links.take_num_stray()  # since the last job
        self.usable = result.ring_usable
        return result

    def challenge(
        self, result: JobResult, replicas: Sequence[Replica], seed: bytes, terms: Terms
    ) -> list[list[Compared]]:
        """Recompute what stages sent in the last job, which was attested.

        Args:
            result: that job's; its nonce was `commitment(seed)`.
            replicas: one's own copy of every stage's layers, in ring order.

        Returns:
            The compared frames of each stage.

        Raises:
            ConfigError: the job was not attested, or failed.
            AttestationError: the first fault, and the stage whose it is.
            LinkClosedError: a stage is gone or silent.
        """
        if result.account is None or result.failure is not None:
            raise ConfigError("only an attested job that did not fail can be challenged")
        order = Challenge(job=self._last_job, seed=seed, num_frames=terms.num_frames)
        signed = [statement.signed for statement in result.statements]
        return check_replicas(signed, self._links.challenge(order), replicas, seed, terms)

    def check(self) -> None:
        """Look for stages lost since the last job; between jobs only.

        Raises:
            LinkClosedError: one is; bring up a new ring.
        """
        try:
            self._links.discard_events()
        except RemoteProtocolError as error:
            raise LinkClosedError(str(error)) from error

    def measure_links(self, count: int, payload_bytes: int, idle_ms: int) -> list[LinkProbe]:
        """Round trip, throughput and idle penalty of every link, ring order; only between jobs.

        Args:
            count: round trips of an empty probe, and then as many with the payload.
            payload_bytes: size of the payload.
            idle_ms: silence before one more payload.

        Raises:
            ConfigError: a value out of range.
            LinkClosedError: a link is gone or silent.
        """
        return self._links.measure(ProbePlan(count, payload_bytes, idle_ms))

    def close(self) -> None:
        """Close the links; the stages stay warm for the next coordinator."""
        self._links.close()

    def _why_not_attested(self, nonce: str) -> str:
        if self._pinned is None:
            return "no stage's key is pinned; bring the ring up with signing keys, or ask for none"
        if nonce in self._nonces:
            return f"nonce {nonce} was used by an earlier job; take a fresh one"
        return ""

    def _does_not_fit(self, request: JobRequest) -> JobError:
        if not request.prompt_ids:
            return JobError("empty_prompt", "the prompt has no token; give it some text")
        return JobError(
            "context_overflow",
            f"{len(request.prompt_ids)} prompt tokens and {request.levers.max_new_tokens} new ones "
            f"exceed the model's context of {self._context_len}; shorten the prompt or lower "
            "max_new_tokens",
        )
