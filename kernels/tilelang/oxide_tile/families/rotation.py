"""Heads on their way through a rotary embedding, 8 pairs at a time: of each pair one element from either half."""

import tilelang.language as T

from oxide_tile.families.common import F32

# Pairs that a thread turns at once: a 16-byte load from either half of a head.
PAIRS = 8
# Numbers of the table of rotations that are loaded at once: cosine and sine of two pairs.
TURNS = 4


@T.macro
def load_pairs(heads, low, high, token, head, at, half):
    """Pairs `at` and those after it of a head, from `[tokens, heads, head_dim]`."""
    for j in T.vectorized(PAIRS):
        low[j] = T.cast(heads[token, head, at + j], F32)
    for j in T.vectorized(PAIRS):
        high[j] = T.cast(heads[token, head, half + at + j], F32)


@T.macro
def load_turns(rotations, turns, angle, at):
    """Cosines and sines of pairs, of row `angle` of `[max_positions, head_dim / 2, 2]`."""
    for part in T.unroll(2 * PAIRS // TURNS):
        for j in T.vectorized(TURNS):
            turns[part * TURNS + j] = rotations[angle, at + part * (TURNS // 2) + j // 2, j % 2]


@T.macro
def turn_pairs(rotations, low, high, turned_low, turned_high, angle, at, tile):
    """Turn pairs by their cosines and sines."""
    turns = T.alloc_local((2 * PAIRS,), F32)
    load_turns(rotations, turns, angle, at)
    for j in T.unroll(PAIRS):
        turned_low[j] = T.cast(low[j] * turns[2 * j] - high[j] * turns[2 * j + 1], tile)
        turned_high[j] = T.cast(high[j] * turns[2 * j] + low[j] * turns[2 * j + 1], tile)


@T.macro
def store_pairs(turned_low, turned_high, heads, token, head, at, half):
    """Pairs to where `load_pairs` has them from."""
    for j in T.vectorized(PAIRS):
        heads[token, head, at + j] = turned_low[j]
    for j in T.vectorized(PAIRS):
        heads[token, head, half + at + j] = turned_high[j]
