"""All KV blocks of one engine: who uses them, which are free, which can be found by hash.

A block is an int. Block 0 is reserved: it is the null block of block tables and the sentinel of
the free list. A free block keeps its hash until it is reused, so *free* means *evictable*.

    free list:  [no hash, reused first] ... [least recently used] ... [most recently used]

Blocks without a hash hold nothing worth keeping: they go to the front, which also keeps the
number of touched memory pages small. Invariant: used + free = all, a hash names one block.
"""

from array import array
from collections.abc import Iterable


class BlockPool:
    """Reference counts, an intrusive doubly linked free list, and the map hash -> block."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; it must be at least 2 (0 is reserved).")
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._ref_counts = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        # Index 0 is the list head: _next[0] is the first free block, _prev[0] the last.
        self._next = array("i", range(1, num_blocks + 1))
        self._prev = array("i", range(-1, num_blocks - 1))
        self._next[num_blocks - 1] = 0
        self._prev[0] = num_blocks - 1

    @property
    def num_used(self) -> int:
        """Blocks that a request holds."""
        return self.num_blocks - 1 - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by hash, in use or free."""
        return len(self._cached)

    def is_free(self, block: int) -> bool:
        """True if no request holds the block."""
        return self._ref_counts[block] == 0

    def find(self, key: bytes) -> int | None:
        """The block registered under `key`."""
        return self._cached.get(key)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the free list; their old content is forgotten."""
        if num_blocks > self.num_free:
            raise RuntimeError(f"{num_blocks} blocks asked for, {self.num_free} are free")
        following, block, taken = self._next, 0, []
        for _ in range(num_blocks):
            block = following[block]
            taken.append(block)
            self._ref_counts[block] = 1
            self.forget(block)
        after = following[block]
        following[0], self._prev[after] = after, 0
        self.num_free -= num_blocks
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a user to each block, free or not."""
        for block in blocks:
            if not self._ref_counts[block]:
                before, after = self._prev[block], self._next[block]
                self._next[before], self._prev[after] = after, before
                self.num_free -= 1
            self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a user of each block; of those that become free the first is evicted first."""
        for block in blocks:
            count = self._ref_counts[block] - 1
            if count < 0 or not block:
                raise RuntimeError(f"block {block} released but not in use")
            self._ref_counts[block] = count
            if not count:
                before = 0 if self._keys[block] is None else self._prev[0]
                after = self._next[before]
                self._next[before] = self._prev[after] = block
                self._prev[block], self._next[block] = before, after
                self.num_free += 1

    def register(self, block: int, key: bytes) -> None:
        """Make a block in use findable. The first block with a key keeps it."""
        if self._keys[block] is None and self._cached.setdefault(key, block) == block:
            self._keys[block] = key

    def forget(self, block: int) -> None:
        """Make the block unfindable, whether it is in use or free."""
        key = self._keys[block]
        if key is not None:
            del self._cached[key]
            self._keys[block] = None

    def forget_all(self) -> None:
        """Drop every hash."""
        self._cached.clear()
        self._keys = [None] * self.num_blocks

    def check_integrity(self, ref_counts: dict[int, int]) -> None:
        """Raise RuntimeError unless the pool is consistent and `ref_counts` are its users."""
        free: list[int] = []
        block = self._next[0]
        while block:
            _require(self._prev[block] == (free[-1] if free else 0), "free list links differ")
            free.append(block)
            _require(len(free) <= self.num_blocks, "free list is a cycle")
            block = self._next[block]
        _require(self._prev[0] == (free[-1] if free else 0), "end of the free list is wrong")
        _require(len(set(free)) == len(free) == self.num_free, "num_free is wrong")
        used = {b: count for b, count in enumerate(self._ref_counts) if count}
        _require(used == ref_counts, "reference counts differ from the block tables")
        _require(not used.keys() & set(free), "a block is both free and used")
        _require(len(used) + len(free) == self.num_blocks - 1, "free + used != total")
        keys = {key: b for b, key in enumerate(self._keys) if key is not None}
        _require(keys == self._cached, "hash map and block hashes differ")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(f"block pool: {message}")
