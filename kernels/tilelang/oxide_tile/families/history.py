"""Which tokens a sequence has used: `sampling.record_history`."""

import tilelang.language as T

from oxide_tile.definition import Definition, Domain, Tensor
from oxide_tile.families.common import I32, INDEX_OUT_OF_RANGE, STATUS, U32, report

# Kinds of entries, and what they do to `history[slot, token]`.
NOTHING, PROMPT, OUTPUT = range(3)
IN_PROMPT = 0x80000000


def record_history(threads: int) -> Definition:
    """Sets the high bit for a token of the prompt, adds one for a token of the output."""
    entries, max_sequences, vocab_size = T.dynamic("entries"), T.dynamic("max_sequences"), T.dynamic("vocab_size")

    @T.prim_func
    def function(
        entry_slots: T.Tensor((entries,), U32),
        entry_tokens: T.Tensor((entries,), U32),
        entry_kinds: T.Tensor((entries,), U32),
        history: T.Tensor((max_sequences, vocab_size), U32),
        status: T.Tensor((1,), I32),
    ):
        with T.Kernel(T.ceildiv(entries, threads), threads=threads) as block:
            entry = T.alloc_var(I32, init=block * threads + T.get_thread_binding())
            if entry < entries:
                kind = T.alloc_var(I32, init=T.cast(entry_kinds[entry], I32))
                if kind != NOTHING:
                    slot = T.alloc_var(I32, init=T.cast(entry_slots[entry], I32))
                    token = T.alloc_var(I32, init=T.cast(entry_tokens[entry], I32))
                    known = T.alloc_var(I32, init=0)
                    if kind == PROMPT:
                        known = 1
                    if kind == OUTPUT:
                        known = 1
                    if known == 1 and slot >= 0 and slot < max_sequences and token >= 0 and token < vocab_size:
                        if kind == PROMPT:
                            T.atomic_or(history[slot, token], T.Cast(U32, IN_PROMPT))
                        else:
                            T.atomic_add(history[slot, token], T.Cast(U32, 1))
                    else:
                        report(status, INDEX_OUT_OF_RANGE, entry)

    return Definition(
        contract="sampling.record_history",
        function=function,
        properties={},
        dimensions={"entries": Domain(), "max_sequences": Domain(), "vocab_size": Domain()},
        operands={
            "entry_slots": Tensor(("entries",), alignment=4),
            "entry_tokens": Tensor(("entries",), alignment=4),
            "entry_kinds": Tensor(("entries",), alignment=4),
            "history": Tensor(("max_sequences", "vocab_size"), "read_write", alignment=4),
            "status": STATUS,
        },
        accumulation="u32",
    )
