// The small operations of a decoder layer, one kernel each, for one new token per sequence.
//
// Compiled when an engine starts, with the model's shape as macros:
//   STREAM, NORM, COMPUTE   float, f16 or b16: residual stream, norm weights, matrix products and cache
//   HEAD_DIM, GROUP         numbers in a head, query heads of a key head
// Stands behind kernel_base.cu.

#ifndef ATTEND_THREADS
#define ATTEND_THREADS 256
#endif

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float parts[32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) total += parts[warp];
    return total;
}

// ---------------------------------------------------------------- norms: one block a row

#define HELD 8

// The numbers of a row that a thread has in registers: every blockDim.x-th, up to HELD of them; the rest is read again.
struct Row {
    float values[HELD], weights[HELD];

    // The sum of the squares of all numbers of the row that are this thread's; `number` gives the i-th.
    template <class NUMBER>
    __device__ __forceinline__ float load(const NORM* weight, int hidden, float offset, NUMBER number) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            int i = threadIdx.x + j * blockDim.x;
            weights[j] = i < hidden ? widen(weight[i]) + offset : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            int i = threadIdx.x + j * blockDim.x;
            values[j] = i < hidden ? number(i) : 0.0f;
            sum += values[j] * values[j];
        }
        for (int i = threadIdx.x + HELD * blockDim.x; i < hidden; i += blockDim.x) {
            float value = number(i);
            sum += value * value;
        }
        return sum;
    }
};

template <class IN, class OUT>
__device__ __forceinline__ void norm_row(
    const Row& row, const IN* states, const NORM* weight, OUT* out, int hidden, float eps, float offset, float sum
) {
    float scale = rsqrtf(block_sum(sum) / hidden + eps);
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        int i = threadIdx.x + j * blockDim.x;
        if (i < hidden) narrow(row.values[j] * scale * row.weights[j], out[i]);
    }
    for (int i = threadIdx.x + HELD * blockDim.x; i < hidden; i += blockDim.x)
        narrow(widen(states[i]) * scale * (widen(weight[i]) + offset), out[i]);
}

// stream += added, unless that is null. Returns the sum, as the stream can hold it.
__device__ __forceinline__ float add(STREAM* stream, const COMPUTE* added, int i) {
    float value = widen(stream[i]);
    if (added) {
        narrow(value + widen(added[i]), stream[i]);
        value = widen(stream[i]);
    }
    return value;
}

// stream += added, unless that is null; out = the norm of the stream, fp32 if `wide`.
extern "C" __global__ void add_norm(
    STREAM* stream, const COMPUTE* added, const NORM* weight, void* out, int hidden, float eps, float offset, int wide
) {
    size_t start = (size_t)blockIdx.x * hidden;
    stream += start;
    if (added) added += start;
    Row row;
    float sum = row.load(weight, hidden, offset, [&](int i) { return add(stream, added, i); });
    if (wide) norm_row(row, stream, weight, (float*)out + start, hidden, eps, offset, sum);
    else norm_row(row, stream, weight, (COMPUTE*)out + start, hidden, eps, offset, sum);
}

extern "C" __global__ void plain_norm(
    const COMPUTE* states, const NORM* weight, COMPUTE* out, int hidden, float eps, float offset
) {
    size_t start = (size_t)blockIdx.x * hidden;
    states += start;
    Row row;
    float sum = row.load(weight, hidden, offset, [&](int i) { return widen(states[i]); });
    norm_row(row, states, weight, out + start, hidden, eps, offset, sum);
}

// ---------------------------------------------------------------- rotation and cache write: one warp a head

// qkv [N, (heads + 2 kv_heads) HEAD_DIM]; queries [N, heads, HEAD_DIM]; cache [slots, kv_heads, capacity, HEAD_DIM].
// Norm weights of heads may be null. The first 2 * pairs numbers of a head turn, half against half.
extern "C" __global__ void rotate_and_store(
    const COMPUTE* qkv, const long long* positions, const float* cosines, const float* sines, const NORM* query_norm,
    const NORM* key_norm, COMPUTE* queries, COMPUTE* keys, COMPUTE* values, int kv_heads, int capacity, int pairs,
    float eps, float offset
) {
    int heads = kv_heads * GROUP, total = heads + 2 * kv_heads;
    int head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= total) return;
    size_t row = blockIdx.x, position = positions[row];
    const COMPUTE* from = qkv + (row * total + head) * HEAD_DIM;
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    COMPUTE* to = queries + (row * heads + head) * HEAD_DIM;
    if (!is_query) {
        int kv_head = (head - heads) % kv_heads;
        to = (is_value ? values : keys) + ((row * kv_heads + kv_head) * capacity + position) * HEAD_DIM;
    }
    const NORM* weight = is_query ? query_norm : is_value ? nullptr : key_norm;
    float scale = 1.0f;
    if (weight) {
        float sum = 0.0f;
        for (int i = lane; i < HEAD_DIM; i += 32) sum += widen(from[i]) * widen(from[i]);
        scale = rsqrtf(warp_sum(sum) / HEAD_DIM + eps);
    }
    if (is_value) pairs = 0;
    for (int i = lane; i < pairs; i += 32) {
        float first = widen(from[i]) * scale, second = widen(from[i + pairs]) * scale;
        if (weight) {
            first *= widen(weight[i]) + offset;
            second *= widen(weight[i + pairs]) + offset;
        }
        float cosine = cosines[position * pairs + i], sine = sines[position * pairs + i];
        narrow(first * cosine - second * sine, to[i]);
        narrow(second * cosine + first * sine, to[i + pairs]);
    }
    for (int i = 2 * pairs + lane; i < HEAD_DIM; i += 32)
        narrow(widen(from[i]) * scale * (weight ? widen(weight[i]) + offset : 1.0f), to[i]);
}

