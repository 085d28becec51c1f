"""The stage process: a listener, a forward link, reader threads, one compute thread.

Started by a launcher as `python -m engine.stage.service`. It reads one line of JSON (`StageConfig`)
from standard input, writes one line (`StageReady`) once it listens with its weights loaded, reads
one more line (`Successor`) and then serves until standard input closes, so that it cannot outlive
its launcher. Guarantees: a lost peer never takes the process down: it waits for the next one.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import msgspec

from engine.errors import LinkClosedError, LocalProtocolError, LonghaulError
from engine.source import engine_source_digest
from engine.stage.executor import DecoderExecutor, Executor
from engine.stage.frame_queue import FrameQueue, Queued
from engine.stage.job import Forward, Outgoing, StageIdentity, StageJob
from engine.transport.connection import Received
from engine.transport.link import Link, Listener, dial, read_in_background
from engine.transport.message import (
    PROTOCOL_VERSION,
    Attest,
    Hello,
    JobErrorReport,
    Message,
    Probe,
    ProbeAck,
    ProbeOrder,
    ProbeReport,
    Reset,
    Verify,
)
from engine.transport.probe import Prober

DIAL_TIMEOUT_S = 30.0


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the launcher tells a stage."""

    stage_idx: int
    layer_start: int
    layer_end: int
    num_threads: int
    nice: int
    cluster_id: str
    model_path: str | None


