// One element at a time, float or bfloat16. Included once per instruction set, inside its target region.

namespace dspark::DSPARK_ISA {

inline float to_float(float x) {
    return x;
}
inline float to_float(Bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

inline void from_float(float x, float* out) {
    *out = x;
}
// To nearest, ties to even; a NaN stays one.
inline void from_float(float x, Bf16* out) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out->bits = static_cast<uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace dspark::DSPARK_ISA
