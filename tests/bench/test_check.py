"""Every defect that `bench check` promises to find, planted one by one in a true experiment."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.check import Finding, check_experiment
from bench.receipt import write_signed
from bench.schema import Receipt
from engine.trust.identity import Identity
from tests.bench.receipt_builder import RING, SmallExperiment, make_plan, make_receipt

BASE, NULL, TALK = 2, 3, 6  # jobs: chain-k4 and null of the first block, chain-k4 of the second


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> SmallExperiment:
    identity = Identity.load_or_create(tmp_path_factory.mktemp("keys") / "harness.key")
    return SmallExperiment(tmp_path_factory.mktemp("pristine") / "experiment", identity)


@pytest.fixture
def experiment(pristine: SmallExperiment, tmp_path: Path) -> SmallExperiment:
    """A fresh copy to damage."""
    return pristine.copied(tmp_path / "experiment")


def found_in(experiment: SmallExperiment) -> list[Finding]:
    keys = {experiment.identity.key_id: experiment.identity.public}
    return check_experiment(experiment.folder, keys)


def test_a_true_experiment_is_clean(experiment: SmallExperiment) -> None:
    """Catches a rule that refuses what the round machine does; every outcome is in there."""
    assert found_in(experiment) == []
    outcomes = {
        frame["outcome"]
        for row in experiment.plan.jobs
        for frame in experiment.load(row.job_idx)["frames"]
    }
    assert outcomes == {"prefill", "applied", "refuted", "closed", "stale"}
    reasons = {experiment.load(row.job_idx)["finish_reason"] for row in experiment.plan.jobs}
    assert reasons == {"eos", "length"}


def first(tree: dict, outcome: str) -> dict:
    return next(frame for frame in tree["frames"] if frame["outcome"] == outcome)


def drafted(tree: dict) -> dict:
    return next(frame for frame in tree["frames"] if frame["draft_len"] > 1)


def add_to(frame: dict, name: str, amount: int) -> None:
    frame[name] += amount


def move_commit(tree: dict) -> None:
    """One token from a frame to the next: the sum stays."""
    frames = [frame for frame in tree["frames"] if frame["outcome"] == "applied"]
    donor = next(i for i, f in enumerate(frames[:-1]) if f["committed_len"] > 1)
    frames[donor]["committed_len"] -= 1
    frames[donor + 1]["committed_len"] += 1


def set_epoch_back(tree: dict) -> None:
    last = tree["frames"][-1]
    assert last["epoch"] > 0
    last["epoch"] = 0


def set_hop(tree: dict, idx: int, frames: int, num_bytes: int) -> None:
    """One sender's row; the totals follow, so that only the row is wrong."""
    row = tree["counters"]["hops"][idx]
    row.update(frames=frames, bytes=num_bytes)
    for name in ("frames", "bytes"):
        tree["counters"][f"{name}_on_wire"] = sum(hop[name] for hop in tree["counters"]["hops"])


def add_to_hop(tree: dict, idx: int, frames: int, num_bytes: int) -> None:
    row = tree["counters"]["hops"][idx]
    set_hop(tree, idx, row["frames"] + frames, row["bytes"] + num_bytes)


def bytes_of(tree: dict, idx: int) -> int:
    return tree["counters"]["hops"][idx]["bytes"]


def shrink_replies(tree: dict) -> None:
    """The last stage wrote one byte less than was received."""
    received = sum(frame["received_bytes"] for frame in tree["frames"])
    set_hop(tree, 2, len(tree["frames"]), received - 1)


def drop_hop(tree: dict) -> None:
    """A stage without a row; the totals follow."""
    hops = tree["counters"]["hops"]
    del hops[1]
    set_hop(tree, 0, hops[0]["frames"], hops[0]["bytes"])


