// A linear layer over few rows: out = x weightT + bias, where a library's product is not made for so few.
//
// Compiled when an engine starts, with the formats as macros:
//   INPUT, WEIGHT, OUTPUT   float, f16 or b16: x [rows, inputs], weight [outputs, inputs], out and bias [rows, outputs]
// Stands behind kernel_base.cu. Sums are fp32. `inputs` is a multiple of 8; x and weight start at multiples of 16 bytes.

template <class T> struct __align__(16) line { T v[16 / sizeof(T)]; };

#ifdef __CUDACC__
// Past the first cache, which does not see what other blocks have written.
__device__ __forceinline__ float load_written(const float* at) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(at));
    return value;
}
#if __CUDA_ARCH__ >= 800
#define COPIES_AHEAD
template <class T> __device__ __forceinline__ void copy_ahead(T* shared, const T* global, bool inside) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(inside ? 16 : 0));
}
__device__ __forceinline__ void end_of_stage() { asm volatile("cp.async.commit_group;"); }
template <int LATER> __device__ __forceinline__ void wait_for_stage() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
#endif
#endif

// What one step of a block needs of a matrix [rows, inputs]: HEIGHT rows from `first` on, WIDTH columns, zeros outside. In
// shared memory a row is 16 bytes longer, so that the rows that a warp reads together lie in different banks.
template <class T, int HEIGHT, int WIDTH, int THREADS> struct Slab {
    static constexpr int EACH = 16 / sizeof(T), ACROSS = WIDTH / EACH, LINES = HEIGHT * ACROSS;
    static constexpr int COUNT = (LINES + THREADS - 1) / THREADS, STRIDE = WIDTH + EACH, SIZE = HEIGHT * STRIDE;
    const T* matrix;
    int first, rows, inputs, to;

#ifdef COPIES_AHEAD
    __device__ __forceinline__ void copy(T* shared, int from) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int index = i * THREADS + threadIdx.x, row = index / ACROSS, column = index % ACROSS * EACH;
            if (LINES % THREADS != 0 && index >= LINES) return;
            bool inside = first + row < rows && from + column < to;
            copy_ahead(
                shared + row * STRIDE + column, inside ? matrix + (size_t)(first + row) * inputs + from + column : matrix,
                inside
            );
        }
    }
#else
    line<T> lines[COUNT];

    __device__ __forceinline__ void load(int from) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int index = i * THREADS + threadIdx.x, row = index / ACROSS, column = index % ACROSS * EACH;
            bool inside = (LINES % THREADS == 0 || index < LINES) && first + row < rows && from + column < to;
            if (inside) lines[i] = *(const line<T>*)(matrix + (size_t)(first + row) * inputs + from + column);
            else
                for (int j = 0; j < EACH; ++j) narrow(0.0f, lines[i].v[j]);
        }
    }
    __device__ __forceinline__ void store(T* shared) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int index = i * THREADS + threadIdx.x;
            if (LINES % THREADS != 0 && index >= LINES) return;
            *(line<T>*)(shared + index / ACROSS * STRIDE + index % ACROSS * EACH) = lines[i];
        }
    }
#endif
};

// Adds the products of DEEP inputs. Thread (high, across) has rows high, high + HIGH ... and outputs likewise.
template <int HIGH, int ACROSS, int DEEP, int TALL, int WIDE, int X_STRIDE, int W_STRIDE>
__device__ __forceinline__ void multiply(
    const INPUT* xs, const WEIGHT* ws, int high, int across, float (&sums)[TALL][WIDE]
) {
    constexpr int TOGETHER = TALL * WIDE >= 8 ? 2 : DEEP / 4;
#pragma unroll TOGETHER
    for (int k = 0; k < DEEP; k += 4) {
        float right[WIDE][4];
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            four<WEIGHT> piece = *(const four<WEIGHT>*)(ws + (across + j * ACROSS) * W_STRIDE + k);
#pragma unroll
            for (int c = 0; c < 4; ++c) right[j][c] = widen(piece.v[c]);
        }
#pragma unroll
        for (int i = 0; i < TALL; ++i) {
            four<INPUT> piece = *(const four<INPUT>*)(xs + (high + i * HIGH) * X_STRIDE + k);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                float left = widen(piece.v[c]);
#pragma unroll
                for (int j = 0; j < WIDE; ++j) sums[i][j] += left * right[j][c];
            }
        }
    }
}

// The sums of all blocks of a tile, in their order; false in all blocks but the last to come.
template <int COUNT, int THREADS>
__device__ __forceinline__ bool add_up(float* sums, float* partial, unsigned* counters, int shares) {
    constexpr int TOGETHER = COUNT < 32 ? 32 / COUNT : 1;
    __shared__ bool is_last;
    partial += (size_t)blockIdx.x * shares * COUNT * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) partial[(blockIdx.y * COUNT + i) * THREADS] = sums[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counters + blockIdx.x, 1u) == (unsigned)shares - 1;
        if (is_last) counters[blockIdx.x] = 0;
    }
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = 0.0f;
    for (int share = 0; share < shares; share += TOGETHER) {
        float found[TOGETHER][COUNT];
#pragma unroll
        for (int next = 0; next < TOGETHER; ++next)
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                found[next][i] =
                    share + next < shares ? load_written(partial + ((share + next) * COUNT + i) * THREADS) : 0.0f;
#pragma unroll
        for (int next = 0; next < TOGETHER; ++next)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sums[i] += found[next][i];
    }
    return true;
}