class StageReady(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage answers; `error` is empty or says why it cannot run."""

    port: int = 0
    kernel: str = ""
    error: str = ""


class Successor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to dial; no address for the last stage, which the coordinator dials."""

    node_id: str
    address: tuple[str, int] | None


class StageService:
    """Joins links, queue and job of one stage.

    Args:
        executor: the layers.
        identity: what the stage says of itself.
        successor: whom it sends to.
        listener: where predecessors and the coordinator call.
    """

    def __init__(
        self,
        executor: Executor,
        identity: StageIdentity,
        cluster_id: str,
        successor: Successor,
        listener: Listener,
    ) -> None:
        self._node_id = f"stage-{identity.stage_idx}"
        self._stage_idx = identity.stage_idx
        self._cluster_id = cluster_id
        self._successor = successor
        self._listener = listener
        self._job = StageJob(executor, identity)
        self._queue = FrameQueue()
        self._links: dict[str, Link] = {}  # by role: input, control, return, onward
        self._links_lock = threading.Lock()
        self._prober = Prober()

    def run(self) -> None:
        """Serve until `close`; the compute loop runs on the calling thread."""
        threading.Thread(target=self._accept_all, name="accept", daemon=True).start()
        if self._successor.address is not None:
            self._dial_onward()
        while (item := self._queue.get()) is not None:
            self._handle(item)

    def close(self) -> None:
        """Stop serving: no new links, the open ones closed."""
        self._listener.close()
        self._queue.close()
        with self._links_lock:
            links = list(self._links.values())
        for link in links:
            link.close()

    # -- links -----------------------------------------------------------------------------------

    def _accept_all(self) -> None:
        while True:
            try:
                link, hello = self._listener.accept(self._node_id, self._cluster_id)
            except LinkClosedError:
                return
            self._adopt(hello.role, link)

    def _adopt(self, role: str, link: Link) -> None:
        """Take a link into its role; a newer one replaces an older one."""
        with self._links_lock:
            older, self._links[role] = self._links.get(role), link
        if older is not None:
            older.close()
        on_message = self._on_control if role == "control" else self._on_frame
        read_in_background(
            link,
            lambda received, read_ns: on_message(link, received, read_ns),
            lambda reason: self._on_end(role, link, reason),
        )

    def _on_end(self, role: str, link: Link, reason: Exception) -> None:
        link.close()
        with self._links_lock:
            current = self._links.get(role) is link
            if current:
                del self._links[role]
        if current and role == "onward":
            self._report("link_lost", f"forward link lost: {reason}")

    def _dial_onward(self) -> Link:
        assert self._successor.address is not None
        hello = Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            role="input",
        )
        link = dial(self._successor.address, hello, self._successor.node_id, DIAL_TIMEOUT_S)
        self._adopt("onward", link)
        return link

    def _link(self, role: str) -> Link:
        with self._links_lock:
            link = self._links.get(role)
        if link is None:
            raise LinkClosedError(f"{self._node_id} has no {role} link now")
        return link

    @property
    def _onward_role(self) -> str:
        return "return" if self._successor.address is None else "onward"

    # -- messages --------------------------------------------------------------------------------

    def _on_frame(self, link: Link, received: Received, read_ns: int) -> None:
        """Reader threads of input, onward and return links."""
        message = received.message
        if isinstance(message, Probe):
            link.send(ProbeAck(seq=message.seq))
        elif isinstance(message, ProbeAck):
            self._prober.on_ack(message.seq, read_ns)
        elif isinstance(message, Reset | Verify | Attest):
            self._queue.put(Queued(received, read_ns))

    def _on_control(self, link: Link, received: Received, read_ns: int) -> None:
        """Reader thread of the control link."""
        if isinstance(received.message, ProbeOrder):
            try:
                onward = self._link(self._onward_role)
                rtt_ns = self._prober.measure(onward, received.message.count)
            except LinkClosedError as error:
                self._report("link_lost", str(error))
                return
            link.send(ProbeReport(rtt_ns=rtt_ns))

    def _handle(self, item: Queued) -> None:
        message = item.received.message
        try:
            for outgoing in self._outgoing(item, message):
                self._dispatch(outgoing)
        except LinkClosedError as error:
            self._report("link_lost", str(error))
        except Exception as error:  # a bug ends this process, but not in silence
            self._report("stage_bug", repr(error))
            raise

    def _outgoing(self, item: Queued, message: Message) -> list[Outgoing]:
        if isinstance(message, Verify):
            return self._job.on_verify(
                message, item.received.tensors, item.read_ns, self._queue.is_stale
            )
        if isinstance(message, Reset):
            outgoing = self._job.on_reset(message)
            if self._onward_role == "onward" and "onward" not in self._links:
                self._dial_onward()
            return outgoing
        if isinstance(message, Attest):
            num_dropped = self._queue.take_num_dropped(message.job)
            return self._job.on_attest(message, num_dropped, self._queue.num_pending(message.job))
        raise LocalProtocolError(f"{type(message).__name__} in the frame queue")

    def _dispatch(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing, Forward):
            self._link(self._onward_role).send(outgoing.message, outgoing.tensors)
        else:
            self._link("control").send(outgoing.message)

    def _report(self, code: str, detail: str) -> None:
        """Tell the coordinator, if it is there to be told."""
        report = JobErrorReport(
            job=self._job.number, stage_idx=self._stage_idx, code=code, detail=detail
        )
        try:
            self._link("control").send(report)
        except LinkClosedError as error:
            print(f"{self._node_id}: {detail}; not reported: {error}", file=sys.stderr, flush=True)


def load_executor(config: StageConfig) -> DecoderExecutor:
    """Load this stage's layers; torch's threads are set before any kernel runs."""
    from pathlib import Path

    from engine.model.decoder import Decoder
    from engine.model.threads import set_threads
    from engine.model.weights import prepare_model

    set_threads(config.num_threads)
    files = prepare_model(None if config.model_path is None else Path(config.model_path))
    decoder = Decoder.load(files, config.layer_start, config.layer_end)
    executor = DecoderExecutor(decoder, files.model_digest)
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
        executor = load_executor(config)
        listener = Listener()
    except (LonghaulError, OSError) as error:
        _write_line(StageReady(error=str(error)))
        raise SystemExit(2) from error
    _write_line(StageReady(port=listener.address[1], kernel=executor.kernel))
    successor: Successor = _read_line(Successor)
    threading.Thread(target=_exit_with_launcher, name="launcher watch", daemon=True).start()
    identity = StageIdentity(config.stage_idx, engine_source_digest(), config.num_threads)
    StageService(executor, identity, config.cluster_id, successor, listener).run()


if __name__ == "__main__":
    import signal

    # Ctrl-C reaches the whole process group; the launcher decides when stages end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
