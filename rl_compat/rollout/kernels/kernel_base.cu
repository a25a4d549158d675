// What the kernels of the rollout share: number formats, vectors and sums over a warp.
//
// No header is needed, so that no CUDA toolkit has to be there. Arithmetic is fp32 whatever is stored.

#define FULL_WARP 0xffffffffu
#define LOWEST -3.402823466e38f

struct f16 { unsigned short bits; };
struct b16 { unsigned short bits; };
template <class T> struct __align__(4 * sizeof(T)) four { T v[4]; };

#ifdef __CUDACC__
__device__ __forceinline__ float widen(f16 value) {
    float wide;
    asm("{cvt.f32.f16 %0, %1;}" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ __forceinline__ void narrow(float value, f16& out) {
    asm("{cvt.rn.f16.f32 %0, %1;}" : "=h"(out.bits) : "f"(value));
}
#endif
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(b16 value) { return __uint_as_float((unsigned)value.bits << 16); }
__device__ __forceinline__ void narrow(float value, float& out) { out = value; }
__device__ __forceinline__ void narrow(float value, b16& out) {
    unsigned bits = __float_as_uint(value);
    out.bits = value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__device__ __forceinline__ float warp_sum(float value) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}
__device__ __forceinline__ float warp_max(float value) {
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}
