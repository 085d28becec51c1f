"""The real model on hosts of their own: ids as everywhere else, and a clean end of a killed run."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from bench.wan.netns_process import CHECKOUT_DIR, why_unavailable
from bench.wan.netns_runs import processes_of_runs
from engine.model.decoder import Decoder
from engine.model.tokenizer import Tokenizer
from engine.model.unsplit import generate_greedy
from engine.model.weights import prepare_model

PROMPT = "Repeat this sentence twice: The ferry leaves the harbour at nine and returns at noon."
MAX_NEW = 8
NUM_STAGES = 2
TIMEOUT_S = 60.0
# In a process of its own, which is then killed in the middle of everything.
OWNER = f"""
import json, time
from bench.wan.netns import NamespacedLinks
from bench.wan.profile import load_profile
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.generate import Generator
from engine.coordinator.job import make_levers

links = NamespacedLinks(load_profile("eu-ring"), seed=1)
with LocalRing(RingSpec(num_stages={NUM_STAGES}), links) as ring, ring.session() as session:
    levers = make_levers(max_new_tokens={MAX_NEW})
    result = Generator(session, ring.files).generate({PROMPT!r}, levers=levers, stop=()).result
    said = dict(ids=result.output_ids, pids=[*ring.pids, links.carrier_pid])
    said["rtt_ns"] = [probe.rtt_ns for probe in session.measure_links(3, 1000, 0)]
    print(json.dumps(said), flush=True)
    time.sleep(600)
"""


def test_a_ring_on_hosts_of_its_own_decodes_the_same_ids_and_ends_with_its_owner() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    files = prepare_model()
    prompt_ids = Tokenizer.load(files).encode_chat([{"role": "user", "content": PROMPT}])
    decoder = Decoder.load(files, 0, files.config.num_layers)
    expected = generate_greedy(decoder, prompt_ids, MAX_NEW, files.config.eos_ids)
    del decoder
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT_DIR
    ) as owner:
        try:
            assert owner.stdout is not None
            said = json.loads(owner.stdout.readline())
            of_runs = {pid for pid, _ in processes_of_runs()}
        finally:
            owner.kill()
    assert said["ids"] == expected
    assert len(said["rtt_ns"]) == NUM_STAGES + 1
    for rtts_ns in said["rtt_ns"]:
        assert min(rtts_ns) >= 2 * 105_000_000 // (NUM_STAGES + 1)
    assert set(said["pids"]) <= of_runs  # so that `bench wan clean` would find every one of them
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(psutil.pid_exists(pid) for pid in said["pids"]):
        assert time.monotonic() < deadline_s, "processes of a killed run still run"
        time.sleep(0.05)
