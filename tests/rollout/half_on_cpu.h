// fp16 with the compiler's own type.
static inline float widen(f16 value) {
    _Float16 half;
    std::memcpy(&half, &value, 2);
    return (float)half;
}
static inline void narrow(float value, f16& out) {
    _Float16 half = (_Float16)value;
    std::memcpy(&out, &half, 2);
}