// ---------------------------------------------------------------- gated activation

__device__ __forceinline__ float activated(float x, int kind) {
    if (kind == 0) return x / (1.0f + expf(-x));
    if (kind == 1) return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    if (kind == 2) return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    return fmaxf(x, 0.0f);
}

// gate_up [N, 2 inner] to [N, inner]. Kinds: 0 silu, 1 gelu with tanh, 2 gelu, 3 relu.
extern "C" __global__ void activate(const COMPUTE* gate_up, COMPUTE* out, int inner, int kind) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= inner) return;
    const COMPUTE* row = gate_up + (size_t)blockIdx.y * 2 * inner;
    narrow(activated(widen(row[i]), kind) * widen(row[inner + i]), out[(size_t)blockIdx.y * inner + i]);
}

// ---------------------------------------------------------------- attention: one block a key head of a sequence

#if HEAD_DIM % 32 == 0 && HEAD_DIM <= ATTEND_THREADS && GROUP <= 16
#define TILE ATTEND_THREADS
// Four numbers of a value to a thread, PARTS groups of threads that take four keys at a time.
#define COLUMNS (HEAD_DIM / 4)
#define PARTS (ATTEND_THREADS / COLUMNS)
// Queries whose sums over all parts fit into shared memory at once.
#define QUERIES_AT_ONCE (GROUP < 4 ? GROUP : 4)
#define MEETING_NUMBERS (QUERIES_AT_ONCE * 4 * ATTEND_THREADS)
#define SHARED_NUMBERS (GROUP * TILE > MEETING_NUMBERS ? GROUP * TILE : MEETING_NUMBERS)

// Scores of a tile of keys: eight lanes share a key, each reads four numbers at a time.
__device__ __forceinline__ void score_tile(const float* query, const COMPUTE* keys, float* scores, int count) {
    int lane = threadIdx.x % 8;
#pragma unroll 4
    for (int base = 0; base < count; base += ATTEND_THREADS / 8) {
        int key = base + threadIdx.x / 8;
        const COMPUTE* row = keys + (size_t)(key < count ? key : count - 1) * HEAD_DIM;
        float dots[GROUP] = {};
#pragma unroll
        for (int i = lane * 4; i < HEAD_DIM; i += 32) {
            four<COMPUTE> k = *(const four<COMPUTE>*)(row + i);
            float k0 = widen(k.v[0]), k1 = widen(k.v[1]), k2 = widen(k.v[2]), k3 = widen(k.v[3]);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                four<float> q = *(const four<float>*)(query + g * HEAD_DIM + i);
                dots[g] += q.v[0] * k0 + q.v[1] * k1 + q.v[2] * k2 + q.v[3] * k3;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            for (int step = 4; step > 0; step >>= 1) dots[g] += __shfl_xor_sync(FULL_WARP, dots[g], step);
            if (key < count && lane == g % 8) scores[g * TILE + key] = dots[g];
        }
    }
}

// Scores to weights exp(score - highest so far), a warp a query; what was summed before shrinks by `shrink`.
__device__ __forceinline__ void weigh_tile(
    float* scores, int count, float softcap, float* highest, float* sums, float* shrink
) {
    int lane = threadIdx.x % 32, padded = (count + 3) / 4 * 4;
    for (int g = threadIdx.x / 32; g < GROUP; g += ATTEND_THREADS / 32) {
        float* row = scores + g * TILE;
        float top = LOWEST, sum = 0.0f;
        for (int i = lane; i < count; i += 32) {
            if (softcap > 0.0f) row[i] = softcap * tanhf(row[i] / softcap);
            top = fmaxf(top, row[i]);
        }
        top = fmaxf(warp_max(top), highest[g]);
        for (int i = lane; i < padded; i += 32) {
            row[i] = i < count ? expf(row[i] - top) : 0.0f;
            sum += row[i];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            shrink[g] = expf(highest[g] - top);
            sums[g] = sums[g] * shrink[g] + sum;
            highest[g] = top;
        }
    }
}

