"""Which cache pages hold the tokens of each row, one table per KV group, and the slot of a token.

A slot is block * block_size + offset. Rows are cleared when they are freed: nothing of a request
stays behind for the next one in its row.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class BlockTables:
    """Tables [rows, max_blocks] of all groups; columns beyond `num_blocks` of a row are 0."""

    def __init__(self, max_rows: int, max_tokens: int, block_size: int, num_groups: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_tokens // block_size)
        self.tables = [np.zeros((max_rows, max_blocks), np.int32) for _ in range(num_groups)]
        self._num_blocks = np.zeros(max_rows, np.int32)

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Add blocks at the end of a row; `block_ids` has one list per group, all equally long."""
        start = int(self._num_blocks[row])
        end = start + len(block_ids[0])
        for table, ids in zip(self.tables, block_ids, strict=True):
            table[row, start:end] = ids
        self._num_blocks[row] = end

    def clear(self, row: int) -> None:
        """Forget the blocks of a row."""
        for table in self.tables:
            table[row, : self._num_blocks[row]] = 0
        self._num_blocks[row] = 0

    def gather(self, rows: I64) -> list[I32]:
        """The tables of these rows, as wide as the longest: one [rows, blocks] per group."""
        width = int(self._num_blocks[rows].max())
        return [table[rows, :width] for table in self.tables]

    def slots(self, rows: I64, positions: I32) -> list[I64]:
        """The slot of each token, given its row and its position: one [tokens] per group."""
        blocks, offsets = np.divmod(positions, self.block_size)
        return [
            table[rows, blocks].astype(np.int64) * self.block_size + offsets
            for table in self.tables
        ]
