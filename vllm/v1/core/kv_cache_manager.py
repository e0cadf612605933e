"""Block tables of the running requests: prefix lookup, allocation, release.

Invariant: every token that was scheduled has a block in every group; a block is registered under
its hash only when the step that fills it is certain to run, so what can be found is, or will be
before anything later reads it, written. Requests of one step may share blocks that the same step
fills: the worker writes all keys and values of a layer before it attends in that layer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from vllm.v1.core.block_hash import BlockHasher
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_groups import GroupPolicy
from vllm.v1.messages import KVCacheConfig
from vllm.v1.request import Request

NULL_BLOCK = 0


@dataclass(slots=True)
class BlockTable:
    """Blocks of one request, a list per group, all of one length.

    `first_live[g]`: blocks before it are null. `num_registered`: blocks that have been offered
    to the prefix cache.
    """

    groups: list[list[int]]
    first_live: list[int]
    num_registered: int = 0

    @property
    def num_blocks(self) -> int:
        """Length of each group's table."""
        return len(self.groups[0])


@dataclass(slots=True)
class PrefixHit:
    """Blocks found in the cache for a waiting request, nulls where a window needs none."""

    num_tokens: int = 0
    groups: list[list[int]] = field(default_factory=list)
    first_live: list[int] = field(default_factory=list)