# name -> (change of receipt BASE or TALK, rule): edited and signed again, so only the rule can tell
EDITS: dict[str, tuple[int, Callable[[dict], object], str]] = {
    "a frame that knew what was not read yet": (
        BASE,
        lambda tree: add_to(drafted(tree), "frontier", 40),
        "frames",
    ),
    "a frame that knew less than one before it": (
        BASE,
        lambda tree: tree["frames"][-1].update(frontier=len(tree["prompt_ids"])),
        "frames",
    ),
    "drafting that took longer than it did in all": (
        BASE,
        lambda tree: add_to(drafted(tree), "draft_ns", 10**9),
        "timing",
    ),
    "a stage with another cache": (
        BASE,
        lambda tree: add_to(tree["stages"][1], "max_kv_size", 64),
        "stages",
    ),
    "sum of committed": (BASE, lambda t: add_to(first(t, "applied"), "committed_len", 1), "frames"),
    "commit moved": (BASE, move_commit, "frames"),
    "tested above a + 1": (BASE, lambda t: add_to(drafted(t), "tested_len", 2), "frames"),
    "tested above k": (
        BASE,
        lambda t: drafted(t).update(accepted_len=4, tested_len=5, draft_len=4),
        "frames",
    ),
    "a above k": (BASE, lambda t: drafted(t).update(accepted_len=9, tested_len=9), "frames"),
    "k above sent": (BASE, lambda t: add_to(drafted(t), "draft_len", 50), "frames"),
    "sent above positions": (BASE, lambda t: add_to(drafted(t), "sent_len", 50), "frames"),
    "stale counts": (BASE, lambda t: first(t, "stale").update(draft_len=1), "frames"),
    "stale tested": (BASE, lambda t: first(t, "stale").update(draft_len=1, tested_len=1), "frames"),
    "refuted accepts": (TALK, lambda t: first(t, "refuted").update(accepted_len=1), "frames"),
    "refuted untested": (TALK, lambda t: first(t, "refuted").update(tested_len=0), "frames"),
    "closed commits": (TALK, lambda t: first(t, "closed").update(committed_len=1), "frames"),
    "closed not cut": (TALK, lambda t: first(t, "closed").update(draft_len=2), "frames"),
    "prefill commits none": (
        BASE,
        lambda t: [frame.update(committed_len=0) for frame in t["frames"][:3]],
        "frames",
    ),
    "prefill drafts": (BASE, lambda t: t["frames"][0].update(source="ngram"), "frames"),
    "epoch falls": (BASE, set_epoch_back, "frames"),
    "hole in an epoch": (BASE, lambda t: add_to(t["frames"][4], "start", 1), "frames"),
    "frame left out": (BASE, lambda t: t["frames"].pop(4), "frames"),
    "in flight above depth": (BASE, lambda t: t["frames"][5].update(in_flight=4), "frames"),
    "in flight zero": (BASE, lambda t: t["frames"][5].update(in_flight=0), "frames"),
    "answer before question": (BASE, lambda t: t["frames"][4].update(received_ns=1), "frames"),
    "applied without answer": (
        BASE,
        lambda t: first(t, "applied").update(received_ns=None),
        "frames",
    ),
    "sent out of order": (BASE, lambda t: t["frames"][4].update(sent_ns=0), "frames"),
    "answers out of order": (
        0,
        lambda t: t["frames"][4].update(received_ns=t["frames"][9]["received_ns"]),
        "frames",
    ),
    "commits out of order": (BASE, lambda t: t["timing"].update(first_commit_ns=0), "timing"),
    "end before the last commit": (BASE, lambda t: t["timing"].update(end_ns=1), "timing"),
    "no commit time": (BASE, lambda t: t["timing"].update(last_commit_ns=None), "timing"),
    "discarded": (BASE, lambda t: add_to(t["counters"], "discarded_len", 1), "counters"),
    "wire, no stale frames": (0, lambda t: add_to(t["counters"], "frames_on_wire", 1), "counters"),
    "wire, too few": (BASE, lambda t: t["counters"].update(frames_on_wire=9), "counters"),
    "wire, too many": (BASE, lambda t: t["counters"].update(frames_on_wire=999), "counters"),
    "wire, bytes": (BASE, lambda t: add_to(t["counters"], "bytes_on_wire", 1), "wire"),
    "wire, frames of hops": (BASE, lambda t: add_to(t["counters"], "frames_on_wire", -1), "wire"),
    "wire, hop missing": (BASE, drop_hop, "wire"),
    "wire, noops of an arm without": (
        BASE,
        lambda t: t["counters"]["hops"][1].update(noops=1),
        "wire",
    ),
    "wire, hops swapped": (BASE, lambda t: t["counters"]["hops"].reverse(), "wire"),
    "wire, our frames": (BASE, lambda t: add_to_hop(t, 0, 1, 0), "wire"),
    "wire, our bytes": (BASE, lambda t: add_to_hop(t, 0, 0, 1), "wire"),
    "wire, more out than in": (BASE, lambda t: add_to_hop(t, 2, 1, 10), "wire"),
    "wire, answers without frames": (BASE, lambda t: set_hop(t, 2, 3, 5000), "wire"),
    "wire, frames without bytes": (BASE, lambda t: add_to_hop(t, 1, 0, -bytes_of(t, 1)), "wire"),
    "wire, one frame less": (0, lambda t: add_to_hop(t, 1, -1, 0), "wire"),
    "wire, one reply's bytes": (0, lambda t: add_to_hop(t, 1, 0, 1), "wire"),
    "wire, fewer replies than came": (BASE, shrink_replies, "wire"),
    "wire, a frame from nowhere": (BASE, lambda t: add_to_hop(t, 1, -1, 0), "wire"),
    "link missing": (BASE, lambda t: t["links"].pop(), "links"),
    "links swapped": (BASE, lambda t: t["links"].reverse(), "links"),
    "link not probed": (BASE, lambda t: t["links"][1].update(rtt_ns=[]), "links"),
    "link probed less": (BASE, lambda t: t["links"][1]["payload_rtt_ns"].pop(), "links"),
    "another payload": (BASE, lambda t: t["links"][1].update(payload_bytes=1), "links"),
    "no payload": (BASE, lambda t: [link.update(payload_bytes=0) for link in t["links"]], "links"),
    "round trip in no time": (BASE, lambda t: t["links"][0].update(idle_payload_rtt_ns=0), "links"),
    "link faster than it is": (BASE, lambda t: t["links"][2].update(rtt_ns=[1999, 2050]), "links"),
    "field of another version": (BASE, lambda t: t["counters"].pop("hops"), "version"),
    "levers of another version": (BASE, lambda t: t["requested"].pop("sampling"), "version"),
    "called an older version": (BASE, lambda t: t.update(schema="longhaul-receipt/1"), "version"),
    "output too long": (TALK, lambda t: t["output_ids"].extend(range(40)), "output"),
    "length too early": (TALK, lambda t: t.update(finish_reason="length"), "output"),
    "no finish": (TALK, lambda t: t.update(finish_reason="none"), "output"),
    "no output": (TALK, lambda t: t.update(output_ids=[]), "output"),
    "ok with a failure": (
        BASE,
        lambda t: t.update(failure={"code": "x", "detail": "", "stage_idx": None}),
        "status",
    ),
    "failed without one": (BASE, lambda t: t.update(status="failed"), "status"),
    "altered output id": (BASE, lambda t: t["output_ids"].__setitem__(5, 3), "lossless"),
    "wrong reference id": (BASE, lambda t: t["lossless"].update(reference_id="0" * 16), "lossless"),
    "false verdict": (BASE, lambda t: t["lossless"].update(verdict="different"), "lossless"),
    "not compared": (BASE, lambda t: t["lossless"].update(verdict="not_compared"), "lossless"),
    "reference judged": (0, lambda t: t["lossless"].update(verdict="identical"), "lossless"),
    "another prompt": (BASE, lambda t: t["prompt_ids"].__setitem__(0, 1), "lossless"),
    "another prompt digest": (BASE, lambda t: t.update(prompt_digest="0" * 64), "prompt"),
    "wrong plan digest": (
        BASE,
        lambda t: t["position"].update(plan_digest="0" * 64),
        "plan-digest",
    ),
    "another experiment": (BASE, lambda t: t["position"].update(experiment="x"), "experiment"),
    "another job": (BASE, lambda t: t["position"].update(job_idx=7), "misplaced"),
    "unplanned job": (BASE, lambda t: t["position"].update(job_idx=99), "foreign"),
    "another cell": (BASE, lambda t: t["position"].update(cell="talk"), "position"),
    "another rep": (BASE, lambda t: t["position"].update(rep=1), "position"),
    "another role": (BASE, lambda t: t["position"].update(role="warmup"), "position"),
    "another order": (BASE, lambda t: t["position"].update(order_idx=9), "position"),
    "same nonce": (BASE, lambda t: t.update(job_nonce="00"), "duplicate"),
    "another build": (BASE, lambda t: t["build"].update(source_digest="0" * 64), "build"),
    "another model": (BASE, lambda t: t["model"].update(name="other"), "model"),
    "another ring": (BASE, lambda t: t["ring"].update(suite="plain"), "ring"),
    "default ring instead of its own": (
        1,
        lambda t: t.update(ring=msgspec.to_builtins(RING)),
        "ring",
    ),
    "answers with logits": (BASE, lambda t: t["requested"].update(reply="logits"), "config"),
    "sampled": (BASE, lambda t: t["observed"]["sampling"].update(temperature="0.7"), "config"),
    "requested levers": (BASE, lambda t: t["requested"].update(draft_len=5), "config"),
    "observed levers": (BASE, lambda t: t["observed"].update(depth=2), "config"),
    "nothing observed": (BASE, lambda t: t.update(observed=None), "config"),
    "another arm": (BASE, lambda t: t["requested"].update(arm="ar"), "config"),
    "another budget": (BASE, lambda t: t["requested"].update(max_new_tokens=25), "config"),
    "stage levers": (BASE, lambda t: t["stages"][1].update(levers_digest="0" * 64), "stages"),
    "stage model": (BASE, lambda t: t["stages"][0].update(model_digest="0" * 64), "stages"),
    "stage source": (BASE, lambda t: t["stages"][0].update(source_digest="0" * 64), "stages"),
    "stage kernel": (BASE, lambda t: t["stages"][1].update(kernel="other"), "stages"),
    "layers overlap": (BASE, lambda t: t["stages"][1].update(layer_start=4), "stages"),
    "layers end early": (BASE, lambda t: t["stages"][1].update(layer_end=8), "stages"),
    "stage missing": (BASE, lambda t: t["stages"].pop(), "stages"),
    "stages swapped": (BASE, lambda t: t["stages"].reverse(), "stages"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_and_signed_again(experiment: SmallExperiment, name: str) -> None:
    """Catches a rule that is missing: the signature is right, only the content is not."""
    job_idx, change, rule = EDITS[name]
    if name == "same nonce":
        experiment.edit(0, change)
    experiment.edit(job_idx, change)
    named = {(finding.file, finding.rule) for finding in found_in(experiment)}
    assert (f"receipts/{job_idx:04d}.json", rule) in named, named


def resign(path: Path, body: bytes, identity: Identity, kind: str = "longhaul-receipt/7") -> None:
    """Sign bytes that no writer of ours would write."""
    signature = {
        "key_id": identity.key_id,
        "schema": "longhaul-signature/1",
        "sha256": hashlib.sha256(body).hexdigest(),
        "signature": base64.b64encode(identity.sign(kind, body)).decode(),
        "type": kind,
    }
    path.write_bytes(body)
    encoded = json.dumps(signature, sort_keys=True, separators=(",", ":")).encode()
    path.with_name(f"{path.stem}.sig.json").write_bytes(encoded)


def replace_in(path: Path, old: bytes, new: bytes) -> bytes:
    body = path.read_bytes()
    assert old in body
    return body.replace(old, new, 1)


def edit_unsigned(e: SmallExperiment) -> None:
    path = e.path(BASE)
    path.write_bytes(replace_in(path, b'"epoch":0', b'"epoch":1'))


def swap_signatures(e: SmallExperiment) -> None:
    one, two = (e.path(idx).with_name(f"{idx:04d}.sig.json") for idx in (BASE, NULL))
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def swap_receipts(e: SmallExperiment) -> None:
    swap_signatures(e)
    held = e.path(BASE).read_bytes()
    e.path(BASE).write_bytes(e.path(NULL).read_bytes())
    e.path(NULL).write_bytes(held)
    e.write_log()


def resigned(old: bytes, new: bytes) -> Callable[[SmallExperiment], None]:
    return lambda e: resign(e.path(BASE), replace_in(e.path(BASE), old, new), e.identity)


def stranger(e: SmallExperiment) -> None:
    other = Identity.load_or_create(e.folder.parent / "other" / "x.key")
    write_signed(e.path(BASE), msgspec.convert(e.load(BASE), Receipt), other)


def mix(e: SmallExperiment) -> None:
    other = msgspec.structs.replace(make_plan(), experiment="another")
    receipt = make_receipt(other, "1" * 64, other.jobs[BASE], e.receipt_id(0))
    write_signed(e.path(BASE), receipt, e.identity)
    e.write_log()


def drop(e: SmallExperiment) -> None:
    e.path(BASE).unlink()
    e.path(BASE).with_name("0002.sig.json").unlink()
    e.write_log()


def duplicate(e: SmallExperiment) -> None:
    write_signed(e.path(16), msgspec.convert(e.load(BASE), Receipt), e.identity)
    e.write_log()


def log_lines(e: SmallExperiment, change: Callable[[list[str]], list[str]]) -> None:
    path = e.folder / "log.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def wrong_type(e: SmallExperiment) -> None:
    path = e.path(BASE).with_name("0002.sig.json")
    path.write_bytes(replace_in(path, b"longhaul-receipt/7", b"longhaul-plan/7"))


def older_type(e: SmallExperiment) -> None:
    """Signed as another version of the same kind."""
    kind, body = "longhaul-receipt/1", e.path(BASE).read_bytes()
    resign(e.path(BASE), body, e.identity, kind)


PLANTS: dict[str, tuple[Callable[[SmallExperiment], object], str, str]] = {
    "edited, not signed": (edit_unsigned, "receipts/0002.json", "signature"),
    "signatures swapped (1)": (swap_signatures, "receipts/0002.json", "signature"),
    "signatures swapped (2)": (swap_signatures, "receipts/0003.json", "signature"),
    "receipts swapped": (swap_receipts, "receipts/0003.json", "misplaced"),
    "signature missing": (
        lambda e: e.path(BASE).with_name("0002.sig.json").unlink(),
        "receipts/0002.json",
        "signature",
    ),
    "signature is no JSON": (
        lambda e: e.path(BASE).with_name("0002.sig.json").write_text("?"),
        "receipts/0002.sig.json",
        "schema",
    ),
    "signature of another type": (wrong_type, "receipts/0002.sig.json", "signature"),
    "signed as another version": (older_type, "receipts/0002.json", "signature"),
    "unknown key": (stranger, "receipts/0002.json", "signature"),
    "float": (resigned(b'"epoch":0', b'"epoch":0.0'), "receipts/0002.json", "float"),
    "infinity": (resigned(b'"epoch":0', b'"epoch":Infinity'), "receipts/0002.json", "float"),
    "space": (resigned(b'"epoch":0', b'"epoch": 0'), "receipts/0002.json", "canonical"),
    "key twice": (resigned(b'"seed":', b'"seed":"01","seed":'), "receipts/0002.json", "schema"),
    "unknown key in a row": (
        resigned(b'"seed":', b'"sped":1,"seed":'),
        "receipts/0002.json",
        "schema",
    ),
    "too large a number": (
        resigned(b'"invented":1', b'"invented":9007199254740993'),
        "receipts/0002.json",
        "canonical",
    ),
    "negative": (resigned(b'"epoch":0', b'"epoch":-1'), "receipts/0002.json", "schema"),
    "no JSON": (
        lambda e: resign(e.path(BASE), b"\xff{", e.identity),
        "receipts/0002.json",
        "schema",
    ),
    "mixed experiments": (mix, "receipts/0002.json", "plan-digest"),
    "dropped job": (drop, "receipts/0002.json", "missing"),
    "duplicate job": (duplicate, "receipts/0016.json", "duplicate"),
    "foreign file": (lambda e: (e.folder / "notes.txt").write_text(""), "notes.txt", "foreign"),
    "foreign receipt": (
        lambda e: (e.folder / "receipts" / "old.json").write_text("{}"),
        "receipts/old.json",
        "foreign",
    ),
    "foreign folder": (lambda e: (e.folder / "receipts" / "x").mkdir(), "receipts/x", "foreign"),
    "short name": (
        lambda e: shutil.copy(e.path(BASE), e.folder / "receipts" / "002.json"),
        "receipts/002.json",
        "foreign",
    ),
    "long name": (
        lambda e: shutil.copy(e.path(BASE), e.folder / "receipts" / "00002.json"),
        "receipts/00002.json",
        "misplaced",
    ),
    "lonely signature": (
        lambda e: e.path(BASE).unlink(),
        "receipts/0002.sig.json",
        "foreign",
    ),
    "no plan": (lambda e: (e.folder / "plan.json").unlink(), "plan.json", "missing"),
    "plan altered": (
        lambda e: (e.folder / "plan.json").write_bytes(
            replace_in(e.folder / "plan.json", b'"alpha":"0.05"', b'"alpha":"0.5"')
        ),
        "plan.json",
        "signature",
    ),
    "no log": (lambda e: (e.folder / "log.jsonl").unlink(), "log.jsonl", "missing"),
    "log: line lost": (
        lambda e: log_lines(e, lambda lines: [*lines[:3], *lines[4:]]),
        "receipts/0002.json",
        "log",
    ),
    "log: line twice": (
        lambda e: log_lines(e, lambda lines: [*lines, lines[-1]]),
        "log.jsonl",
        "log",
    ),
    "log: order": (lambda e: log_lines(e, lambda lines: lines[::-1]), "log.jsonl", "log"),
    "log: no JSON": (lambda e: log_lines(e, lambda lines: [*lines, "?"]), "log.jsonl", "log"),
    "log: no event": (lambda e: log_lines(e, lambda lines: [*lines, "[]"]), "log.jsonl", "log"),
    "log: another status": (
        lambda e: log_lines(e, lambda lines: [line.replace('"ok"', '"failed"') for line in lines]),
        "log.jsonl",
        "log",
    ),
    "log: another plan": (
        lambda e: log_lines(e, lambda lines: [line.replace(e.plan_digest, "0") for line in lines]),
        "log.jsonl",
        "log",
    ),
    "log: another receipt": (
        lambda e: e.edit(BASE, lambda t: t.update(seed="02"), relog=False),
        "log.jsonl",
        "log",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_in_the_folder(experiment: SmallExperiment, name: str) -> None:
    """Catches a file, signature or log line that is not looked at."""
    plant, file, rule = PLANTS[name]
    plant(experiment)
    named = {(finding.file, finding.rule) for finding in found_in(experiment)}
    assert (file, rule) in named, named
