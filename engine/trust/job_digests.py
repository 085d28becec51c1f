"""Notes the frames of attested jobs as they cross a process's links.

Guarantees: only verify frames and replies of the job in hand are noted; a job that did not ask for
attestation costs one comparison a frame. Must never know sockets or layers.
"""

from __future__ import annotations

from engine.transport.message import AnyMessage, Reply, Verify
from engine.trust.frame_digests import RECEIVED, SENT, FrameDigests

NO_JOB = 0


class JobDigests:
    """The tap of a process's forward links, and what it saw of the current job."""

    def __init__(self) -> None:
        self.frames = FrameDigests()
        self._job = NO_JOB

    def begin(self, job: int, is_attested: bool) -> None:
        """A job opens; call before its first frame is read or sent."""
        self._job = job if is_attested else NO_JOB
        self.frames.begin(self._job)  # whatever was kept of an earlier job goes

    def tap(self, is_sent: bool, message: AnyMessage, kind: int, payload: memoryview) -> None:
        """For `engine.transport.link.Link.watch`."""
        if self._job == NO_JOB or not isinstance(message, Verify | Reply):
            return
        if message.job != self._job:
            return
        key = (message.epoch, message.start)
        if is_sent:  # it is sealed in place as soon as we return
            self.frames.note(self._job, SENT, key, kind, bytes(payload))
        else:
            self.frames.note(self._job, RECEIVED, key, kind, payload)
