"""The persistent batch: one row of preallocated arrays per running request.

A row is written when a request comes, extended by a token per step and cleared when it goes; a step
selects rows by index, so rows never move. Invariant: `token_ids[row, : num_tokens[row]]` are prompt
and output of the request in that row; a free row holds nothing of the last one.
"""

import numpy as np
from numpy.typing import NDArray

from vllm.v1.messages import NewRequestData
from vllm.v1.sample.metadata import SamplingColumns
from vllm.v1.worker.block_table import BlockTables

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class InputBatch:
    """Rows of the running requests, found by request id."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        sampling: SamplingColumns,
    ) -> None:
        # One column more than the model's length: a request that fills it still gets its token.
        self.token_ids: I32 = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens: I32 = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_tokens: I32 = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens: I32 = np.zeros(max_num_seqs, np.int32)
        self.blocks = BlockTables(max_num_seqs, max_model_len, block_size, num_groups)
        self.sampling = sampling
        self.rows: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def add(self, request: NewRequestData) -> None:
        """Give a request a row."""
        if request.request_id in self.rows:
            raise RuntimeError(f"request {request.request_id} has a row already")
        row = self._free_rows.pop()
        self.rows[request.request_id] = row
        num_tokens = len(request.token_ids)
        self.token_ids[row, :num_tokens] = request.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.blocks.append(row, request.block_ids)
        self.sampling.add(row, request)

    def remove(self, request_id: str) -> None:
        """Clear a request's row; an unknown id never got one."""
        row = self.rows.pop(request_id, None)
        if row is None:
            return
        self.sampling.remove(row)
        self.blocks.clear(row)
        self.token_ids[row, : self.num_tokens[row]] = 0
        self.num_tokens[row] = self.num_prompt_tokens[row] = self.num_computed_tokens[row] = 0
        self._free_rows.append(row)

    def append_tokens(self, rows: I64, token_ids: I32) -> None:
        """Write one sampled token at the end of each of these rows."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    @property
    def num_rows_in_use(self) -> int:
        """Requests that have a row."""
        return len(self.rows)
