"""The native module, loaded once, and what it offers. Other code comes in through `ops`.

Everything here raises ValueError that names the argument if a value is not allowed; no wrong value
reaches native code. Arrays are C-contiguous numpy arrays of exactly the dtype given; nothing is
converted. Calls release the GIL while kernels run.

Threads and ISA (state of the process; set both before weights are made)
    set_num_threads(n, cpus=[])      cpus: empty, or one CPU per thread; cpus[0] is only reserved
                                     for the calling thread, which is never pinned
    num_threads() -> int
    isas() -> list[str]              supported on this CPU, best first
    set_isa(name), isa() -> str      weights and programs belong to the ISA they were made under

Weight(kind, group, has_min, n, k)   a packed [n, k] matrix
    kind: "f32" | "f16" | "bf16" (group=0, has_min=False) or "q8" | "q4" (group 16, 32, 64 or 128;
    k a multiple of it): w = scale * q (+ min)
    .pack(row0, src, src_type, n_rows)   rows from raw bytes of a checkpoint, on all threads;
                                     src: any C-contiguous array of exactly
                                     n_rows * source_row_bytes(src_type, k) bytes; src_type: f32 f16
                                     bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k
    .unpack() -> float32 [n, k];  .shape; .kind; .isa; .nbytes

Program(max_tokens, max_logits, max_seqs, activation_bits=16)
    activation_bits: of q8 buffers, 16 or 8; see csrc/cpu/kernels.h.
    .buffer(rows, cols, dtype="f32", offset_bytes=None) -> buffer id
        rows: "tokens" (max_tokens rows) or "logits" (max_logits rows); dtype: "f32" or "q8".
        A buffer takes max_rows * row_bytes(cols, dtype) bytes of the arena, at `offset_bytes` (a
        multiple of 64; lifetimes may share memory) or after everything so far.
    .const(float32 [n] or [rows, cols]) -> const id        copied
    .weight(Weight) -> weight id
    .add(op, args: dict) -> op index
        In `args` a buffer is its id or (id, first column); consts and weights are ids; None or
        absence means "not given". Unknown and missing names are refused.

        embedding   w, out, scale=1.0
        norm        kind ("rms" | "layer"), size, x, weight=None, bias=None, eps, out and/or out_q8
        quantize    size, x, out_q8
        linear      w, x (float kinds) or x_q8 (quantised kinds), bias=None, alpha=1.0,
                    residual=None, out            out = alpha * (x W^T + bias) + residual
        rope_cache  qkv, num_heads, num_kv_heads, head_dim, qk_norm ("none" | "per_head" | "full")
                    with q_norm, k_norm, eps; rot_dim=0 with cos_sin (const [positions, rot_dim]:
                    cos | sin), interleaved=False; group=0, kv_kind ("f32" | "f16" | "bf16"),
                    kv_tensor
        attention   q, num_heads, num_kv_heads, head_dim, scale, softcap=0.0, window=0, sinks=None,
                    group=0, kv_kind, kv_tensor, out
        act         act ("silu" | "gelu" | "gelu_tanh" | "relu" | "relu2"), gated=False, size, x,
                    out and/or out_q8
        add         size, a, b, alpha=1.0, out        out = a + alpha * b
        gather      size, x (token rows), out (logits rows)
        logits      size, x (in place), scale=1.0, softcap=0.0

        Outputs must not share memory with inputs, except: norm, act (float output), add, and
        `residual` of linear.
    .bind_kv(num_blocks, block_size, num_tensors, num_groups)
        Memory for the KV tensors that ops name by `kv_tensor`; zero, touched lazily. Ops on one
        tensor must agree in kv_kind and head shape.
    .run(params, first=0, last=None)
        Ops [first, last). `params` is a dict or an object with: token_ids, positions i32 [T],
        query_start i32 [S + 1], seq_lens i32 [S], logits_indices i32 [R]; with KV also
        slot_mapping: list of i64 [T], block_tables: list of i32 [S, max_blocks], one per group.
        After the first run (or `array`) no buffer or op can be added.
    .array(buffer id) -> view: float32 [rows, cols], or uint8 [rows, row bytes] for q8
    .kv_arrays(kv_tensor) -> (k [blocks, kv heads, head_dim, block_size],
                              v [blocks, kv heads, block_size, head_dim]) views; bf16 as uint16
    .set_timing(on), .timings() -> [(op, calls, seconds)] per op index
    .num_ops, .arena_bytes

row_bytes(cols, dtype="f32") -> int;  source_row_bytes(src_type, k) -> int

Sampling: functions over `logits`, float32 [R, V] with contiguous rows (rows may be strided). Each
row is handled by one thread, alone: its result never depends on the others. "ragged" arguments are
offsets i64 [R + 1] and values of length offsets[R]; row r owns [offsets[r], offsets[r + 1]). Token
ids outside [0, V) are refused.

    argmax(logits) -> i32 [R]        lowest id of the largest logit; -1: the row has a NaN or
                                     nothing but -inf, or +inf
    mask_allowed(logits, offsets, ids)         -inf everywhere else; an empty row is unrestricted
    mask_banned(logits, offsets, ids)          -inf at ids
    apply_bitmask(logits, rows i32 [N], bitmask i32 [N, ceil(V / 32)])
                                     row rows[n] keeps token i if bit i % 32 of word i // 32 is set
    add_bias(logits, offsets, ids, values f32)
    apply_penalties(logits, repetition, frequency, presence: f32 [R], prompt_offsets, prompt_ids,
                    output_offsets, output_ids)
                                     repetition on the tokens of prompt and output, then frequency
                                     and presence on those of the output
    process_logits(logits, temperature, top_k=None, top_p=None, min_p=None)
                                     in place: what `sample` draws from, removed tokens are -inf
    sample(logits, temperature f32 [R], top_k i32 [R] (0 = off), top_p f32 [R], min_p f32 [R],
           seeds i64 [R], positions i64 [R]) -> i32 [R]
                                     temperature 0 is argmax; -1 as in argmax
    logprobs(logits, token_ids i32 [R], top_n) -> (logprobs f32 [R], ranks i32 [R],
                                     top_ids i32 [R, top_n], top_logprobs f32 [R, top_n])
                                     log-softmax; rank: number of logits >= it; ties: lower id first
    token_logprobs(logits, offsets, ids) -> (logprobs f32, ranks i32), one per id
    philox_uniform(seeds i64 [N], positions i64 [N]) -> f64 [N] in [0, 1)
    philox4x32(counter: 4 ints, key: 2 ints) -> 4 ints        10 rounds
"""

try:
    from vllm import _native
except ImportError as error:
    raise ImportError(
        "the native kernels are not built for this Python: run `make native` in a source tree, "
        f"or reinstall the package ({error})"
    ) from error

Program = _native.Program
Weight = _native.Weight

set_num_threads = _native.set_num_threads
num_threads = _native.num_threads
isas = _native.isas
set_isa = _native.set_isa
isa = _native.isa
row_bytes = _native.row_bytes
source_row_bytes = _native.source_row_bytes

argmax = _native.argmax
mask_allowed = _native.mask_allowed
mask_banned = _native.mask_banned
apply_bitmask = _native.apply_bitmask
add_bias = _native.add_bias
apply_penalties = _native.apply_penalties
process_logits = _native.process_logits
sample = _native.sample
logprobs = _native.logprobs
token_logprobs = _native.token_logprobs
philox_uniform = _native.philox_uniform
philox4x32 = _native.philox4x32


def isa_report() -> str:
    """One line for the start-up log: the ISA that runs, the others this CPU has, the threads."""
    others = [name for name in isas() if name != isa()]
    also = f" (also: {', '.join(others)})" if others else ""
    return f"{isa()}{also}, {num_threads()} threads"
