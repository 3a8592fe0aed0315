"""Where the tokens of each sequence start: `query_start`, which goes from 0 to the number of tokens and never falls."""

import tilelang.language as T

from oxide_tile.families.common import report

# Its code of the status word, as `artifact/status.rs` decodes it.
START_OUT_OF_RANGE = 7


@T.macro
def check_start(status, query_start, sequence, tokens):
    """Report the first sequence's start if it is not 0, and the next one's if it falls or is past the tokens."""
    if sequence == 0 and query_start[sequence] != 0:
        report(status, START_OUT_OF_RANGE, sequence)
    if query_start[sequence + 1] < query_start[sequence] or query_start[sequence + 1] > tokens:
        report(status, START_OUT_OF_RANGE, sequence + 1)
