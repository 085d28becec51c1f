"""`python -m bench run | plan | check | show | pilot | pool | compare | replay | prior | wan`.

Guarantees: whatever goes wrong, finished receipts stay and no process stays behind.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from bench import compare, host, pilot, prior, replay_cli
from bench.experiment import Experiment
from bench.experiments import EXPERIMENTS, choose_cells, get_experiment, get_scale
from bench.folders import choose_store
from bench.plan import (
    Selection,
    attests,
    check_selection,
    drafter_digest,
    host_kernel,
    make_plan,
)
from bench.pool import pool, pooled_table
from bench.progress import RunView
from bench.record import Surroundings
from bench.rings import RingRecipe, RingSet, ring_key
from bench.run import ExperimentRun
from bench.schema import LinkTest, ModelFacts, Plan, RingConfig
from bench.show import explain
from bench.store import now_rfc3339
from bench.study_record import COMMITTED_KEYS
from bench.traces import load_recorded
from bench.wan import netns_cli
from bench.wan.profile import LinkProfile, load_profile
from bench.wan.self_test import measure_delay
from engine import defaults
from engine.cluster.launch import RingSpec, stage_key_ids
from engine.cluster.plan import even_plan
from engine.errors import ConfigError, LonghaulError
from engine.model.tokenizer import Tokenizer
from engine.model.weights import ModelFiles, prepare_model
from engine.transport.seal import suite_named
from engine.trust.identity import (
    Identity,
    PublicIdentity,
    load_public_keys,
    longhaul_home,
)

NUM_TRIED = 100  # messages through a relay, 10 ms apart, before a run
BENCH_NICE = 10  # stages yield to the relay, so that links keep time


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("run", "run an experiment, or go on with it"),
        ("plan", "print the plan that run would sign, as JSON"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--experiment", default="decode", help=f"one of: {', '.join(EXPERIMENTS)}"
        )
        command.add_argument("--scale", default="quick", help="quick or full")
        command.add_argument("--arms", help="comma-separated; default: the experiment's")
        command.add_argument("--cells", help="comma-separated; default: the scale's")
        command.add_argument("--reps", type=int, help="default: the scale's")
        command.add_argument("--max-new-tokens", type=int, help="cap on every cell's budget")
        command.add_argument("--profile", help="link profile, name or file")
        command.add_argument(
            "--links",
            choices=("relay", "netns"),
            help="how links are emulated: bytes through a relay, or packets between namespaces; "
            "default: the experiment's",
        )
        command.add_argument("--stages", type=int)
        command.add_argument("--suite", default=defaults.SUITE, help="seals the frames, or plain")
        command.add_argument("--threads", type=int, default=0, help="per stage; 0: all cores")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--out", type=Path, help="folder; default: build/receipts/…")
    checking = commands.add_parser(
        "check", help="find everything wrong with an experiment, or a folder of study records"
    )
    checking.add_argument("folder", type=Path)
    replay_cli.add_arguments(
        commands.add_parser("replay", help="try any policy on recorded texts, on a modelled ring")
    )
    prior_cli = commands.add_parser("prior", help="fit the planner's prior on recorded texts")
    prior_cli.add_argument("folders", type=Path, nargs="+")
    showing = commands.add_parser("show", help="explain receipts and study records")
    showing.add_argument("receipts", type=Path, nargs="+")
    compare.add_arguments(
        commands.add_parser("compare", help="two revisions, on fresh rings, in turns")
    )
    pooling = commands.add_parser("pool", help="put runs of one experiment together, if alike")
    pooling.add_argument("folders", type=Path, nargs="+")
    piloting = commands.add_parser("pilot", help="propose repetitions, from a pilot run")
    piloting.add_argument("folder", type=Path)
    piloting.add_argument("--width", type=float, default=0.05, help="of a ratio's interval, ±")
    netns_cli.add_arguments(commands.add_parser("wan", help="links in network namespaces"))
    return parser


def _split(option: str, text: str | None) -> tuple[str, ...] | None:
    """Names of a comma-separated option; None if it was not given."""
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ConfigError(f"{option} names nothing; leave it out, or name at least one")
    return names


def _check_numbers(asked: argparse.Namespace) -> None:
    for option, value, low in (
        ("--seed", asked.seed, 0),
        ("--threads", asked.threads, 0),
        ("--max-new-tokens", asked.max_new_tokens, 1),
    ):
        if value is not None and not low <= value < 2**53:
            raise ConfigError(f"{option} is {value}; allowed: {low} to 2^53 - 1")


def _arms(asked: argparse.Namespace, experiment: Experiment) -> tuple[str, ...]:
    return _split("--arms", asked.arms) or experiment.arms


def _select(asked: argparse.Namespace) -> Selection:
    _check_numbers(asked)
    experiment = get_experiment(asked.experiment)
    scale = get_scale(experiment, asked.scale)
    selection = Selection(
        experiment=experiment,
        arms=_arms(asked, experiment),
        cells=tuple(choose_cells(scale, _split("--cells", asked.cells))),
        max_new_tokens=asked.max_new_tokens or scale.max_new_tokens,
        reps=scale.reps if asked.reps is None else asked.reps,
        seed=asked.seed,
    )
    check_selection(selection)
    return selection


def _ring_config(asked: argparse.Namespace, profile: LinkProfile, files: ModelFiles) -> RingConfig:
    experiment = get_experiment(asked.experiment)
    num_stages = asked.stages or experiment.num_stages
    profile.links(num_stages)  # refuses a profile that lists links for another number of stages
    return RingConfig(
        num_stages=num_stages,
        layer_plan=even_plan(files.config.num_layers, num_stages),
        threads_per_stage=RingSpec(num_stages, asked.threads).num_threads(),
        profile=profile.name,
        profile_digest=profile.digest,
        suite=suite_named(asked.suite).name,
        kernel=host_kernel("f32"),
        max_kv_size=0,
        links=asked.links or experiment.links,
        signers=stage_key_ids(num_stages) if attests(_arms(asked, experiment)) else [],
    )


def _make_plan(asked: argparse.Namespace) -> tuple[Plan, LinkProfile, ModelFiles]:
    selection = _select(asked)
    profile = load_profile(asked.profile or selection.experiment.profile)
    files = prepare_model()
    tokenizer = Tokenizer.load(files)
    model = ModelFacts(
        name="SmolLM2-135M-Instruct",
        model_digest=files.model_digest,
        tokenizer_digest=tokenizer.tokenizer_digest,
        drafter_digest=drafter_digest(selection.arms),
        num_layers=files.config.num_layers,
    )
    ring = _ring_config(asked, profile, files)
    plan = make_plan(selection, ring, host.build_facts(), model, now_rfc3339())
    for arm in plan.arms:
        profile.links(plan.ring_of(arm).num_stages)
    return plan, profile, files


def run(asked: argparse.Namespace, console: Console) -> int:
    """Run an experiment, or what is left of it."""
    plan, profile, _ = _make_plan(asked)
    identity = Identity.load_or_create(longhaul_home() / "keys" / "bench.key")
    store = choose_store(plan, identity, asked.out, f"{plan.experiment}-{asked.scale}")
    plan, plan_digest = store.open_plan(plan)
    around = Surroundings(
        experiment=plan.experiment,
        plan_digest=plan_digest,
        seed=plan.seed,
        build=plan.build,
        model=plan.model,
        host=host.flat_host_facts(),
        link_test=_try_links(plan.ring, profile),
    )
    rings = RingSet(RingRecipe(profile, asked.seed, BENCH_NICE), store.log)
    num_done = len(store.load_receipts())
    console.print(
        f"{len(plan.jobs) - num_done} of {len(plan.jobs)} jobs to run on {profile.name}, "
        f"{_shown_rings(plan)}; receipts go to {_shown(store.folder)}",
        highlight=False,
        soft_wrap=True,
    )
    with RunView(plan, num_done, console) as view:
        ExperimentRun(plan, store, rings, around, view.callbacks()).execute()
    num_failed = sum(receipt.status == "failed" for receipt, _ in store.load_receipts().values())
    console.print(f"done: {len(plan.jobs)} receipts, {num_failed} failed", highlight=False)
    print(_shown(store.folder))
    return 1 if num_failed else 0


def _try_links(ring: RingConfig, profile: LinkProfile) -> LinkTest | None:
    """How late a relay of this profile delivers while as many processes compute as stages would."""
    if ring.links != "relay" or not profile.needs_relay:
        return None
    shape = profile.links(ring.num_stages)[0]
    found = measure_delay(shape, num_messages=NUM_TRIED, num_busy=ring.num_stages)
    return LinkTest(
        link=shape.name,
        num_messages=found.num_messages,
        num_busy=found.num_busy,
        median_excess_ns=max(0, found.median_excess_ns),
        p99_excess_ns=max(0, found.p99_excess_ns),
    )


def _shown_rings(plan: Plan) -> str:
    """Which rings are kept up side by side."""
    rings = dict.fromkeys(ring_key(plan.ring_of(job.arm)) for job in plan.jobs)
    return ", ".join(
        f"{num_stages} stages ({suite}, {kernel})" for num_stages, suite, kernel in rings
    )


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def _keys() -> dict[str, PublicIdentity]:
    return load_public_keys(COMMITTED_KEYS, longhaul_home() / "keys")


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, turn errors into messages."""
    asked = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        if asked.command == "run":
            return run(asked, console)
        if asked.command == "plan":
            print(msgspec.json.format(msgspec.json.encode(_make_plan(asked)[0])).decode())
            return 0
        if asked.command == "replay":
            return replay_cli.run_replay(asked, _keys(), console)
        if asked.command == "prior":
            print(prior.fit_folders(asked.folders, _keys()), end="")
            return 0
        if asked.command == "check":
            from bench import check

            return check.main([str(asked.folder)])
        if asked.command == "compare":
            return compare.run_compare(asked, _keys(), console)
        if asked.command == "pool":
            Console().print(pooled_table(pool(asked.folders, _keys())))
            return 0
        if asked.command == "pilot":
            proposals = pilot.propose(load_recorded(asked.folder, _keys()), asked.width)
            Console().print(pilot.proposal_table(proposals, asked.width))
            return 0
        if asked.command == "wan":
            return netns_cli.run(asked)
        for path in asked.receipts:
            print(explain(path, _keys()))
        return 0
    except LonghaulError as error:
        console.print(f"error: {error}", markup=False, highlight=False)
        return 2
    except OSError as error:
        console.print(f"error: {error}", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; run the same command again to go on", highlight=False)
        return 130


if __name__ == "__main__":
    sys.exit(main())
