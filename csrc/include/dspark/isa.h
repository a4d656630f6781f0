// Instruction sets: what this build contains, what this CPU has.
#pragma once

#include <string>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#define DSPARK_X86 1
#else
#define DSPARK_X86 0
#endif

namespace dspark {

enum class Isa { scalar, avx2, avx512 };

// Usable here, best first; never empty.
std::vector<Isa> available_isas();

const char* name(Isa isa);

// The best for an empty name. Throws std::invalid_argument for one that is unknown or not usable here.
Isa select_isa(const std::string& wanted);

}  // namespace dspark
