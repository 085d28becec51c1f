"""The real model on real processes: identical ids on every ring, clean ends, useful errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.wan.emulator import RelayedLinks
from bench.wan.profile import load_profile
from engine.__main__ import main
from engine.cluster.launch import CHECKOUT_DIR, LocalRing, RingSpec
from engine.coordinator.generate import Generator
from engine.coordinator.job import make_levers
from engine.errors import ConfigError, JobError
from engine.model.decoder import Decoder
from engine.model.unsplit import generate_greedy
from engine.model.weights import prepare_model

PROMPT = "Repeat this sentence twice: The ferry leaves the harbour at nine and returns at noon."
MAX_NEW = 24


@pytest.fixture(scope="module")
def unsplit_ids() -> list[int]:
    """What one process without a ring decodes."""
    files = prepare_model()
    from engine.model.tokenizer import Tokenizer

    prompt_ids = Tokenizer.load(files).encode_chat([{"role": "user", "content": PROMPT}])
    decoder = Decoder.load(files, 0, files.config.num_layers)
    return generate_greedy(decoder, prompt_ids, MAX_NEW, files.config.eos_ids)


@pytest.mark.parametrize("num_stages", [2, 6])  # 4, of unlike sizes, below; 1, 3 in real configs
def test_any_number_of_stages_gives_identical_ids(num_stages: int, unsplit_ids: list[int]) -> None:
    """Catches any arithmetic that depends on the split, the chunking or the drafts."""
    with LocalRing(RingSpec(num_stages=num_stages)) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        for levers in (
            make_levers(drafter="none", draft_len=0, depth=1, max_new_tokens=MAX_NEW),
            make_levers(max_new_tokens=MAX_NEW, min_match_len=1),
            make_levers(policy="two-state", max_new_tokens=MAX_NEW, prefill_chunk=9),
            make_levers(draft_len=17, depth=2, max_new_tokens=MAX_NEW, prefill_chunk=2),
        ):
            assert generator.generate(PROMPT, levers=levers).result.output_ids == unsplit_ids
    assert ring.pids == []


def test_a_relayed_ring_gives_identical_ids_and_leaves_no_process(unsplit_ids: list[int]) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    emulator = RelayedLinks(load_profile("metro"), seed=1)
    with LocalRing(RingSpec(num_stages=2), emulator) as ring, ring.session() as session:
        generation = Generator(session, ring.files).generate(
            PROMPT, levers=make_levers(max_new_tokens=MAX_NEW), stop=()
        )
        assert generation.result.output_ids == unsplit_ids
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


def test_stop_strings_and_context_are_per_job() -> None:
    with LocalRing(RingSpec(num_stages=1)) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        levers = make_levers(max_new_tokens=MAX_NEW)
        whole = generator.generate(PROMPT, levers=levers)
        mark = whole.text.split()[3]
        stopped = generator.generate(PROMPT, levers=levers, stop=[mark])
        assert stopped.result.finish_reason == "stop"
        assert whole.text.startswith(stopped.text) and stopped.text.endswith(mark)
        with pytest.raises(JobError, match="context"):
            generator.generate("word " * 9000)
        assert generator.generate(PROMPT, levers=levers).text == whole.text


def test_idle_stages_leave_the_cores_alone() -> None:
    """Catches compute threads that spin while they wait, which would slow every other stage.

    CPU time, not wall time: a loaded machine makes it smaller. One spinning thread would take
    most of the 2 s; sleeping ones take next to none.
    """
    with LocalRing(RingSpec(num_stages=2)) as ring, ring.session() as session:
        Generator(session, ring.files).generate(PROMPT, levers=make_levers(max_new_tokens=8))
        stages = [psutil.Process(pid) for pid in ring.pids]
        time.sleep(0.5)  # spins are a tenth of a millisecond; this is far behind them
        before_s = sum(sum(stage.cpu_times()[:2]) for stage in stages)
        time.sleep(2.0)
        used_s = sum(sum(stage.cpu_times()[:2]) for stage in stages) - before_s
    assert used_s < 0.1, f"idle stages used {used_s:.2f} s of CPU in 2 s"


def test_more_stages_than_layers_is_refused_with_the_range() -> None:
    with pytest.raises(ConfigError, match=r"31 stages; allowed: 1\.\.30"):
        LocalRing(RingSpec(num_stages=31))


def test_a_ring_of_uneven_stages_gives_identical_ids(unsplit_ids: list[int]) -> None:
    """Catches arithmetic that depends on where the layers are cut; a stage may hold one."""
    plan = [(0, 1), (1, 17), (17, 29), (29, 30)]
    with LocalRing(RingSpec(num_stages=4, layer_plan=plan)) as ring, ring.session() as session:
        levers = make_levers(max_new_tokens=MAX_NEW, min_match_len=1)
        generation = Generator(session, ring.files).generate(PROMPT, levers=levers)
    assert generation.result.output_ids == unsplit_ids
    assert [(ack.layer_start, ack.layer_end) for ack in generation.result.acks] == plan


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ([(0, 10), (11, 30)], "skipped"),
        ([(0, 10), (9, 30)], "overlap"),
        ([(0, 10), (10, 29)], "head"),
        ([(0, 10), (10, 20), (20, 30)], "2 were asked for"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_any_process_starts(
    plan: list[tuple[int, int]], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        LocalRing(RingSpec(num_stages=2, layer_plan=plan))


def run_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", "generate", *arguments],
        cwd=CHECKOUT_DIR,
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_the_command_prints_one_json_object(unsplit_ids: list[int], tmp_path: Path) -> None:
    """Catches a stray line on standard output and missing fields."""
    prompt_file = tmp_path / "prompt.txt"
    prompt_file.write_text(PROMPT)
    ended = run_engine(
        "--stages", "2", "--profile", "loopback", "--max-new-tokens", str(MAX_NEW), "--json",
        "--prompt-file", str(prompt_file),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["ids"] == unsplit_ids
    assert {"prompt_ids", "ids", "timing", "frames"} <= set(printed)
    assert printed["frames"][0]["outcome"] == "prefill"


def test_a_challenged_ring_of_the_real_model_passes() -> None:
    """Catches a replica that is not what the stages run, and keys that are not pinned."""
    ended = run_engine(
        "--stages", "3", "--profile", "loopback", "--max-new-tokens", str(MAX_NEW),
        "--attest", "--challenge", "3", "--prompt", PROMPT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = re.findall(
        r"\[stage (\d): 3 frames recomputed, (?:off by at most (\S+) of |ids hold)", ended.stderr
    )
    assert [idx for idx, _ in said] == ["0", "1", "2"]
    assert all(float(error) < 1e-7 for _, error in said[:-1])  # of float32 sketches: the same bits


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--profile", "wan"], "wan-275"),
        (["--policy", "three-state"], "two-state"),
        (["--policy", "two-state", "--param", "highest=3"], "high, up"),
        (["--drafter", "eagle9"], "ngram"),
        (["--depth", "99"], "1..8"),
        (["--prompt-file", "no-such-file"], "no-such-file"),
        (["--model", "no-such.gguf"], "no-such.gguf"),
        (["--policy", "two-state", "--param", "high=--5"], "whole number"),
        (["--policy", "two-state", "--param", "high"], "whole number"),
        (["--threads", "-1"], "allowed: 0"),
        (["--stages", "0"], "1..30"),
        (["--max-new-tokens", "0"], "allowed: 1"),
        (["--stop", ""], "--stop is empty"),
        (["--challenge", "3"], "--attest"),
        (["--attest", "--challenge", "-1"], "allowed: 1"),
        (["--attest", "--challenge", "3", "--numeric-config", "int4"], "valid: f32, fp8"),
    ],
)
def test_bad_input_names_what_is_allowed(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = [] if "--prompt-file" in arguments else ["--prompt", "x"]
    assert main(["generate", *prompt, *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and named in printed


def long_generation() -> subprocess.Popen[bytes]:
    """A command in the middle of decoding."""
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "generate", "--stages", "2", "--profile", "eu-ring",
         "--max-new-tokens", "400", "--prompt", "Tell a long story."],
        cwd=CHECKOUT_DIR, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        preexec_fn=take_sigint,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.read(1)
    except BaseException:
        process.kill()
        raise
    return process


def take_sigint() -> None:
    """A shell's background job ignores SIGINT; the command under test must not inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_no_process() -> None:
    """Catches stages or relays that outlive their launcher, which a terminal user would not see."""
    process = long_generation()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3  # two stages and a relay
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert process.stdout is not None
    process.stdout.close()


def test_a_killed_launcher_takes_its_processes_along() -> None:
    """SIGKILL gives the launcher no chance to clean up; closed pipes must do."""
    process = long_generation()
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(child.is_running() for child in children):
        time.sleep(0.1)
    assert not any(child.is_running() for child in children)
    assert process.stdout is not None
    process.stdout.close()
