"""The published law against the published jobs: acceptance that they imply, speed that it gives.

Guarantees: alpha is the only number of a row that is solved for, from accepted drafts a round; the
loop time is the job's own. Must never know receipts of ours.

The published chain ran one chunk at a time wherever its learned drafter did, so the closed form of
one chunk a loop is what applies to it; that of four chunks in flight says what it would have been.
"""

from __future__ import annotations

import pandas as pd
from scipy.optimize import brentq

from analysis import closed_form
from analysis.public.decode import MS_PER_S, decode_rows, jobs_frame
from analysis.public.files import CHAIN, PublicReceipts
from analysis.public.quotes import QUOTES

DRAFT_LEN = int(QUOTES["draft_len"].low)
DEPTH = int(QUOTES["depth"].low)


def implied_alpha(accepted: float, draft_len: int = DRAFT_LEN) -> float:
    """The alpha under which a chunk has this many right drafts before the first wrong one.

    Args:
        accepted: mean accepted drafts a round, in [0, draft_len].
        draft_len: drafts of a chunk.

    Source: E[a] = alpha + alpha² + … + alpha^K, increasing in alpha.
    """

    def lead(alpha: float) -> float:
        return closed_form.chunk_tokens(alpha, draft_len + 1) - 1.0 - accepted

    return float(brentq(lead, 0.0, 1.0, xtol=1e-12))


def law_rows(public: PublicReceipts) -> pd.DataFrame:
    """One row a cell of chain, in the order of the decode table.

    Columns: cell, receipts, accept, alpha, loop_ms (traversal / rounds), measured (tok/s),
    lockstep, over (lockstep / measured), pipelined (DEPTH chunks), ceiling (tok/s); each the median
    of its value in every repetition, alpha and accept of the cell.
    """
    jobs, rows = jobs_frame(public), []
    for cell in decode_rows(public).query(f"arm == '{CHAIN}'").itertuples():
        own = jobs[(jobs["cell"] == cell.cell) & (jobs["arm"] == CHAIN)]
        own = own[own["phase"] == cell.receipts]
        alpha, loops = implied_alpha(cell.accept), own["traversal_s"] / own["rounds"]
        rates = {
            "lockstep": loops.map(
                lambda loop_s, a=alpha: closed_form.lockstep_rate(a, DRAFT_LEN, loop_s)
            ),
            "pipelined": loops.map(
                lambda loop_s, a=alpha: closed_form.chain_rate(a, DRAFT_LEN, DEPTH, loop_s)
            ),
            "ceiling": loops.map(lambda loop_s, a=alpha: closed_form.ceiling(a, loop_s)),
        }
        rows.append(
            {
                "cell": cell.cell,
                "receipts": cell.receipts,
                "accept": cell.accept,
                "alpha": alpha,
                "loop_ms": loops.median() * MS_PER_S,
                "measured": cell.tok_s,
                "over": (rates["lockstep"] / own["tok_s"]).median(),
                **{name: rate.median() for name, rate in rates.items()},
            }
        )
    return pd.DataFrame(rows)
