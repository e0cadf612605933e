// The kernels of one ISA, as the table that dispatch.cpp hands out.
#include "isa.h"

namespace vllm {
namespace VLLM_ISA {

extern const KernelTable kTable;
const KernelTable kTable = {
    VLLM_ISA_NAME, embedding, norm,         quantize,  linear,      rope_cache, attention,
    attention_combine, act,   add,          gather,    logits,      packed_bytes, pack_rows,
    unpack_rows,   sample,
};

}  // namespace VLLM_ISA
}  // namespace vllm
