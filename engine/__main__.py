"""`python -m engine generate | verify | prepare | secret`: text from a local ring, what it attests.

The one file of the engine that looks into `bench`: an entry point joins rooms, and the link
profiles and the schema of receipts live there (docs/decisions/0003).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from dataclasses import asdict
from pathlib import Path

from engine import defaults
from engine.cluster.launch import CHECKOUT_DIR, LocalRing, RingSpec
from engine.cluster.node_keys import create_cluster_secret
from engine.cluster.replicas import load_replicas
from engine.coordinator.challenged import findings, terms_of
from engine.coordinator.generate import Generation, Generator
from engine.coordinator.job import make_levers
from engine.errors import ConfigError, LonghaulError
from engine.model.packaged import PACKAGED_MODELS
from engine.model.weights import prepare_model
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.message import Levers
from engine.transport.seal import SUITES
from engine.trust import shard_receipt
from engine.trust.challenge import commitment
from engine.trust.identity import load_public_keys, longhaul_home
from engine.trust.sketch import SEED_LEN

OWN_FORMAT = "longhaul"
COMMITTED_KEYS = CHECKOUT_DIR / "receipts" / "keys"
_MODEL_HELP = "a GGUF file, a Hugging Face folder or a packaged model's name: " + ", ".join(
    PACKAGED_MODELS
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="dequantise the model into the cache, once")
    prepare.add_argument("--model", help=_MODEL_HELP)
    secret = commands.add_parser("secret", help="write a new cluster secret into a file")
    secret.add_argument("path", type=Path, help="a file that does not exist yet")
    verifying = commands.add_parser("verify", help="check what the stages of a job signed")
    verifying.add_argument("receipts", type=Path, nargs="+")
    formats = (OWN_FORMAT, shard_receipt.SCHEMA)
    verifying.add_argument("--format", choices=formats, default=OWN_FORMAT)
    verifying.add_argument("--num-layers", type=int, help=f"of the model, for {formats[1]}")
    verifying.add_argument(
        "--keys", type=Path, action="append", help="folder of trusted *.pub files; default: yours"
    )
    _add_generate(commands.add_parser("generate", help="decode one prompt on a local ring"))
    return parser


def _add_generate(generate: argparse.ArgumentParser) -> None:
    prompt = generate.add_mutually_exclusive_group(required=True)
    prompt.add_argument("text", nargs="?", help="the prompt")
    prompt.add_argument("--prompt", help="the prompt")
    prompt.add_argument("--prompt-file", type=Path, help="read the prompt from a file")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    generate.add_argument("--stages", type=int, default=defaults.NUM_STAGES)
    generate.add_argument("--threads", type=int, default=0, help="per stage; 0: all cores")
    generate.add_argument("--profile", default=defaults.PROFILE, help="link profile, name or file")
    generate.add_argument(
        "--links",
        choices=("relay", "netns"),
        default="relay",
        help="how links are emulated: bytes through a relay, or packets between namespaces",
    )
    generate.add_argument("--model", help=_MODEL_HELP)
    generate.add_argument("--max-kv-size", type=int, default=0, help="keys a token sees; 0: all")
    generate.add_argument("--max-new-tokens", type=int, default=defaults.MAX_NEW_TOKENS)
    generate.add_argument("--policy", default=defaults.POLICY)
    generate.add_argument(
        "--param", action="append", default=[], metavar="NAME=N", help="policy parameter"
    )
    generate.add_argument("--draft-len", type=int, help="default: the policy's")
    generate.add_argument("--depth", type=int, help="default: the policy's")
    generate.add_argument("--drafter", default=defaults.DRAFTER)
    generate.add_argument("--min-match-len", type=int, default=defaults.MIN_MATCH_LEN)
    generate.add_argument("--prefill-chunk", type=int, default=defaults.PREFILL_CHUNK)
    generate.add_argument(
        "--numeric-config", default="f32", help=f"one of {', '.join(NUMERIC_CONFIGS)}"
    )
    generate.add_argument("--temperature", default="0", help="0: greedy")
    generate.add_argument("--top-k", type=int, default=0, help="0: no limit")
    generate.add_argument("--top-p", default="1")
    generate.add_argument("--sampling-seed", default="0" * 16, help="16 hex digits")
    generate.add_argument("--suite", default=defaults.SUITE, help=f"one of {', '.join(SUITES)}")
    generate.add_argument(
        "--cluster-secret", type=Path, metavar="FILE", help="default: a fresh one for this ring"
    )
    generate.add_argument("--attest", action="store_true", help="stages sign what they did")
    generate.add_argument(
        "--challenge", type=int, default=0, metavar="N",
        help="recompute N drawn frames of every stage; takes --attest",
    )  # fmt: skip
    generate.add_argument("--stop", action="append", default=[], help="output ends with this")
    generate.add_argument("--seed", type=int, default=0, help="of the links' jitter")
    generate.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _levers(asked: argparse.Namespace) -> Levers:
    params: dict[str, int] = {}
    for entry in asked.param:
        name, _, value = entry.partition("=")
        try:
            params[name] = int(value)
        except ValueError:
            raise ConfigError(f"--param {entry!r}: write NAME=N with a whole number N") from None
    return make_levers(
        policy=asked.policy,
        policy_params=params,
        draft_len=asked.draft_len,
        depth=asked.depth,
        drafter=asked.drafter,
        min_match_len=asked.min_match_len,
        prefill_chunk=asked.prefill_chunk,
        max_new_tokens=asked.max_new_tokens,
        numeric_config=asked.numeric_config,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        sampling_seed=asked.sampling_seed,
        attestation=asked.attest,
    )


def _prompt(asked: argparse.Namespace) -> str:
    if asked.prompt_file is None:
        return str(asked.prompt if asked.text is None else asked.text)
    try:
        return str(asked.prompt_file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt-file {asked.prompt_file}: {error}") from error


def _as_json(generation: Generation) -> str:
    result = generation.result
    return json.dumps(
        {
            "prompt_ids": generation.prompt_ids,
            "ids": result.output_ids,
            "text": generation.text,
            "finish_reason": result.finish_reason,
            "timing": {
                "prefill_sent_ns": result.prefill_sent_ns,
                "first_commit_ns": result.first_commit_ns,
                "last_commit_ns": result.last_commit_ns,
                "end_ns": result.end_ns,
                "draft_ns": result.draft_ns,
                "decode_tok_per_s": result.decode_tok_per_s,
            },
            "frames": [asdict(frame) for frame in result.frames],
        }
    )


def _print_result(asked: argparse.Namespace, generation: Generation) -> None:
    if asked.json:
        print(_as_json(generation))
        return
    result = generation.result
    speed = result.decode_tok_per_s
    print(
        f"\n[{len(result.output_ids)} tokens, {result.finish_reason}, "
        f"{'–' if speed is None else f'{speed:.1f}'} tok/s]",
        file=sys.stderr,
    )


def _print_text(text: str) -> None:
    print(text, end="", flush=True)


def _discard(text: str) -> None:
    return None


def generate(asked: argparse.Namespace) -> int:
    """Bring up a ring, decode, take it down."""
    from bench.wan.emulator import RelayedLinks
    from bench.wan.netns import NamespacedLinks
    from bench.wan.profile import load_profile

    levers = _levers(asked)
    prompt = _prompt(asked)
    if "" in asked.stop:
        raise ConfigError("--stop is empty; every output would end at once")
    kind = NamespacedLinks if asked.links == "netns" else RelayedLinks
    emulator = kind(load_profile(asked.profile), asked.seed)
    spec = RingSpec(
        asked.stages,
        asked.threads,
        asked.model,
        suite=asked.suite,
        cluster_secret_path=asked.cluster_secret,
        max_kv_size=asked.max_kv_size,
        weights=NUMERIC_CONFIGS[levers.numeric_config].weights,
        signs=asked.attest,
    )
    terms = terms_of(levers, asked.challenge) if asked.challenge else None
    if terms and not asked.attest:
        raise ConfigError("--challenge recomputes what stages signed; give --attest too")
    seed = secrets.token_bytes(SEED_LEN)
    with LocalRing(spec, emulator) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        generation = generator.generate(
            prompt,
            raw=asked.raw,
            levers=levers,
            stop=asked.stop,
            nonce=commitment(seed) if terms else None,
            on_text=_discard if asked.json else _print_text,
        )
        _print_result(asked, generation)
        if terms:
            compared = session.challenge(generation.result, load_replicas(ring), seed, terms)
            for stage_idx, found in enumerate(findings(compared, terms)):
                print(f"[stage {stage_idx}: {found}]", file=sys.stderr)
    return 0


def prepare(asked: argparse.Namespace) -> int:
    """Fill the model cache, or find it filled."""
    files = prepare_model(asked.model)
    print(f"model {files.model_digest[:16]} is ready: {files.config.num_layers} layers")
    return 0


def secret(asked: argparse.Namespace) -> int:
    """Make a cluster secret."""
    create_cluster_secret(asked.path)
    print(f"wrote {asked.path}; give every host of the cluster the same file, mode 0600")
    return 0


def verify(asked: argparse.Namespace) -> int:
    """Check attestations; the first fault ends it."""
    folders = asked.keys or [COMMITTED_KEYS, longhaul_home() / "keys"]
    keys = load_public_keys(*folders)
    if asked.format == OWN_FORMAT:
        from bench.attested import verify_files

        for line in verify_files(asked.receipts, keys):
            print(line)
        return 0
    if asked.num_layers is None:
        raise ConfigError(f"{asked.format} says no number of layers; give --num-layers")
    signers = list(keys.values()) if asked.keys else []
    for path in asked.receipts:
        found = shard_receipt.verify_file(path, asked.num_layers, signers)
        whose = "pinned keys" if signers else "keys that nobody pinned"
        print(f"{path}: {len(found)} stages, layers 0..{found[-1].layer_end}, {whose}")
    return 0


COMMANDS = {"generate": generate, "verify": verify, "prepare": prepare, "secret": secret}


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, turn errors into messages."""
    asked = _parser().parse_args(arguments)
    try:
        return COMMANDS[asked.command](asked)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the text has gone; nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the ring is down", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
