"""llama.cpp as a peer: its server here, its RPC servers behind the links of a profile.

Guarantees: each RPC server holds a share of the layers and is reached over one link of the profile,
both ways, as the ring's stage of the same number is reached from its predecessor: no server is
farther from llama.cpp's client than one link. Processes end with the context. It computes with the
file's quantised weights, another numeric configuration. Must never know what it is compared with.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Self

from bench.peers.turn import Clock, Turn
from bench.wan.profile import LinkProfile
from bench.wan.relay import RelayProcess, link_to
from engine.cluster.launch import CHECKOUT_DIR
from engine.errors import ConfigError, LinkClosedError
from engine.model.weights import ModelFiles

SERVER = "llama-server"
RPC_SERVERS = ("ggml-rpc-server", "rpc-server")  # its name now, and before
UNTOLD = -1  # a token that the server counted and did not tell
START_TIMEOUT_S = 300.0  # weights cross the links, a tensor a round trip
TURN_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
HOST = "127.0.0.1"
GONE = (OSError, http.client.HTTPException)


def llama_programs() -> tuple[str, str] | None:
    """llama.cpp's server and RPC server, if both are on the path."""
    server = shutil.which(SERVER)
    rpc_server = next(filter(None, map(shutil.which, RPC_SERVERS)), None)
    return (server, rpc_server) if server and rpc_server else None


class LlamaRpc:
    """llama.cpp's client and `num_servers` RPC servers; a context manager.

    Args:
        programs: of `llama_programs`.
        profile: what stands on the links; None: the client computes alone, without servers.
        seed: of jitter.

    Raises:
        ConfigError: the model is no GGUF file, a program ended or did not get ready in time.
    """

    def __init__(
        self,
        programs: tuple[str, str],
        files: ModelFiles,
        profile: LinkProfile | None,
        num_servers: int,
        num_threads: int,
        seed: int = 1,
    ) -> None:
        if files.source_path.suffix != ".gguf":
            raise ConfigError(f"{files.source_path}: llama.cpp reads GGUF files only")
        self._server, self._rpc_server = programs
        self._files, self._profile, self._num_servers = files, profile, num_servers
        self._num_threads, self._seed = num_threads, seed
        self._relay = RelayProcess()
        self._running: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
        self._stack = contextlib.ExitStack()  # ends the client first: it talks to the others
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def turn(self, prompt_ids: Sequence[int], num_new: int) -> Turn:
        """Decode greedily, streamed; tokens are timed as they arrive.

        Raises:
            ConfigError: the server refused.
            LinkClosedError: it went away.
        """
        asked = {
            "prompt": list(prompt_ids),
            "n_predict": num_new,
            "temperature": 0.0,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        clock, ids = Clock(), []
        for event in self._events("/completion", asked):
            if "error" in event:
                raise ConfigError(f"{SERVER} refused: {event['error']}")
            told = list(event.get("tokens", ()))
            if event.get("stop"):  # it tells no token that ends within a character, nor the last
                told += [UNTOLD] * (event.get("tokens_predicted", 0) - len(ids) - len(told))
            clock.note(len(told))
            ids += told
        return clock.turn(ids, len(prompt_ids))

    def stop(self) -> None:
        """End every process and reap it."""
        self._stack.close()
        self._running.clear()

    def _start(self) -> None:
        command = [self._server, "-m", str(self._files.source_path), "--host", HOST]
        command += ["-t", str(self._num_threads), "-c", "2048", "-np", "1"]
        if self._profile is None:
            command += ["-ngl", "0"]
        else:
            addresses = self._start_servers(self._profile)
            shares = ",".join("1" for _ in addresses)
            command += ["--rpc", ",".join(addresses), "-ngl", "99", "-ts", shares]
        self._port = _free_port()
        self._spawn(SERVER, [*command, "--port", str(self._port)])
        self._await(self._is_healthy)

    def _start_servers(self, profile: LinkProfile) -> list[str]:
        """Addresses of the servers, each behind its link."""
        ports = [_free_port() for _ in range(self._num_servers)]
        for port in ports:
            words = ["-H", HOST, "-p", str(port), "-t", str(self._num_threads)]
            self._spawn("the RPC server", [self._rpc_server, *words])
        for port in ports:
            self._await(functools.partial(_listens, port))
        if not profile.needs_relay:
            return [f"{HOST}:{port}" for port in ports]
        shapes = profile.links(self._num_servers)[:-1]  # the last one leads back
        links = [link_to(shape, port) for shape, port in zip(shapes, ports, strict=True)]
        self._stack.callback(self._relay.stop)
        relayed = self._relay.start(links, self._seed)
        return [f"{HOST}:{relayed[shape.name]}" for shape in shapes]

    def _spawn(self, name: str, command: list[str]) -> None:
        log = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (it is closed)
        # Background priority, as the ring's stages have: the relay must keep time.
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.tether", "nice", "-n", "10", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT_DIR,
        )
        self._stack.callback(_end, process)
        self._running.append((name, process, log))

    def _await(self, is_ready: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            for name, process, log in self._running:
                if process.poll() is not None:
                    raise ConfigError(f"{name} ended: {_tail(log)}")
            if time.monotonic() > deadline_s:
                name, _, log = self._running[-1]
                waited = f"{name} is not ready within {START_TIMEOUT_S:.0f} s"
                raise ConfigError(f"{waited}: {_tail(log)}")
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TURN_TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(*GONE):
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        return False

    def _events(self, path: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Server-sent events of one request, as they arrive."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TURN_TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                connection.request("POST", path, json.dumps(asked))
                response = connection.getresponse()
                if response.status != http.client.OK:
                    raise ConfigError(f"{SERVER} refused: {response.read(400)!r}")
                for line in response:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))
            except GONE as error:
                raise LinkClosedError(
                    f"{SERVER}: {error}; {_tail(self._running[-1][2])}"
                ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close what it is tethered to, and reap it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-400:].decode(errors="replace").strip() or "it said nothing"


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """A port that was free just now: these programs cannot say which one they chose."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