class KVCacheManager:
    """Owns the block pool and one BlockTable per running request."""

    def __init__(
        self,
        config: KVCacheConfig,
        max_step_tokens: int,
        enable_caching: bool = True,
        hash_algorithm: str = "sha256",
    ) -> None:
        self.block_size = config.block_size
        self.enable_caching = enable_caching
        self.pool = BlockPool(config.num_blocks)
        self._max_step_tokens = max_step_tokens
        self._policies = [GroupPolicy(group.window, config.block_size) for group in config.groups]
        # One group needs no suffix: its keys are the digests themselves.
        self._suffixes = [bytes([g]) if g else b"" for g in range(len(config.groups))]
        self._finders = [self._finder(suffix) for suffix in self._suffixes]
        self._hasher = BlockHasher(config.block_size, hash_algorithm)
        self._tables: dict[str, BlockTable] = {}
        self._registered_in_step: list[int] = []

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return self.pool.num_used / (self.pool.num_blocks - 1)

    def table(self, request: Request) -> BlockTable:
        """The block table of a running request."""
        return self._tables[request.request_id]

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest prefix that every group can serve; at least one token stays to compute."""
        num_groups = len(self._policies)
        hit = PrefixHit(0, [[] for _ in range(num_groups)], [0] * num_groups)
        if not self.enable_caching or not request.reads_prefix_cache:
            return hit
        num_blocks = (request.num_tokens - 1) // self.block_size
        self._hasher.extend(request, num_blocks)
        num_hit = self._common_hit_length(request.block_hashes, num_blocks)
        if num_hit:
            hit.num_tokens = num_hit * self.block_size
            self._collect_hit(request.block_hashes, num_hit, hit)
        return hit

    def num_blocks_to_admit(self, request: Request, hit: PrefixHit) -> int:
        """Free blocks that the whole request, as long as it is now, takes if it starts here."""
        num_blocks = -(-request.num_tokens // self.block_size)
        num_new = num_blocks - hit.num_tokens // self.block_size
        total = 0
        for policy, table in zip(self._policies, hit.groups, strict=True):
            num_free_hits = sum(1 for block in table if block and self.pool.is_free(block))
            peak = policy.peak_blocks(request.num_tokens, self._max_step_tokens)
            total += min(peak, num_new + num_free_hits)
        return total

    def num_blocks_outstanding(self, request: Request) -> int:
        """Blocks that a running request will still ask for to compute the tokens it has."""
        table = self._tables[request.request_id]
        num_new = -(-request.num_tokens // self.block_size) - table.num_blocks
        total = 0
        for policy, first_live in zip(self._policies, table.first_live, strict=True):
            peak = policy.peak_blocks(request.num_tokens, self._max_step_tokens)
            total += max(0, min(num_new, peak - (table.num_blocks - first_live)))
        return total

    def admit(self, request: Request, hit: PrefixHit) -> None:
        """Give a waiting request its cached blocks; the caller has seen that it fits."""
        for table in hit.groups:
            self.pool.share(block for block in table if block)
        self._tables[request.request_id] = BlockTable(
            hit.groups, hit.first_live, hit.num_tokens // self.block_size
        )
        request.num_computed_tokens = hit.num_tokens

    def num_missing_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks to allocate, over all groups, before the next `num_tokens` tokens can run."""
        table = self._tables[request.request_id]
        end = request.num_computed_tokens + num_tokens
        missing = -(-end // self.block_size) - table.num_blocks
        return missing * len(table.groups) if missing > 0 else 0

    def allocate(self, request: Request, num_missing: int) -> list[list[int]]:
        """Append `num_missing` blocks, shared evenly by the groups; the new ones per group."""
        table = self._tables[request.request_id]
        per_group = num_missing // len(table.groups)
        blocks = self.pool.allocate(num_missing)
        new = []
        for g, group in enumerate(table.groups):
            part = blocks[g * per_group : (g + 1) * per_group]
            group.extend(part)
            new.append(part)
        return new

    def release_outside_window(self, request: Request) -> None:
        """Free blocks that no token after the computed ones can see."""
        table = self._tables[request.request_id]
        for g, policy in enumerate(self._policies):
            first = min(policy.first_needed_block(request.num_computed_tokens), table.num_blocks)
            start = table.first_live[g]
            if first > start:
                group = table.groups[g]
                self.pool.release(reversed(group[start:first]))
                group[start:first] = [NULL_BLOCK] * (first - start)
                table.first_live[g] = first

    def begin_step(self) -> None:
        """Blocks registered from here on belong to the step that is being built."""
        self._registered_in_step.clear()

    def register_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make the blocks findable that are full once `num_computed_tokens` are computed."""
        table = self._tables[request.request_id]
        num_full = num_computed_tokens // self.block_size
        if not self.enable_caching or num_full <= table.num_registered:
            return
        self._hasher.extend(request, num_full)
        for g, (group, suffix) in enumerate(zip(table.groups, self._suffixes, strict=True)):
            for i in range(max(table.num_registered, table.first_live[g]), num_full):
                self.pool.register(group[i], request.block_hashes[i] + suffix)
                self._registered_in_step.append(group[i])
        table.num_registered = num_full

    def forget_blocks(self, request: Request, num_valid_tokens: int) -> None:
        """Make the request's blocks unfindable whose content after that many tokens is in doubt."""
        table = self._tables[request.request_id]
        for group in table.groups:
            for block in group[num_valid_tokens // self.block_size :]:
                self.pool.forget(block)

    def forget_step(self) -> None:
        """The step was not computed: make all that it registered unfindable."""
        for block in self._registered_in_step:
            self.pool.forget(block)
        self._registered_in_step.clear()

    def free(self, request: Request) -> None:
        """Release all blocks; of the cached ones the request's last is evicted first."""
        table = self._tables.pop(request.request_id)
        for i in reversed(range(table.num_blocks)):
            self.pool.release(group[i] for group in table.groups if group[i])

    def reset(self) -> bool:
        """Forget every cached block; refused (False) while a request holds blocks."""
        if self._tables:
            return False
        self.pool.forget_all()
        return True

    def check_integrity(self) -> None:
        """Raise RuntimeError unless tables and pool agree."""
        ref_counts: dict[int, int] = {}
        for request_id, table in self._tables.items():
            for group, first_live in zip(table.groups, table.first_live, strict=True):
                live = group[first_live:]
                if len(group) != table.num_blocks or any(group[:first_live]) or not all(live):
                    raise RuntimeError(f"block table of {request_id} is malformed")
                for block in live:
                    ref_counts[block] = ref_counts.get(block, 0) + 1
        self.pool.check_integrity(ref_counts)

    def _common_hit_length(self, hashes: list[bytes], num_blocks: int) -> int:
        """Longest prefix valid in all groups: each group shortens it until none does."""
        length, previous = num_blocks, -1
        while length != previous:
            previous = length
            for policy, find in zip(self._policies, self._finders, strict=True):
                length = policy.hit_length(hashes, length, find)
        return length

    def _collect_hit(self, hashes: list[bytes], num_blocks: int, hit: PrefixHit) -> None:
        for g, (policy, find) in enumerate(zip(self._policies, self._finders, strict=True)):
            first = policy.first_needed_block(num_blocks * self.block_size)
            found = [find(digest) or NULL_BLOCK for digest in hashes[first:num_blocks]]
            hit.groups[g] = [NULL_BLOCK] * first + found
            hit.first_live[g] = first

    def _finder(self, suffix: bytes) -> Callable[[bytes], int | None]:
        """How a group looks up a block's digest."""
        find = self.pool.find
        return (lambda digest: find(digest + suffix)) if suffix else find
