#include "dspark/isa.h"

#include <stdexcept>

namespace dspark {

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
#if DSPARK_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        isas.push_back(Isa::avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        isas.push_back(Isa::avx2);
    }
#endif
    isas.push_back(Isa::scalar);
    return isas;
}

const char* name(Isa isa) {
    switch (isa) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        default:
            return "scalar";
    }
}

Isa select_isa(const std::string& wanted) {
    static const std::vector<Isa> isas = available_isas();
    if (wanted.empty()) return isas.front();
    std::string known;
    for (Isa isa : isas) {
        if (wanted == name(isa)) return isa;
        known += std::string(known.empty() ? "" : ", ") + name(isa);
    }
    throw std::invalid_argument("isa: \"" + wanted + "\" is not usable here; there is " + known);
}

}  // namespace dspark
