// 16-bit floats as they lie in memory.
#pragma once

#include <cstdint>

namespace dspark {

struct Bf16 {
    uint16_t bits;
};

struct Half {
    uint16_t bits;
};

}  // namespace dspark
