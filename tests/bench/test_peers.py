"""Peers: clocks that count alike, llama.cpp over links. No speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.peers import llama_rpc
from bench.peers.json_worker import JsonWorker
from bench.peers.llama_rpc import LlamaRpc, llama_programs
from bench.peers.transformers_speed import build_peer, peer_greedy, peer_turn
from bench.peers.turn import Clock, Turn
from bench.studies.peers import measure, order_of
from bench.wan.profile import load_profile
from engine.cluster.launch import CHECKOUT_DIR
from engine.errors import ConfigError
from engine.model.weights import prepare_model

PROMPT = list(range(100, 120)) * 2  # something to look up

RPC_SERVER = """
import socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
listener = socket.create_server(("127.0.0.1", port))
while True:
    connection, _ = listener.accept()
    connection.sendall(b"served by %d" % port)
    connection.close()
"""
SERVER = """
import json, socket, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
words = sys.argv[1:]
rpc = words[words.index("--rpc") + 1].split(",") if "--rpc" in words else []
served, waited = [], []
for address in rpc:
    host, port = address.split(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port))) as connection:
        served.append(connection.recv(99).decode())
    waited.append(time.monotonic() - began)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(__file__ + ".told", "w") as told:
            json.dump({"asked": asked, "words": words, "served": served, "waited": waited}, told)
        if asked["prompt"] == [0]:
            self.send_error(500, "no such prompt")
            return
        self.send_response(200)
        self.end_headers()
        for number in range(asked["n_predict"]):
            self.wfile.write(b'data: ' + json.dumps({"tokens": [number]}).encode() + b"\\n\\n")
            self.wfile.flush()
        if asked["prompt"] == [1]:
            self.wfile.write(b'data: {"error": {"message": "out of memory"}}\\n\\n')
            return
        counted = asked["n_predict"] + len(asked["prompt"]) % 2
        end = {"tokens": [], "stop": True, "tokens_predicted": counted}
        self.wfile.write(b'data: ' + json.dumps(end).encode() + b"\\n\\n")

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Programs that talk as llama.cpp's do, on the path."""
    for name, body in ((llama_rpc.SERVER, SERVER), (llama_rpc.RPC_SERVERS[1], RPC_SERVER)):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\n{body}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = llama_programs()
    assert found is not None and found[0] == str(tmp_path / llama_rpc.SERVER)
    return found


def told(programs: tuple[str, str]) -> dict[str, object]:
    answer: dict[str, object] = json.loads(Path(programs[0] + ".told").read_text())
    return answer


def test_servers_stand_behind_the_links_and_end_with_the_context(programs: tuple[str, str]) -> None:
    """Catches a server that is reached around its link, a prompt that changes, a left process."""
    with LlamaRpc(programs, prepare_model(), load_profile("eu-ring"), 3, 2) as peer:
        turn = peer.turn([5, 6, 7], 4)
        pids = [process.pid for _, process, _ in peer._running]
    assert turn.ids == (0, 1, 2, 3, llama_rpc.UNTOLD), "counted, and not told"
    assert (turn.prompt_len, turn.first_len) == (3, 1)
    seen = told(programs)
    assert seen["asked"]["prompt"] == [5, 6, 7] and seen["asked"]["temperature"] == 0
    assert not seen["asked"]["cache_prompt"], "a turn would find its prompt computed"
    assert len(set(seen["served"])) == 3, "each address leads to a server of its own"
    one_way_s = load_profile("eu-ring").links(3)[0].one_way_ns / 1e9
    assert min(seen["waited"]) >= one_way_s, "an answer crossed the link"
    words = seen["words"]
    assert words[words.index("-ts") + 1] == "1,1,1" and words[words.index("-t") + 1] == "2"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_alone_it_is_given_no_servers(programs: tuple[str, str]) -> None:
    with LlamaRpc(programs, prepare_model(), None, 0, 1) as peer:
        assert peer.turn([5, 6], 2).ids == (0, 1)
        for prompt, why in (([0], "refused"), ([1], "out of memory")):
            with pytest.raises(ConfigError, match=why):
                peer.turn(prompt, 2)
    words = told(programs)["words"]
    assert "--rpc" not in words and words[words.index("-ngl") + 1] == "0"