// Four values from `first` on, four numbers of each; in place of those from `count` on, which weigh nothing, the last.
__device__ __forceinline__ void load_values(const COMPUTE* values, int first, int count, four<COMPUTE> (&rows)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        rows[i] = *(const four<COMPUTE>*)(values + (size_t)(first + i < count ? first + i : count - 1) * HEAD_DIM);
}

__device__ __forceinline__ void add_values(
    const four<COMPUTE> (&rows)[4], const float* weights, float (&context)[GROUP][4]
) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        four<float> w = *(const four<float>*)(weights + g * TILE);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) context[g][c] += w.v[i] * widen(rows[i].v[c]);
    }
}

// Queries [N, kv_heads * GROUP, HEAD_DIM] over positions 0 to positions[n] of cache row n, or the last `window` of
// them when that is not 0. out is like queries.
extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) attend(
    const COMPUTE* queries, const COMPUTE* keys, const COMPUTE* values, const long long* positions, COMPUTE* out,
    int kv_heads, int capacity, int window, float scaling, float softcap
) {
    __shared__ __align__(16) float query[GROUP * HEAD_DIM];
    __shared__ __align__(16) float scores[SHARED_NUMBERS];
    __shared__ float highest[GROUP], sums[GROUP], shrink[GROUP];
    size_t head = (size_t)blockIdx.y * kv_heads + blockIdx.x;
    int end = (int)positions[blockIdx.y] + 1;
    int begin = window > 0 && end > window ? end - window : 0;
    queries += head * GROUP * HEAD_DIM;
    keys += head * capacity * HEAD_DIM;
    values += head * capacity * HEAD_DIM;
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += ATTEND_THREADS) query[i] = widen(queries[i]) * scaling;
    if (threadIdx.x < GROUP) {
        highest[threadIdx.x] = LOWEST;
        sums[threadIdx.x] = 0.0f;
    }
    __syncthreads();
    int column = threadIdx.x % COLUMNS * 4, part = threadIdx.x / COLUMNS;
    float context[GROUP][4] = {};
    for (int tile = begin; tile < end; tile += TILE) {
        int count = end - tile < TILE ? end - tile : TILE;
        score_tile(query, keys + (size_t)tile * HEAD_DIM, scores, count);
        const COMPUTE* rows = values + (size_t)tile * HEAD_DIM + column;
        bool takes_part = part < PARTS && part * 4 < count;
        four<COMPUTE> first[4];
        if (takes_part) load_values(rows, part * 4, count, first);
        __syncthreads();
        weigh_tile(scores, count, softcap, highest, sums, shrink);
        __syncthreads();
#pragma unroll
        for (int g = 0; g < GROUP; ++g)
#pragma unroll
            for (int c = 0; c < 4; ++c) context[g][c] *= shrink[g];
        if (takes_part) {
            add_values(first, scores + part * 4, context);
#pragma unroll 3
            for (int key = (part + PARTS) * 4; key < count; key += PARTS * 4) {
                four<COMPUTE> next[4];
                load_values(rows, key, count, next);
                add_values(next, scores + key, context);
            }
        }
        __syncthreads();
    }
    for (int from = 0; from < GROUP; from += QUERIES_AT_ONCE) {
        int num = GROUP - from < QUERIES_AT_ONCE ? GROUP - from : QUERIES_AT_ONCE;
#pragma unroll
        for (int g = 0; g < GROUP; ++g)
            if (part < PARTS && g >= from && g < from + num)
#pragma unroll
                for (int c = 0; c < 4; ++c) scores[(part * num + g - from) * HEAD_DIM + column + c] = context[g][c];
        __syncthreads();
        for (int i = threadIdx.x; i < num * HEAD_DIM; i += ATTEND_THREADS) {
            float sum = 0.0f;
#pragma unroll 8
            for (int p = 0; p < PARTS; ++p) sum += scores[p * num * HEAD_DIM + i];
            narrow(sum / sums[from + i / HEAD_DIM], out[(head * GROUP + from) * HEAD_DIM + i]);
        }
        __syncthreads();
    }
}
#endif

// ---------------------------------------------------------------- drawing: one block of 1024 threads a row

#define SEGMENT 1024
#define MAX_SEGMENTS 1024

__device__ __forceinline__ double warp_sum(double value) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

