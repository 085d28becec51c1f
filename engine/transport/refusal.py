"""Why a peer is turned away, in words that both ends can act on.

Guarantees: every reason names both sides, what each of them holds and what to do; nothing that an
unauthenticated peer said gets into it unbounded or unprintable. Sans-IO; decides, changes nothing.
Must never know in which state a handshake is.
"""

from __future__ import annotations

from engine.errors import shown
from engine.transport.credentials import MAX_NAME_LEN, Credentials
from engine.transport.message import PROTOCOL_VERSION, Hello, HelloAck

MAX_REFUSAL_LEN = 640  # characters of a peer's refusal that are shown; ours are shorter

_ALTERED = "it was altered on its way, or belongs to another session; look at what sits between"
OTHER_SECRET = (
    "the two hold different cluster secrets, or it was altered on its way; compare the cluster "
    "secret files of both hosts (sha256sum)"
)
NOISE_CAUSES = (_ALTERED, _ALTERED, OTHER_SECRET)  # of a failure, by Noise message


def hello_problem(own: Credentials, hello: Hello) -> str:
    """Why a listener turns a caller away before it looks at any key; empty if it does not."""
    caller = shown(hello.node_id) or "an unnamed peer"
    if hello.protocol_version != PROTOCOL_VERSION:
        return _version_problem(caller, hello.protocol_version, own.node_id, PROTOCOL_VERSION)
    names = (hello.cluster_id, hello.suite, hello.to_node_id, hello.role, hello.node_id)
    if max(map(len, names)) > MAX_NAME_LEN:
        return (
            f"{caller} sent {own.node_id} a name of more than {MAX_NAME_LEN} characters; shorten it"
        )
    if hello.cluster_id != own.cluster_id:
        return (
            f"{caller} belongs to cluster {shown(hello.cluster_id)!r}, {own.node_id} to "
            f"{own.cluster_id!r}; start both from the same plan"
        )
    if hello.suite != own.suite:
        return (
            f"{caller} asks for suite {shown(hello.suite)!r}, {own.node_id} runs {own.suite!r}; "
            f"start every node of a ring with the same suite"
        )
    if hello.to_node_id != own.node_id:
        return (
            f"{caller} looks for {shown(hello.to_node_id)!r}, but this is {own.node_id}; correct "
            f"the address in the plan"
        )
    return _role_problem(own, hello, caller)


def _role_problem(own: Credentials, hello: Hello, caller: str) -> str:
    if hello.role not in own.callers:
        return (
            f"{own.node_id} takes nobody, so not {caller} either, as {shown(hello.role)!r}; its "
            f"roles: {', '.join(sorted(own.callers)) or 'none'}"
        )
    planned = own.callers[hello.role]
    if planned != hello.node_id:
        return (
            f"only {planned} may call {own.node_id} as {hello.role!r}, not {caller}; start both "
            f"from the same plan"
        )
    return ""


def ack_problem(own: Credentials, listener: str, ack: HelloAck) -> str:
    """Why a caller does not go on after `HelloAck`; empty if it does."""
    if ack.protocol_version != PROTOCOL_VERSION:
        return _version_problem(own.node_id, PROTOCOL_VERSION, listener, ack.protocol_version)
    answerer = shown(ack.node_id) or "an unnamed peer"
    if ack.refused:
        return f"{answerer} refused: {shown(ack.refused, MAX_REFUSAL_LEN)}"
    if ack.node_id != listener:
        return (
            f"{answerer} answered {own.node_id} instead; correct the address of {listener} in "
            f"the plan"
        )
    return ""


def key_problem(own: Credentials, peer: str, proven: bytes) -> str:
    """Why the static key that a peer has proven to hold is not its own; empty if it is."""
    planned = own.key_of(peer)
    if proven == planned:
        return ""
    return (
        f"the key of {peer} begins with {proven.hex()[:16]}, but the plan of {own.node_id} says "
        f"{planned.hex()[:16]}; start both from the same plan"
    )


def _version_problem(caller: str, caller_version: int, listener: str, listener_version: int) -> str:
    return (
        f"{caller} speaks protocol version {caller_version}, {listener} speaks "
        f"{listener_version}; run the same release on both ends"
    )