def test_a_program_that_ends_is_named_with_its_words(
    programs: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(programs[0]).write_text("#!/bin/sh\necho no such option; exit 3\n")
    with pytest.raises(ConfigError, match=r"llama-server ended: no such option"):
        LlamaRpc(programs, prepare_model(), None, 0, 1).__enter__()
    Path(programs[0]).write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(llama_rpc, "START_TIMEOUT_S", 0.3)
    with pytest.raises(ConfigError, match="llama-server is not ready within"):
        LlamaRpc(programs, prepare_model(), None, 0, 1).__enter__()


def test_without_its_programs_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert llama_programs() is None


def test_tokens_that_came_with_the_first_are_no_decode() -> None:
    """Catches a speed of more tokens than were decoded in its time."""
    clock = Clock()
    clock.note(3)
    at_once = clock.turn([1, 2, 3], 9)
    assert at_once.decode_ns == 0 and at_once.prefill_tok_per_s > 0
    with pytest.raises(ConfigError, match="no decode"):
        _ = at_once.decode_tok_per_s
    clock.note(0)
    time.sleep(0.01)
    clock.note(2)
    with pytest.raises(ConfigError, match="were noted"):
        clock.turn([1, 2, 3], 9)
    turn = clock.turn([1, 2, 3, 4, 5], 9)
    assert (turn.first_len, turn.prompt_len) == (3, 9)
    assert turn.decode_tok_per_s == pytest.approx(2e9 / turn.decode_ns)


def test_the_librarys_prompt_lookup_gives_its_greedy_ids_and_is_counted_whole() -> None:
    """Catches lookup that is not switched on, and drafts that the clock missed."""
    peer = build_peer(prepare_model())
    greedy = peer_turn(peer, PROMPT, 12)
    looked_up = peer_turn(peer, PROMPT, 12, 8)
    assert looked_up.ids == greedy.ids == tuple(peer_greedy(peer, PROMPT, 12))
    assert greedy.first_len == 1

    calls: list[int] = []
    forward = peer.forward
    peer.forward = lambda *words, **named: calls.append(1) or forward(*words, **named)
    peer_greedy(peer, PROMPT, 12, num_lookup=8)
    assert len(calls) < 12, "nothing was drafted"


def test_a_worker_that_ends_is_named() -> None:
    """Also one that ended long before it was asked: what it was asked then lies in a dead pipe."""
    for waits in (False, True):
        with JsonWorker("bench.peers.transformers_worker", ["none"], {}) as worker:
            if waits:
                worker._process.wait()
            with pytest.raises(ConfigError, match="transformers_worker ended"):
                worker.ask({})
        assert worker._process.poll() is not None


def test_what_is_tethered_ends_with_its_holder(tmp_path: Path) -> None:
    """Catches servers that outlive a study that was killed."""
    code = (
        "import subprocess, sys, time\n"
        "words = [sys.executable, '-m', 'bench.peers.tether', 'sh', '-c']\n"
        "held = subprocess.Popen([*words, 'echo $$; exec sleep 60'], stdin=subprocess.PIPE)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=CHECKOUT_DIR
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        holder.kill()
        deadline_s = time.monotonic() + 20.0
        while Path(f"/proc/{pid}").exists() and state_of(pid) != "Z":
            assert time.monotonic() < deadline_s, "it still runs"
            time.sleep(0.02)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def side(ids: Sequence[int], calls: list[str], name: str) -> object:
    def decode(prompt_ids: Sequence[int], num_new: int) -> Turn:
        calls.append(name)
        return Turn(tuple(ids), len(prompt_ids), 1, 5, 7)

    return decode


def test_sides_take_turns_in_an_order_that_turns() -> None:
    calls: list[str] = []
    found = {name: side([1, 2], calls, name) for name in ("ar", "transformers", "llama")}
    rows = measure(found, {"a": [1], "b": [2]}, 2, 9)
    del calls[: len(found)]  # warm-ups
    turns = [calls[at : at + len(found)] for at in range(0, len(calls), len(found))]
    assert turns == [order_of(list(found), idx) for idx in range(4)]
    assert turns[0] == turns[1][::-1] == ["ar", "transformers", "llama"]
    assert turns[2][0] == "transformers"
    assert len(rows) == 3 * 2 * 2
    assert {(row["side"], row["cell"], row["round"]) for row in rows} == {
        (name, cell, idx) for name in found for cell in "ab" for idx in (0, 1)
    }


def test_sides_that_compute_alike_must_agree() -> None:
    """Catches a speed of another text; llama.cpp has other weights and may differ."""
    calls: list[str] = []
    found = {"ar": side([1, 2], calls, "ar"), "llama-rpc": side([1, 3], calls, "llama-rpc")}
    assert measure(found, {"a": [1]}, 1, 9)
    found["transformers"] = side([1, 3], calls, "transformers")
    with pytest.raises(ConfigError, match="transformers disagrees with ar on a"):
        measure(found, {"a": [1]}, 1, 9)