// The lane at whose place the running sum over the lanes of a warp first exceeds `target`, which keeps what is left
// there. A lane without weight is never taken.
__device__ __forceinline__ int find_lane(double weight, double& target) {
    int lane = threadIdx.x % 32;
    double running = weight;
    for (int step = 1; step < 32; step <<= 1) {
        double before = __shfl_up_sync(FULL_WARP, running, step);
        if (lane >= step) running += before;
    }
    unsigned beyond = __ballot_sync(FULL_WARP, running > target && weight > 0.0);
    unsigned some = __ballot_sync(FULL_WARP, weight > 0.0);
    int found = beyond ? __ffs(beyond) - 1 : some ? 31 - __clz(some) : 0;
    target -= __shfl_sync(FULL_WARP, running - weight, found);
    return found;
}

// Logits [B, vocab] and uniform numbers [B] to tokens, their log-probabilities under softmax(logits * inverse), and
// those under softmax(logits). Only ids below `valid`, and at least exp(floor) times as likely as the most likely of
// them, are drawn. inverse = 0 takes the most likely id, with the log-probability at temperature 1.
extern "C" __global__ void __launch_bounds__(1024) draw(
    const float* logits, const double* uniform, long long* tokens, float* logprobs, float* raw_logprobs, int vocab,
    int valid, float inverse, float floor
) {
    __shared__ double segments[MAX_SEGMENTS];
    __shared__ float tops[32];
    __shared__ int ids[32];
    __shared__ double totals[2][32];
    const float* row = logits + (size_t)blockIdx.x * vocab;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float top = LOWEST, over = LOWEST;
    int id = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < vocab; i += 1024) {
        float value = row[i];
        over = fmaxf(over, value);
        if (i < valid && value > top) { top = value; id = i; }
    }
    over = warp_max(over);
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(FULL_WARP, top, step);
        int other_id = __shfl_xor_sync(FULL_WARP, id, step);
        if (other > top || (other == top && other_id < id)) { top = other; id = other_id; }
    }
    if (lane == 0) { tops[warp] = top; ids[warp] = id; totals[0][warp] = over; }
    __syncthreads();
    for (int w = 0; w < 32; ++w) {
        if (tops[w] > top || (tops[w] == top && ids[w] < id)) { top = tops[w]; id = ids[w]; }
        over = fmaxf(over, (float)totals[0][w]);
    }
    __syncthreads();
    float scale = inverse > 0.0f ? inverse : 1.0f;
    int num_segments = (vocab + SEGMENT - 1) / SEGMENT;
    double total = 0.0, raw_total = 0.0;
    for (int s = warp; s < num_segments; s += 32) {
        float kept = 0.0f, all = 0.0f, raw = 0.0f;
#pragma unroll 8
        for (int i = s * SEGMENT + lane; i < (s + 1) * SEGMENT && i < vocab; i += 32) {
            float weight = expf((row[i] - over) * scale);
            all += weight;
            if (scale != 1.0f) raw += expf(row[i] - over);
            if (i < valid && (row[i] - top) * scale >= floor) kept += weight;
        }
        total += (double)all;
        raw_total += (double)raw;
        double sum = warp_sum((double)kept);
        if (lane == 0) segments[s] = sum;
    }
    total = warp_sum(total);
    raw_total = warp_sum(raw_total);
    if (lane == 0) { totals[0][warp] = total; totals[1][warp] = raw_total; }
    __syncthreads();
    if (warp != 0) return;
    total = warp_sum(totals[0][lane]);
    raw_total = scale == 1.0f ? total : warp_sum(totals[1][lane]);
    if (inverse > 0.0f) {
        int each = (num_segments + 31) / 32;
        double mine = 0.0;
        for (int s = lane * each; s < (lane + 1) * each && s < num_segments; ++s) mine += segments[s];
        double target = uniform[blockIdx.x] * warp_sum(mine);
        int owner = find_lane(mine, target), segment = owner * each;
        int last = segment;
        for (int s = owner * each; s < (owner + 1) * each && s < num_segments; ++s)
            if (segments[s] > 0.0) last = s;
        while (segment < last && !(segments[segment] > target)) target -= segments[segment++];
        int first = segment * SEGMENT + lane * 32;
        double strip = 0.0;
        for (int i = first; i < first + 32 && i < vocab; ++i)
            if (i < valid && (row[i] - top) * scale >= floor) strip += (double)expf((row[i] - over) * scale);
        int strip_owner = find_lane(strip, target);
        if (lane == strip_owner) {
            for (int i = first; i < first + 32 && i < vocab; ++i) {
                double weight = i < valid && (row[i] - top) * scale >= floor ? (double)expf((row[i] - over) * scale) : 0.0;
                if (weight > 0.0) {
                    id = i;
                    if (weight > target) break;
                }
                target -= weight;
            }
        }
        id = __shfl_sync(FULL_WARP, id, strip_owner);
    }
    if (lane == 0) {
        tokens[blockIdx.x] = id;
        logprobs[blockIdx.x] = (row[id] - over) * scale - (float)log(total);
        raw_logprobs[blockIdx.x] = (row[id] - over) - (float)log(raw_total);
    }
}
