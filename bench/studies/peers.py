"""This engine beside its peers, on one machine, behind the same links.

The ring of stages behind a profile's links decodes as `ar` (a plain pipeline: one token a
traversal), `chain-k8`, its null and `planner`; llama.cpp decodes over as many RPC servers, each
behind one link of the same profile; the transformers library, which has no pipeline over links,
decodes alone, greedily and with its own prompt lookup, and llama.cpp alone too. Guarantees: every
side gets the same prompt ids, limit and threads, and takes its turn within every round, in an order
that turns and reverses; ring and library compute in float32 with the same weights and must give the
same ids, or there is no result; llama.cpp computes with the file's 4-bit weights and its ids are
counted, not compared. Must never know receipts of jobs.

    python -m bench.studies.peers [--profile wan-275] [--rounds 3] [--new-tokens 48] [--record DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cells import load_cell
from bench.peers.json_worker import JsonWorker
from bench.peers.llama_rpc import LlamaRpc, llama_programs
from bench.peers.turn import Turn
from bench.plan import arm_levers
from bench.study_record import make_study, write_study
from bench.wan.emulator import RelayedLinks
from bench.wan.profile import LinkProfile, load_profile
from engine import defaults
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.job import JobRequest
from engine.coordinator.session import Session
from engine.errors import ConfigError, LonghaulError
from engine.model.threads import available_cores, openmp_env
from engine.model.tokenizer import Tokenizer
from engine.model.weights import ModelFiles, prepare_model

STUDY = "peers"
CELLS = ("verbatim", "json-extraction", "chat")
RING_ARMS = ("ar", "chain-k8", "null", "planner")
NUM_LOOKUP = 8  # drafts of the library's prompt lookup: as many as chain-k8 sends
NICE = 10  # of stages, as in experiments
SEED = 1
Decode = Callable[[Sequence[int], int], Turn]
Row = dict[str, str | int]


def ring_side(session: Session, files: ModelFiles, arm: str) -> Decode:
    """One arm on a warm ring."""

    def decode(prompt_ids: Sequence[int], num_new: int) -> Turn:
        request = JobRequest(
            prompt_ids=tuple(prompt_ids),
            levers=arm_levers(arm, num_new),
            eos_ids=frozenset(files.config.eos_ids),
            nonce=secrets.token_hex(16),
        )
        result = session.run(request)
        if result.failure is not None:
            raise result.failure
        first_ns, last_ns = result.first_commit_ns, result.last_commit_ns
        assert first_ns is not None and last_ns is not None, "a job that did not fail has a token"
        ids = tuple(result.output_ids)
        return Turn(ids, len(prompt_ids), 1, first_ns, last_ns - first_ns)

    return decode


def library_side(worker: JsonWorker, num_lookup: int) -> Decode:
    """The transformers library, in its process."""

    def decode(prompt_ids: Sequence[int], num_new: int) -> Turn:
        asked = {"prompt_ids": list(prompt_ids), "num_new": num_new, "lookup": num_lookup}
        answer = worker.ask(asked)
        return Turn(**{**answer, "ids": tuple(answer["ids"])})

    return decode


def sides(
    stack: contextlib.ExitStack, files: ModelFiles, profile: LinkProfile, num_threads: int
) -> dict[str, Decode]:
    """Every side that can take part here, warm."""
    found: dict[str, Decode] = {}
    spec = RingSpec(threads_per_stage=num_threads, nice=NICE)
    ring = stack.enter_context(LocalRing(spec, RelayedLinks(profile, SEED)))
    session = stack.enter_context(ring.session())
    for arm in RING_ARMS:
        found[arm] = ring_side(session, files, arm)
    worker = JsonWorker(
        "bench.peers.transformers_worker", [str(num_threads)], openmp_env(num_threads)
    )
    stack.enter_context(worker)
    found["transformers"] = library_side(worker, 0)
    found["transformers-lookup"] = library_side(worker, NUM_LOOKUP)
    programs = llama_programs()
    if programs is not None:
        for name, links, num in (("llama-rpc", profile, spec.num_stages), ("llama", None, 0)):
            peer = LlamaRpc(programs, files, links, num, num_threads, SEED)
            found[name] = stack.enter_context(peer).turn
    return found


def measure(
    found: Mapping[str, Decode],
    prompts: Mapping[str, Sequence[int]],
    num_rounds: int,
    num_new: int,
) -> list[Row]:
    """Let the sides take turns; a first round on the first prompt warms them up.

    Raises:
        ConfigError: sides that compute alike disagree on a token.
    """
    names, rows = list(found), []
    for name in names:
        found[name](next(iter(prompts.values())), min(num_new, 8))
    turns = [(round_idx, cell) for round_idx in range(num_rounds) for cell in prompts]
    for idx, (round_idx, cell) in enumerate(track(turns, "turns", console=Console(stderr=True))):
        made = {name: found[name](prompts[cell], num_new) for name in order_of(names, idx)}
        for name in names:
            if not name.startswith("llama") and made[name].ids != made["ar"].ids:
                raise ConfigError(f"{name} disagrees with ar on {cell}; no speed is reported")
            if not made[name].decode_ns:
                raise ConfigError(f"{name}: all tokens of {cell} came at once; ask for more")
            rows.append({"side": name, "cell": cell, "round": round_idx, **_columns(made[name])})
    return rows


def order_of(names: Sequence[str], idx: int) -> list[str]:
    """Everybody begins in turn, and follows the one before as often as it is followed by it."""
    first = (idx // 2) % len(names)
    rotated = [*names[first:], *names[:first]]
    return rotated[::-1] if idx % 2 else rotated


def _columns(turn: Turn) -> Row:
    return {
        "prompt_len": turn.prompt_len,
        "output_len": len(turn.ids),
        "first_len": turn.first_len,
        "prefill_ns": turn.prefill_ns,
        "decode_ns": turn.decode_ns,
    }


def show(rows: Sequence[Row], console: Console) -> None:
    """Median tok/s by side and cell."""
    cells = list(dict.fromkeys(str(row["cell"]) for row in rows))
    table = Table(title="decode tok/s, median over rounds")
    for column in ("side", *cells):
        table.add_column(column, justify="left" if column == "side" else "right")
    for side in dict.fromkeys(str(row["side"]) for row in rows):
        medians = [
            statistics.median(
                (int(row["output_len"]) - int(row["first_len"])) / int(row["decode_ns"]) * 1e9
                for row in rows
                if (row["side"], row["cell"]) == (side, cell)
            )
            for cell in cells
        ]
        table.add_row(side, *(f"{rate:.1f}" for rate in medians))
    console.print(table)


def run(asked: argparse.Namespace, console: Console) -> None:
    """Bring every side up, measure, show, record.

    Raises:
        ConfigError: a number that is not allowed; sides that disagree; a side that ended.
    """
    if asked.rounds < 1 or asked.new_tokens < 2:
        raise ConfigError("--rounds: 1 or more; --new-tokens: 2 or more")
    profile, files = load_profile(asked.profile), prepare_model()
    tokenizer = Tokenizer.load(files)
    prompts = {cell: load_cell(cell).prompt_ids(tokenizer) for cell in asked.cells}
    with contextlib.ExitStack() as stack:
        found = sides(stack, files, profile, asked.threads)
        if "llama" not in found:
            console.print("llama.cpp takes no part: llama-server or its RPC server is not found")
        rows = measure(found, prompts, asked.rounds, asked.new_tokens)
    show(rows, console)
    if asked.record:
        settings: dict[str, str | int] = {
            "profile": profile.name,
            "profile_digest": profile.digest,
            "stages": defaults.NUM_STAGES,
            "threads": asked.threads,
            "new_tokens": asked.new_tokens,
            "lookup": NUM_LOOKUP,
            "rounds": asked.rounds,
        }
        print(write_study(make_study(STUDY, settings, rows), asked.record))


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.studies.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", default=defaults.PROFILE)
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    try:
        run(parser.parse_args(), Console())
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
