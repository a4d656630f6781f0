// Each operation is a function of a stream handle and keyword arguments that fill its struct: addresses, numbers, and
// dictionaries for the structs inside. A table of fields keeps this small to compile.
#include "register.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "dspark/cuda/ops.h"

namespace py = pybind11;

namespace dspark::cuda {
namespace {

enum class Kind { address, i64, u64, i32, f32, boolean, nested };

struct Field {
    const char* name;
    size_t offset;
    Kind kind;
    const std::vector<Field>* fields;
};

template <typename T>
constexpr Kind kind_of() {
    if (std::is_pointer_v<T>) return Kind::address;
    if (std::is_same_v<T, bool>) return Kind::boolean;
    if (std::is_same_v<T, float>) return Kind::f32;
    if (std::is_same_v<T, int64_t>) return Kind::i64;
    if (std::is_same_v<T, uint64_t>) return Kind::u64;
    if (std::is_enum_v<T>) return Kind::i32;
    return Kind::nested;
}

void fill(unsigned char* base, const std::vector<Field>& fields, const py::dict& values) {
    for (const auto& [key, value] : values) {
        const auto name = py::cast<std::string>(key);
        const Field* field = nullptr;
        for (const Field& candidate : fields) {
            if (name == candidate.name) field = &candidate;
        }
        if (field == nullptr) throw py::type_error("no field " + name);
        unsigned char* at = base + field->offset;
        switch (field->kind) {
            case Kind::address:
                *reinterpret_cast<uintptr_t*>(at) = py::cast<uintptr_t>(value);
                break;
            case Kind::i64:
                *reinterpret_cast<int64_t*>(at) = py::cast<int64_t>(value);
                break;
            case Kind::u64:
                *reinterpret_cast<uint64_t*>(at) = py::cast<uint64_t>(value);
                break;
            case Kind::i32:
                *reinterpret_cast<int32_t*>(at) = py::cast<int32_t>(value);
                break;
            case Kind::f32:
                *reinterpret_cast<float*>(at) = py::cast<float>(value);
                break;
            case Kind::boolean:
                *reinterpret_cast<bool*>(at) = py::cast<bool>(value);
                break;
            case Kind::nested:
                fill(at, *field->fields, py::cast<py::dict>(value));
                break;
        }
    }
}

template <typename Struct>
void operation(py::module_& m, const char* name, int (*launch)(const Struct&, void*),
               const std::vector<Field>& fields) {
    m.def(name, [=, &fields](uintptr_t stream, const py::kwargs& values) {
        Struct s{};
        fill(reinterpret_cast<unsigned char*>(&s), fields, values);
        const int status = launch(s, reinterpret_cast<void*>(stream));
        if (status != 0) throw std::runtime_error(std::string(name) + ": CUDA error " + std::to_string(status));
    });
}

#define FIELD(name)                                                     \
    Field {                                                             \
        #name, offsetof(S, name), kind_of<decltype(S::name)>(), nullptr \
    }
#define NESTED(name, fields)                            \
    Field {                                             \
        #name, offsetof(S, name), Kind::nested, &fields \
    }

const std::vector<Field>& select_candidates_fields() {
    using S = SelectCandidates;
    static const std::vector<Field> fields{FIELD(logits),
                                           FIELD(logits_dtype),
                                           FIELD(batch_stride),
                                           FIELD(position_stride),
                                           FIELD(batch),
                                           FIELD(gamma),
                                           FIELD(vocab),
                                           FIELD(candidates),
                                           FIELD(prefetch_w1),
                                           FIELD(prefetch_w2),
                                           FIELD(prefetch_row_bytes),
                                           FIELD(slices),
                                           FIELD(workspace),
                                           FIELD(ids),
                                           FIELD(values),
                                           FIELD(bad)};
    return fields;
}

const std::vector<Field>& heads_fields() {
    using S = Heads;
    static const std::vector<Field> fields{FIELD(rank),
                                           FIELD(hidden_size),
                                           FIELD(head),
                                           FIELD(activation),
                                           FIELD(first_position),
                                           FIELD(w1),
                                           FIELD(w2),
                                           FIELD(w1_dtype),
                                           FIELD(w2_dtype),
                                           FIELD(w1_stride),
                                           FIELD(w2_stride),
                                           FIELD(joint),
                                           FIELD(joint_dtype),
                                           FIELD(joint_stride),
                                           FIELD(hidden_joint),
                                           FIELD(confidence),
                                           FIELD(confidence_dtype),
                                           FIELD(confidence_bias),
                                           FIELD(confidence_with_markov),
                                           FIELD(hidden),
                                           FIELD(hidden_dtype),
                                           FIELD(hidden_batch_stride),
                                           FIELD(hidden_position_stride)};
    return fields;
}

const std::vector<Field>& sparse_loop_fields() {
    using S = SparseLoop;
    static const std::vector<Field> fields{NESTED(heads, heads_fields()),
                                           FIELD(batch),
                                           FIELD(gamma),
                                           FIELD(candidates),
                                           FIELD(gathered),
                                           FIELD(ids),
                                           FIELD(values),
                                           FIELD(bad),
                                           FIELD(anchors),
                                           FIELD(temperatures),
                                           FIELD(seed),
                                           FIELD(streams),
                                           FIELD(rounds),
                                           FIELD(top_k),
                                           FIELD(top_p),
                                           FIELD(mask),
                                           FIELD(mask_batch_stride),
                                           FIELD(mask_position_stride),
                                           FIELD(tokens),
                                           FIELD(usable),
                                           FIELD(probs),
                                           FIELD(confidences)};
    return fields;
}

const std::vector<Field>& dense_rows_fields() {
    using S = DenseRows;
    static const std::vector<Field> fields{
        FIELD(logits),   FIELD(logits_dtype), FIELD(batch_stride), FIELD(position_stride), FIELD(w2),
        FIELD(w2_dtype), FIELD(w2_stride),    FIELD(rank),         FIELD(first_position),  FIELD(latents),
        FIELD(shifts),   FIELD(log_sums),     FIELD(token_probs)};
    return fields;
}

const std::vector<Field>& dense_loop_fields() {
    using S = DenseLoop;
    static const std::vector<Field> fields{NESTED(heads, heads_fields()),
                                           FIELD(batch),
                                           FIELD(gamma),
                                           FIELD(vocab),
                                           NESTED(rows, dense_rows_fields()),
                                           FIELD(anchors),
                                           FIELD(temperatures),
                                           FIELD(seed),
                                           FIELD(streams),
                                           FIELD(rounds),
                                           FIELD(blocks),
                                           FIELD(workspace),
                                           FIELD(tokens),
                                           FIELD(usable),
                                           FIELD(confidences)};
    return fields;
}

const std::vector<Field>& schedule_fields() {
    using S = Schedule;
    static const std::vector<Field> fields{
        FIELD(requests),      FIELD(gamma),   FIELD(confidence), FIELD(confidence_stride),
        FIELD(limits),        FIELD(seconds), FIELD(lagged),     FIELD(lagged_stride),
        FIELD(lagged_limits), FIELD(lengths), FIELD(admitted)};
    return fields;
}

const std::vector<Field>& accept_fields() {
    using S = Accept;
    static const std::vector<Field> fields{FIELD(batch),
                                           FIELD(gamma),
                                           FIELD(vocab),
                                           FIELD(rows),
                                           FIELD(logits),
                                           FIELD(logits_dtype),
                                           FIELD(logits_stride),
                                           FIELD(probabilities),
                                           FIELD(probabilities_stride),
                                           FIELD(start),
                                           FIELD(lengths),
                                           FIELD(drafted),
                                           FIELD(usable),
                                           FIELD(temperatures),
                                           FIELD(seed),
                                           FIELD(streams),
                                           FIELD(rounds),
                                           FIELD(form),
                                           FIELD(ids),
                                           FIELD(probs),
                                           FIELD(candidates),
                                           NESTED(dense, dense_rows_fields()),
                                           FIELD(slices),
                                           FIELD(workspace),
                                           FIELD(tokens),
                                           FIELD(counts),
                                           FIELD(last)};
    return fields;
}

}  // namespace

void register_ops(py::module_& m) {
    operation(m, "select_candidates", &select_candidates, select_candidates_fields());
    operation(m, "sparse_loop", &sparse_loop, sparse_loop_fields());
    operation(m, "dense_loop", &dense_loop, dense_loop_fields());
    operation(m, "schedule", &schedule, schedule_fields());
    operation(m, "accept", &accept, accept_fields());
    m.def("select_candidates_slices", &select_candidates_slices);
    m.def("select_candidates_workspace", &select_candidates_workspace);
    m.def("dense_loop_blocks", &dense_loop_blocks);
    m.def("dense_loop_workspace", &dense_loop_workspace);
    m.def("accept_slices", &accept_slices);
    m.def("accept_workspace", &accept_workspace);
}

}  // namespace dspark::cuda