// A block computes ROWS x OUTS numbers, a thread TALL x WIDE of them, DEEP inputs a step. blockIdx.x is the tile, rows
// first; blockIdx.y takes `share` of the inputs, a multiple of DEEP.
template <int ROWS, int OUTS, int DEEP, int TALL, int WIDE, int STAGES>
__device__ __forceinline__ void linear(
    const INPUT* x, const WEIGHT* weight, const OUTPUT* bias, OUTPUT* out, float* partial, unsigned* counters, int rows,
    int outputs, int inputs, int share, int shares
) {
    constexpr int HIGH = ROWS / TALL, ACROSS = OUTS / WIDE, THREADS = HIGH * ACROSS;
    constexpr int WARP_HIGH = HIGH < 4 ? HIGH : 4, WARP_ACROSS = 32 / WARP_HIGH, WARPS_ACROSS = ACROSS / WARP_ACROSS;
    using XSlab = Slab<INPUT, ROWS, DEEP, THREADS>;
    using WSlab = Slab<WEIGHT, OUTS, DEEP, THREADS>;
#ifdef COPIES_AHEAD
    constexpr int KEPT = STAGES;
#else
    constexpr int KEPT = 2;
#endif
    __shared__ __align__(16) INPUT xs[KEPT][XSlab::SIZE];
    __shared__ __align__(16) WEIGHT ws[KEPT][WSlab::SIZE];
    int row_tiles = (rows + ROWS - 1) / ROWS;
    int first_row = blockIdx.x % row_tiles * ROWS, first_out = blockIdx.x / row_tiles * OUTS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Neighbours read the same row of one matrix, those two apart of the other: shared memory serves such lanes together.
    int high = warp / WARPS_ACROSS * WARP_HIGH + (WARP_HIGH == 4 ? lane / 16 * 2 : 0) + lane % 2;
    int across = warp % WARPS_ACROSS * WARP_ACROSS + lane / 2 % WARP_ACROSS;
    int from = blockIdx.y * share, to = from + share < inputs ? from + share : inputs;
    int steps = (to - from + DEEP - 1) / DEEP;
    XSlab x_slab{x, first_row, rows, inputs, to};
    WSlab w_slab{weight, first_out, outputs, inputs, to};
    float sums[TALL][WIDE] = {};
#ifdef COPIES_AHEAD
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) {
            x_slab.copy(xs[stage], from + stage * DEEP);
            w_slab.copy(ws[stage], from + stage * DEEP);
        }
        end_of_stage();
    }
    for (int step = 0, stage = 0, free = STAGES - 1; step < steps; ++step) {
        wait_for_stage<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) {
            x_slab.copy(xs[free], from + (step + STAGES - 1) * DEEP);
            w_slab.copy(ws[free], from + (step + STAGES - 1) * DEEP);
        }
        end_of_stage();
        multiply<HIGH, ACROSS, DEEP, TALL, WIDE, XSlab::STRIDE, WSlab::STRIDE>(xs[stage], ws[stage], high, across, sums);
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#else
    x_slab.load(from);
    w_slab.load(from);
    x_slab.store(xs[0]);
    w_slab.store(ws[0]);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        bool more = step + 1 < steps;
        if (more) {
            x_slab.load(from + (step + 1) * DEEP);
            w_slab.load(from + (step + 1) * DEEP);
        }
        multiply<HIGH, ACROSS, DEEP, TALL, WIDE, XSlab::STRIDE, WSlab::STRIDE>(
            xs[step % 2], ws[step % 2], high, across, sums
        );
        if (more) {
            x_slab.store(xs[(step + 1) % 2]);
            w_slab.store(ws[(step + 1) % 2]);
        }
        __syncthreads();
    }
#endif
    if (shares > 1 && !add_up<TALL * WIDE, THREADS>(sums[0], partial, counters, shares)) return;
#pragma unroll
    for (int i = 0; i < TALL; ++i) {
        int row = first_row + high + i * HIGH;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            int column = first_out + across + j * ACROSS;
            if (row < rows && column < outputs)
                narrow(sums[i][j] + (bias ? widen(bias[column]) : 0.0f), out[(size_t)row * outputs + column]);
        }
    }
}

// Its last two numbers: stages of shared memory that are filled ahead, blocks that a multiprocessor holds at once.
#define LINEAR(NAME, ROWS, OUTS, DEEP, TALL, WIDE, STAGES, AT_ONCE)                                                     \
    extern "C" __global__ void __launch_bounds__(ROWS / TALL * (OUTS / WIDE), AT_ONCE) NAME(                            \
        const INPUT* x, const WEIGHT* weight, const OUTPUT* bias, OUTPUT* out, float* partial, unsigned* counters,      \
        int rows, int outputs, int inputs, int share, int shares                                                        \
    ) {                                                                                                                 \
        linear<ROWS, OUTS, DEEP, TALL, WIDE, STAGES>(                                                                   \
            x, weight, bias, out, partial, counters, rows, outputs, inputs, share, shares                               \
        );                                                                                                              \
    }

LINEAR(linear_8x64, 8, 64, 32, 4, 1, 4, 4)
LINEAR(linear_8x64_deep, 8, 64, 64, 4, 1, 2, 4)
LINEAR(linear_16x64, 16, 64, 32, 4, 2, 3, 4)
LINEAR(linear_16x32, 16, 32, 32, 4, 1, 4, 4)
LINEAR(linear_32x64, 32, 64, 32, 4, 4, 3, 4)
LINEAR(linear_32x32, 32, 32, 32, 4, 2, 4, 4)
LINEAR(linear_64x64, 64, 64, 32, 8, 4, 2, 4)
