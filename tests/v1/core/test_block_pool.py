"""The block pool against a model made of plain lists and dicts."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm.v1.core.block_pool import BlockPool

NUM_BLOCKS = 9


class PoolMachine(RuleBasedStateMachine):
    """Free blocks are a list, in order of reuse; users are counted in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.free = list(range(1, NUM_BLOCKS))
        self.users: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}

    @rule(data=st.data())
    def allocate(self, data) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        expected, self.free = self.free[:count], self.free[count:]
        assert self.pool.allocate(count) == expected
        for block in expected:
            self.users[block] = 1
            self.keys.pop(block, None)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def release(self, data) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.users)), unique=True))
        self.pool.release(blocks)
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.free.insert(len(self.free) if block in self.keys else 0, block)

    @precondition(lambda self: self.users or self.keys)
    @rule(data=st.data())
    def share(self, data) -> None:
        known = sorted(self.users.keys() | self.keys.keys())
        for block in data.draw(st.lists(st.sampled_from(known), max_size=4)):
            self.pool.share([block])
            self.users[block] = self.users.get(block, 0) + 1
            if block in self.free:
                self.free.remove(block)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def register(self, data, key) -> None:
        block = data.draw(st.sampled_from(sorted(self.users)))
        self.pool.register(block, key)
        if block not in self.keys and key not in self.keys.values():
            self.keys[block] = key

    @rule(block=st.integers(1, NUM_BLOCKS - 1))
    def forget(self, block) -> None:
        self.pool.forget(block)
        self.keys.pop(block, None)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.keys.clear()

    @invariant()
    def same_as_model(self) -> None:
        self.pool.check_integrity(self.users)
        found = {block: key for key in (b"a", b"b", b"c", b"d")
                 if (block := self.pool.find(key)) is not None}  # fmt: skip
        assert found == self.keys
        assert self.pool.num_cached == len(self.keys)
        assert (self.pool.num_free, self.pool.num_used) == (len(self.free), len(self.users))
        assert [self.pool.is_free(b) for b in range(1, NUM_BLOCKS)] == [
            b in self.free for b in range(1, NUM_BLOCKS)
        ]


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPoolAgainstModel = PoolMachine.TestCase


def test_least_recently_released_block_is_evicted_first():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for block, key in zip(blocks, (b"x", b"y", b"z"), strict=True):
        pool.register(block, key)
    pool.release([blocks[1]])
    pool.release([blocks[2], blocks[0]])
    assert pool.allocate(1) == [blocks[1]] and pool.find(b"y") is None
    assert pool.find(b"x") == blocks[0] and pool.find(b"z") == blocks[2]
    assert pool.allocate(1) == [blocks[2]]


def test_blocks_that_hold_nothing_are_reused_before_cached_ones():
    pool = BlockPool(4)
    cached, plain, _ = pool.allocate(3)
    pool.register(cached, b"x")
    pool.release([cached, plain])
    assert pool.allocate(1) == [plain]
    assert pool.find(b"x") == cached


def test_misuse_is_refused():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    with pytest.raises(RuntimeError, match="1 blocks asked for, 0 are free"):
        pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="not in use"):
        pool.release(blocks[:1])
    with pytest.raises(RuntimeError, match="block 0"):
        pool.release([0])
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._ref_counts.__setitem__(1, 2),
        lambda pool: pool._next.__setitem__(3, 3),
        lambda pool: pool._prev.__setitem__(4, 2),
        lambda pool: setattr(pool, "num_free", 2),
        lambda pool: pool._cached.__setitem__(b"y", 3),
        lambda pool: pool._keys.__setitem__(3, b"y"),
    ],
)
def test_check_integrity_sees_damage(damage):
    pool = BlockPool(6)
    block = pool.allocate(1)[0]
    pool.register(block, b"x")
    pool.check_integrity({block: 1})
    damage(pool)
    with pytest.raises(RuntimeError, match="block pool"):
        pool.check_integrity({block: 1})
