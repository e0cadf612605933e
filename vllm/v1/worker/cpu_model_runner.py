"""The model runner of a CPU rank: native step programs on the process's thread pool."""

import numpy as np

from vllm.attention.backend import StepInput
from vllm.v1.worker.model_runner import ModelRunner


class CPUModelRunner(ModelRunner):
    """Adds a first step, so that no request pays for what happens only once."""

    def warm_up(self) -> None:
        """Run one token through the model, in the reserved block 0."""
        one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
        num_groups = len(self.batch.blocks.tables)
        self.model.execute(
            StepInput(
                token_ids=zero,
                positions=zero,
                query_start=np.array([0, 1], np.int32),
                seq_lens=one,
                logits_indices=zero,
                block_tables=[np.zeros((1, 1), np.int32)] * num_groups,
                slot_mapping=[np.zeros(1, np.int64)] * num_groups,
                block_size=self.block_size,
            )
        )
