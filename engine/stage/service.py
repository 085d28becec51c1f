"""The stage process: links, a queue, one compute thread.

Started by a launcher as `python -m engine.stage.service`. It reads one line of JSON (`StageConfig`)
from standard input, writes one line (`StageReady`) once it listens with its weights loaded, reads
one more line (`Successor`) and then serves until standard input closes, so that it cannot outlive
its launcher. Guarantees: a lost peer never takes the process down: it waits for the next one.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import LinkClosedError, LocalProtocolError, LonghaulError
from engine.source import engine_source_digest
from engine.stage.account import JobAccount
from engine.stage.config import StageConfig, StageReady, Successor
from engine.stage.executor import DecoderExecutor, Executor
from engine.stage.frame_queue import FrameQueue, Queued
from engine.stage.job import Forward, Outgoing, Outside, StageIdentity, StageJob
from engine.stage.links import StageLinks
from engine.transport.connection import Received
from engine.transport.credentials import Credentials
from engine.transport.keep_warm import OFF
from engine.transport.link import Listener
from engine.transport.message import AnyMessage, Attest, Challenge, JobErrorReport, Reset, Verify
from engine.trust.identity import Identity
from engine.trust.job_digests import JobDigests


class StageService:
    """Joins links, queue and job of one stage.

    Args:
        executor: the layers.
        identity: what the stage says of itself.
        credentials: who it is to its peers, and who may call it.
        successor: whom it sends to.
        listener: where predecessors and the coordinator call.
        signer: signs what this stage states of attested jobs; None: it refuses such jobs.
    """

    def __init__(
        self,
        executor: Executor,
        identity: StageIdentity,
        credentials: Credentials,
        successor: Successor,
        listener: Listener,
        signer: Identity | None = None,
    ) -> None:
        self._node_id = credentials.node_id
        self._stage_idx = identity.stage_idx
        digests = JobDigests()
        self._job = StageJob(executor, identity, JobAccount(signer, digests))
        self._queue = FrameQueue()
        self._links = StageLinks(
            credentials, successor, listener, digests, self._on_frame, self._on_link_lost
        )

    def run(self) -> None:
        """Serve until `close`; the compute loop runs on the calling thread."""
        self._links.start()
        while (item := self._queue.get()) is not None:
            self._handle(item)

    def close(self) -> None:
        """Stop serving: no new links, the open ones closed."""
        self._queue.close()
        self._links.close()

    def _on_frame(self, received: Received, read_ns: int) -> None:
        self._queue.put(Queued(received, read_ns))

    def _on_link_lost(self, detail: str) -> None:
        self._report("link_lost", detail)

    def _handle(self, item: Queued) -> None:
        try:
            for outgoing in self._outgoing(item, item.received.message):
                self._dispatch(outgoing)
        except LinkClosedError as error:
            self._report("link_lost", str(error))
        except Exception as error:  # a bug ends this process, but not in silence
            self._report("stage_bug", repr(error))
            raise

    def _outgoing(self, item: Queued, message: AnyMessage) -> list[Outgoing]:
        if isinstance(message, Verify):
            return self._job.on_verify(
                message, item.received.tensors, item.read_ns, self._queue.is_stale
            )
        if isinstance(message, Reset):
            self._links.take_wire_use()  # what was before is not the job's
            outgoing = self._job.on_reset(message)
            self._links.dial_onward()  # a link lost in an earlier job is opened again here
            self._links.keep_warm(self._job.keepwarm_ms)
            return outgoing
        if isinstance(message, Attest):
            self._links.keep_warm(OFF)
            outside = Outside(
                num_dropped=self._queue.take_num_dropped(message.job),
                num_pending=self._queue.num_pending(message.job),
                num_stray=self._links.take_num_stray(),
                wire_use=self._links.take_wire_use(),
            )
            return self._job.on_attest(message, outside)
        if isinstance(message, Challenge):
            return self._job.on_challenge(message)
        raise LocalProtocolError(f"{type(message).__name__} in the frame queue")

    def _dispatch(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing, Forward):
            link = self._links.get(self._links.onward_role)
            self._job.note_sent(outgoing.message, link.send(outgoing.message, outgoing.tensors))
        else:
            self._links.get("control").send(outgoing.message, outgoing.tensors)

    def _report(self, code: str, detail: str) -> None:
        """Tell the coordinator, if it is there to be told."""
        report = JobErrorReport(
            job=self._job.number, stage_idx=self._stage_idx, code=code, detail=detail
        )
        try:
            self._links.get("control").send(report)
        except LinkClosedError as error:
            print(f"{self._node_id}: {detail}; not reported: {error}", file=sys.stderr, flush=True)


def load_executor(config: StageConfig) -> DecoderExecutor:
    """Load this stage's layers; torch's threads are set before any kernel runs."""
    from engine.model.decoder import Decoder
    from engine.model.span import CacheLimits
    from engine.model.threads import set_threads
    from engine.model.weights import prepare_model

    set_threads(config.num_threads)
    files = prepare_model(config.model)
    decoder = Decoder.load(files, config.layer_start, config.layer_end, config.weights)
    limits = CacheLimits(max_kv_size=config.max_kv_size or None)
    executor = DecoderExecutor(decoder, files.model_digest, limits)
    executor.warm_up()
    return executor


def _read_line(kind: type[Any]) -> Any:
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit(0)  # the launcher is gone
    return msgspec.json.decode(line, type=kind)


def _write_line(struct: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(struct) + b"\n")
    sys.stdout.buffer.flush()


def _exit_with_launcher() -> None:
    """End the process, whatever it computes, when standard input closes."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Entry point of the stage process."""
    config: StageConfig = _read_line(StageConfig)
    os.nice(config.nice)
    try:
        signer = Identity.load_or_create(Path(config.signing_key)) if config.signing_key else None
        executor = load_executor(config)
        listener = Listener(config.listen_host)
    except (LonghaulError, OSError) as error:
        _write_line(StageReady(error=str(error)))
        raise SystemExit(2) from error
    _write_line(StageReady(port=listener.address[1], kernel=executor.kernel))
    successor: Successor = _read_line(Successor)
    threading.Thread(target=_exit_with_launcher, name="launcher watch", daemon=True).start()
    identity = StageIdentity(
        config.stage_idx, engine_source_digest(), config.num_threads, config.num_stages
    )
    StageService(executor, identity, config.credentials(), successor, listener, signer).run()


if __name__ == "__main__":
    import signal

    # Ctrl-C reaches the whole process group; the launcher decides when stages end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
