// Batch-1 decode of a Gemma-3-shaped decoder: five kernels a layer, one for the LM head with its arg-max.
//
// Compiled at run time (NVRTC) per model shape and weight format, so it includes nothing. Macros, all required:
//   FORMAT 0 fp16, 1 int8 (one scale a row), 2 int4 (one fp16 scale per 32 weights), 3 bf16
//   BLOCK  threads of a GEMV block (at least HIDDEN / 8);  REGISTERS  most registers a thread may
//   have: a block must leave some, or the one warp that another task is parked with keeps it off that SM
//   ATT_BATCH  positions a warp of the attention kernel has in flight
//   HIDDEN FFN VOCAB Q_HEADS KV_HEADS: the model;  head_dim is 256;  DOWN_K  columns of a tile of `down`, divides FFN
//
// Weights travel in tiles that one warp reads with 16-byte loads: ROWS rows x K columns, contiguous, K = HIDDEN, the
// attention width or DOWN_K: a matrix whose rows are longer is stored as tiles of consecutive slices. In fp16 and bf16
// this is plain row-major order, and K may be any multiple of 8: the lanes beyond a row's end load nothing in the last
// round. Gate and up rows are interleaved. Activations are fp32 between kernels.
//
// Every kernel is launched with programmatic stream serialisation: it starts while its predecessor still runs, loads
// its first weight tile (weights never change), and only then waits for the predecessor's results.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define HEAD_DIM 256
#define ATT_WIDTH (Q_HEADS * HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
#define QKV_ROWS (ATT_WIDTH + 2 * KV_WIDTH)
#define GROUP (Q_HEADS / KV_HEADS)
#define WARPS (BLOCK / 32)
#define FFN_SLICES (FFN / DOWN_K)

#if FORMAT == 0 || FORMAT == 3
#define ROWS 1
#define PER_LOAD 8
#elif FORMAT == 1
#define ROWS 2
#define PER_LOAD 16
#else
#define ROWS 2
#define PER_LOAD 32
#endif
#define LOADS(K) ((ROWS * (K) / PER_LOAD + 31) / 32)

// --- small pieces ---------------------------------------------------------------------------------------------------
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ float from_half(u32 bits) {
  float f;
#if FORMAT == 3
  f = __uint_as_float(bits << 16);
#else
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(bits));
#endif
  return f;
}
__device__ __forceinline__ float kv_float(u32 bits) {
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(bits));
  return f;
}
__device__ __forceinline__ u32 kv_pair(float lo, float hi) {
  u32 out;
  asm("{.reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};}" : "=r"(out) : "f"(lo), "f"(hi));
  return out;
}
__device__ __forceinline__ uint4 load_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float load_scale16(const u16* p) {
  u16 v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return kv_float(v);
}
__device__ __forceinline__ void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) total += scratch[i];
  return total;
}

// --- activations in shared memory -----------------------------------------------------------------------------------
// fp16/bf16 weights: fp32 values, split in two planes of 4 so that 16-byte reads of a warp meet no bank twice.
// int8/int4 weights: int8 values with one scale (and scale x sum) per 32, so that products are exact integer sums.
template <int K>
struct Activations {
#if FORMAT == 0 || FORMAT == 3
  float4 lo[K / 8], hi[K / 8];
#else
  __align__(16) u8 q[K];
  float2 scale[K / 32];
#endif
  float scratch[2][WARPS];
};

// Put the 8 consecutive values of chunk `chunk` in place. All threads of a warp call it together (`live` masks).
template <int K>
__device__ __forceinline__ void put8(Activations<K>& a, int chunk, const float (&v)[8], bool live) {
#if FORMAT == 0 || FORMAT == 3
  if (live) {
    a.lo[chunk] = make_float4(v[0], v[1], v[2], v[3]);
    a.hi[chunk] = make_float4(v[4], v[5], v[6], v[7]);
  }
#else
  float peak = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) peak = fmaxf(peak, fabsf(v[i]));
  peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
  peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
  float inverse = peak > 0.f ? 127.f / peak : 0.f;
  u32 word[2] = {0, 0};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int q = __float2int_rn(v[i] * inverse);
    sum += q;
    word[i >> 2] |= ((u32)q & 255u) << (8 * (i & 3));
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (live) {
#if FORMAT == 1
    u8* to = a.q + chunk * 8;
#else
    int part = chunk & 3;  // elements 0-15 of a block in the first plane, 16-31 in the second
    u8* to = a.q + (part >> 1) * (K / 2) + (chunk >> 2) * 16 + (part & 1) * 8;
#endif
    *(uint2*)to = make_uint2(word[0], word[1]);
    if ((chunk & 3) == 0) a.scale[chunk >> 2] = make_float2(peak / 127.f, peak / 127.f * sum);
  }
#endif
}
__device__ __forceinline__ void read8(float (&v)[8], const float* p) {
  float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// --- one weight tile ------------------------------------------------------------------------------------------------
template <int N>
struct Tile {
  uint4 w[N];
#if FORMAT == 2
  float s[N];
#endif
};
// Tile `index` of a matrix whose tiles have K columns.
template <int K, int N>
__device__ __forceinline__ void load_tile(Tile<N>& t, const char* weights, const char* scales, long index, int lane) {
  constexpr int size = ROWS * K / PER_LOAD;
#if FORMAT == 1 || FORMAT == 2
  static_assert(size == N * 32, "rows of integer weights fill whole rounds");
#endif
  const uint4* p = (const uint4*)weights + index * size + lane;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if ((i + 1) * 32 <= size || i * 32 + lane < size) t.w[i] = load_stream(p + i * 32);
  }
#if FORMAT == 2
  const u16* s = (const u16*)scales + index * (N * 32) + lane;
#pragma unroll
  for (int i = 0; i < N; ++i) t.s[i] = load_scale16(s + i * 32);
#endif
}
__device__ __forceinline__ int dot4(u32 a, u32 b, int c) {
  int d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// acc[r] += tile row r . activations [first column = at * 8]. TILE_K columns a row.
template <int N, int TILE_K, int K>
__device__ __forceinline__ void dot_tile(float (&acc)[ROWS], const Tile<N>& t, const Activations<K>& a, int at, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const u32 w[4] = {t.w[i].x, t.w[i].y, t.w[i].z, t.w[i].w};
#if FORMAT == 0 || FORMAT == 3
    if ((i + 1) * 32 > TILE_K / 8 && i * 32 + lane >= TILE_K / 8) continue;  // beyond the row: nothing was loaded
    float4 x = a.lo[at + i * 32 + lane], y = a.hi[at + i * 32 + lane];
    float s = acc[0];
    s = fmaf(from_half(w[0] & 0xffffu), x.x, s), s = fmaf(from_half(w[0] >> 16), x.y, s);
    s = fmaf(from_half(w[1] & 0xffffu), x.z, s), s = fmaf(from_half(w[1] >> 16), x.w, s);
    s = fmaf(from_half(w[2] & 0xffffu), y.x, s), s = fmaf(from_half(w[2] >> 16), y.y, s);
    s = fmaf(from_half(w[3] & 0xffffu), y.z, s), s = fmaf(from_half(w[3] >> 16), y.w, s);
    acc[0] = s;
#elif FORMAT == 1
    constexpr int per_row = TILE_K / PER_LOAD;  // a multiple of 32
    const int row = i / (per_row / 32);
    const int chunk = at / 2 + (i % (per_row / 32)) * 32 + lane;
    uint4 x = *(const uint4*)(a.q + chunk * 16);
    int d = dot4(w[0], x.x, 0);
    d = dot4(w[1], x.y, d), d = dot4(w[2], x.z, d), d = dot4(w[3], x.w, d);
    acc[row] = fmaf((float)d, a.scale[chunk >> 1].x, acc[row]);
#else
    constexpr int per_row = TILE_K / PER_LOAD;
    const int flat = i * 32 + lane;
    const int row = flat >= per_row;
    const int block = at / 4 + flat - (row ? per_row : 0);
    uint4 x = *(const uint4*)(a.q + block * 16), y = *(const uint4*)(a.q + K / 2 + block * 16);
    const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
    int d = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      d = dot4(w[j] & 0x0f0f0f0fu, xs[j], d);
      d = dot4((w[j] >> 4) & 0x0f0f0f0fu, ys[j], d);
    }
    float2 scale = a.scale[block];
    float v = t.s[i] * fmaf((float)d, scale.x, -8.f * scale.y);  // nibbles are stored as weight + 8
    if ((i + 1) * 32 <= per_row) acc[0] += v;
    else if (i * 32 >= per_row) acc[1] += v;
    else if (row) acc[1] += v;
    else acc[0] += v;
#endif
  }
}
__device__ __forceinline__ void reduce_rows(float (&acc)[ROWS]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) acc[r] = warp_sum(acc[r]);
}
__device__ __forceinline__ float row_scale(const char* scales, long row) {
#if FORMAT == 1
  return ((const float*)scales)[row];
#else
  return 1.f;
#endif
}

// Row `row` of the embedding, chunk `chunk` of 8 values.
__device__ __forceinline__ void embedding8(float (&v)[8], const char* weights, const char* scales, long row, int chunk) {
#if FORMAT == 0 || FORMAT == 3
  uint4 w = ((const uint4*)weights)[row * (HIDDEN / 8) + chunk];
  const u32 u[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = from_half((u[i >> 1] >> (16 * (i & 1))) & 0xffffu);
#elif FORMAT == 1
  const signed char* q = (const signed char*)weights + row * HIDDEN + chunk * 8;  // pairs of rows are adjacent
  float s = ((const float*)scales)[row];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = s * (float)q[i];
#else
  long block = row * (HIDDEN / 32) + (chunk >> 2);
  int part = chunk & 3;
  const u8* q = (const u8*)weights + block * 16 + (part & 1) * 8;
  float s = kv_float(((const u16*)scales)[block]);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = s * (float)((int)((q[i] >> (4 * (part >> 1))) & 15) - 8);
#endif
}

// --- prologues ------------------------------------------------------------------------------------------------------
struct Residual {
  const float* x_in;    // residual stream before this step (HIDDEN)
  const float* delta;   // what the last matrix gave (HIDDEN); null: x_in is the embedding of `token`
  const float* w_post;  // norm of delta, (1 + weight)
  const float* w_pre;   // norm of the sum, (1 + weight)
  float* x_out;         // residual stream after this step, written by block 0; never x_in
  const char* embedding;
  const char* embedding_scales;
  const int* token;
  float embedding_scale;
  float eps;
};
// The norms' weights do not depend on the predecessor either: loaded before the wait.
struct Norms {
  float post[8], pre[8];
};
__device__ __forceinline__ void load_norms(Norms& n, const Residual& r) {
  if (threadIdx.x < HIDDEN / 8) {
    read8(n.pre, r.w_pre + threadIdx.x * 8);
    if (r.delta) read8(n.post, r.w_post + threadIdx.x * 8);
  }
}
// x = x_in + norm(delta) * w_post; shared memory gets norm(x) * w_pre.
__device__ __forceinline__ void residual_norm(Activations<HIDDEN>& a, const Residual& r, const Norms& w) {
  const int t = threadIdx.x;
  const bool live = t < HIDDEN / 8;
  float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (r.delta) {
    float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (live) read8(d, r.delta + t * 8), read8(x, r.x_in + t * 8);
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(d[i], d[i], squares);
    float rms = rsqrtf(block_sum(squares, a.scratch[0]) / HIDDEN + r.eps);
    if (live) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = fmaf(d[i] * rms, w.post[i], x[i]);
    }
  } else if (live) {
    embedding8(x, r.embedding, r.embedding_scales, *r.token, t);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= r.embedding_scale;
  }
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
  float rms = rsqrtf(block_sum(squares, a.scratch[1]) / HIDDEN + r.eps);
  if (live && blockIdx.x == 0) {
    ((float4*)(r.x_out + t * 8))[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4*)(r.x_out + t * 8))[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
  float n[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (live) {
#pragma unroll
    for (int i = 0; i < 8; ++i) n[i] = x[i] * rms * w.pre[i];
  }
  put8(a, t, n, live);
  __syncthreads();
}
template <int K>
__device__ __forceinline__ void load_vector(Activations<K>& a, const float* x) {
  constexpr int rounds = (K / 8 + BLOCK - 1) / BLOCK;
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    int chunk = threadIdx.x + i * BLOCK;
    bool live = chunk < K / 8;
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (live) read8(v, x + chunk * 8);
    put8(a, chunk, v, live);
  }
  __syncthreads();
}

struct Matrix {
  const char* weights;
  const char* scales;  // int8: fp32 per row; int4: fp16 per 32 weights, in tile order
};

// --- kernels --------------------------------------------------------------------------------------------------------
// out (QKV_ROWS) = W_qkv . norm(x). Grid: any number of blocks.
extern "C" __global__ void __maxnreg__(REGISTERS)
qkv(Matrix m, Residual r, float* out) {
  __shared__ Activations<HIDDEN> a;
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int step = gridDim.x * WARPS, tiles = QKV_ROWS / ROWS;
  int t = warp * gridDim.x + blockIdx.x;
  Tile<LOADS(HIDDEN)> tile;
  if (t < tiles) load_tile<HIDDEN>(tile, m.weights, m.scales, t, lane);
  Norms norms;
  load_norms(norms, r);
  pdl_wait();
  residual_norm(a, r, norms);
  while (t < tiles) {
    float acc[ROWS] = {};
    dot_tile<LOADS(HIDDEN), HIDDEN, HIDDEN>(acc, tile, a, 0, lane);
    int done = t;
    t += step;
    if (t < tiles) load_tile<HIDDEN>(tile, m.weights, m.scales, t, lane);
    reduce_rows(acc);
    if (lane < ROWS) {
      float v = acc[0];
#if ROWS == 2
      if (lane == 1) v = acc[1];
#endif
      int row = done * ROWS + lane;
      out[row] = v * row_scale(m.scales, row);
    }
  }
}

// What the splits of the attention kernel left, merged: chunk t of 8 values of the attention output.
struct Partial {
  const float* values;  // (Q_HEADS, splits, 256), each split's own softmax average
  const float2* ml;     // (Q_HEADS, splits) maximum (log2) and sum of its exponentials
  int splits;
};
__device__ __forceinline__ void merged8(float (&v)[8], const Partial& p, int t) {
  const int head = t / (HEAD_DIM / 8);
  const float2* ml = p.ml + head * p.splits;
  const float* from = p.values + (long)head * p.splits * HEAD_DIM + (t % (HEAD_DIM / 8)) * 8;
  float top = -1e30f, total = 0.f;
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s) top = fmaxf(top, ml[s].x);
#pragma unroll 4
  for (int s = 0; s < p.splits; ++s) {
    float2 part = ml[s];
    float share = part.y > 0.f ? exp2f(part.x - top) * part.y : 0.f;
    float one[8];
    read8(one, from + s * HEAD_DIM);
    total += share;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = fmaf(share, one[i], v[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] /= total;
}
// out (HIDDEN) = W_o . attention.
extern "C" __global__ void __maxnreg__(REGISTERS)
o_proj(Matrix m, Partial p, float* out) {
  __shared__ Activations<ATT_WIDTH> a;
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int step = gridDim.x * WARPS, tiles = HIDDEN / ROWS;
  int t = warp * gridDim.x + blockIdx.x;
  Tile<LOADS(ATT_WIDTH)> tile;
  if (t < tiles) load_tile<ATT_WIDTH>(tile, m.weights, m.scales, t, lane);
  pdl_wait();
  static_assert(ATT_WIDTH / 8 <= BLOCK, "one thread per chunk");
  float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (threadIdx.x < ATT_WIDTH / 8) merged8(v, p, threadIdx.x);
  put8(a, threadIdx.x, v, threadIdx.x < ATT_WIDTH / 8);
  __syncthreads();
  while (t < tiles) {
    float acc[ROWS] = {};
    dot_tile<LOADS(ATT_WIDTH), ATT_WIDTH, ATT_WIDTH>(acc, tile, a, 0, lane);
    int done = t;
    t += step;
    if (t < tiles) load_tile<ATT_WIDTH>(tile, m.weights, m.scales, t, lane);
    reduce_rows(acc);
    if (lane < ROWS) {
      float v = acc[0];
#if ROWS == 2
      if (lane == 1) v = acc[1];
#endif
      int row = done * ROWS + lane;
      out[row] = v * row_scale(m.scales, row);
    }
  }
}

__device__ __forceinline__ float gelu_tanh(float x) {
  return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
// out (FFN) = gelu(W_gate . h) * (W_up . h), h = norm(x); rows of gate and up alternate.
extern "C" __global__ void __maxnreg__(REGISTERS)
gate_up(Matrix m, Residual r, float* out) {
  __shared__ Activations<HIDDEN> a;
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int step = gridDim.x * WARPS;
  constexpr int N = LOADS(HIDDEN), per_task = 2 / ROWS;
  int t = warp * gridDim.x + blockIdx.x;
  Tile<N> tile;
  if (t < FFN) load_tile<HIDDEN>(tile, m.weights, m.scales, (long)t * per_task, lane);
  Norms norms;
  load_norms(norms, r);
  pdl_wait();
  residual_norm(a, r, norms);
  while (t < FFN) {
    float gate, up;
    float acc[ROWS] = {};
    dot_tile<N, HIDDEN, HIDDEN>(acc, tile, a, 0, lane);
    int done = t;
    t += step;
#if ROWS == 1
    load_tile<HIDDEN>(tile, m.weights, m.scales, (long)done * 2 + 1, lane);
    float second[ROWS] = {};
    dot_tile<N, HIDDEN, HIDDEN>(second, tile, a, 0, lane);
    if (t < FFN) load_tile<HIDDEN>(tile, m.weights, m.scales, (long)t * 2, lane);
    gate = warp_sum(acc[0]);
    up = warp_sum(second[0]);
#else
    if (t < FFN) load_tile<HIDDEN>(tile, m.weights, m.scales, t, lane);
    gate = warp_sum(acc[0]);
    up = warp_sum(acc[ROWS - 1]);
#endif
    if (lane == 0) {
      gate *= row_scale(m.scales, 2 * done), up *= row_scale(m.scales, 2 * done + 1);
      out[done] = gelu_tanh(gate) * up;
    }
  }
}

// out (HIDDEN) = W_down . act. Dynamic shared memory: activations, then partial sums (tasks of this block x ROWS).
extern "C" __global__ void __maxnreg__(REGISTERS)
down(Matrix m, const float* act, float* out) {
  extern __shared__ __align__(16) char shared[];
  Activations<FFN>& a = *(Activations<FFN>*)shared;
  float* part = (float*)(shared + sizeof(Activations<FFN>));
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  constexpr int N = LOADS(DOWN_K), groups = HIDDEN / ROWS;
  const int mine = (groups - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const int tasks = mine * FFN_SLICES;
  int j = warp;
  Tile<N> tile;
#define DOWN_TILE(j) ((long)(blockIdx.x + gridDim.x * ((j) / FFN_SLICES)) * FFN_SLICES + (j) % FFN_SLICES)
  if (j < tasks) load_tile<DOWN_K>(tile, m.weights, m.scales, DOWN_TILE(j), lane);
  pdl_wait();
  load_vector(a, act);
  while (j < tasks) {
    float acc[ROWS] = {};
    dot_tile<N, DOWN_K, FFN>(acc, tile, a, (j % FFN_SLICES) * (DOWN_K / 8), lane);
    int done = j;
    j += WARPS;
    if (j < tasks) load_tile<DOWN_K>(tile, m.weights, m.scales, DOWN_TILE(j), lane);
    reduce_rows(acc);
    if (lane == 0) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) part[done * ROWS + r] = acc[r];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < mine * ROWS; i += BLOCK) {
    int group = i / ROWS, r = i % ROWS;
    float v = 0.f;
#pragma unroll
    for (int s = 0; s < FFN_SLICES; ++s) v += part[(group * FFN_SLICES + s) * ROWS + r];
    int row = (blockIdx.x + gridDim.x * group) * ROWS + r;
    out[row] = v * row_scale(m.scales, row);
  }
}

// Greedy choice over the tied embedding. The last block to finish writes the token and moves the position on.
struct Choice {
  u64* best;       // ordered logit << 32 | ~row; 0 between steps
  u32* arrived;    // 0 between steps
  int* token;      // in: unused; out: the chosen token
  int* position;   // in: position of this step; out: + 1
  int* history;    // (max positions) history[position] = chosen token
  float* logits;   // (VOCAB) or null
};
extern "C" __global__ void __maxnreg__(REGISTERS)
lm_head(Matrix m, Residual r, Choice c) {
  __shared__ Activations<HIDDEN> a;
  __shared__ u64 best_of[WARPS];
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int step = gridDim.x * WARPS, tiles = VOCAB / ROWS;
  int t = warp * gridDim.x + blockIdx.x;
  Tile<LOADS(HIDDEN)> tile;
  if (t < tiles) load_tile<HIDDEN>(tile, m.weights, m.scales, t, lane);
  Norms norms;
  load_norms(norms, r);
  pdl_wait();
  residual_norm(a, r, norms);
  u64 best = 0;
  while (t < tiles) {
    float acc[ROWS] = {};
    dot_tile<LOADS(HIDDEN), HIDDEN, HIDDEN>(acc, tile, a, 0, lane);
    int done = t;
    t += step;
    if (t < tiles) load_tile<HIDDEN>(tile, m.weights, m.scales, t, lane);
    reduce_rows(acc);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      int row = done * ROWS + i;
      float v = acc[i] * row_scale(m.scales, row);
      if (c.logits && lane == 0) c.logits[row] = v;
      u32 bits = __float_as_uint(v);
      bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
      u64 key = (u64)bits << 32 | (u32)~row;  // equal logits: the lower row wins
      best = key > best ? key : best;
    }
  }
  if (lane == 0) best_of[warp] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < WARPS; ++i) best = best_of[i] > best ? best_of[i] : best;
    atomicMax(c.best, best);
    __threadfence();
    if (atomicAdd(c.arrived, 1u) == gridDim.x - 1) {
      __threadfence();
      u64 winner = atomicExch(c.best, 0ull);
      int token = (int)~(u32)winner, position = *c.position;
      c.history[position] = token;
      *c.token = token;
      *c.position = position + 1;
      *c.arrived = 0;
    }
  }
}

// q/k norm, RoPE, KV append and split-KV attention. Grid (splits, KV_HEADS), 256 threads. K and V: fp16
// (KV_HEADS, capacity, 256). The next kernel merges the splits: no block waits for another here.
struct Attention {
  const float* qkv;      // (QKV_ROWS) of this step
  const float* q_norm;   // (256) 1 + weight
  const float* k_norm;   // (256) 1 + weight
  const float2* rope;    // (capacity, 128) cos, sin
  u16* k;
  u16* v;
  float* partial;        // (Q_HEADS, splits, 256)
  float2* partial_ml;    // (Q_HEADS, splits)
  const int* position;
  int capacity;
  int window;            // 0: all positions
  float eps;
};
#define ATT_WARPS 8
// Positions base .. base + ATT_BATCH (the last of the split repeated beyond its end), 8 values a lane.
__device__ __forceinline__ void load_batch(uint4 (&kk)[ATT_BATCH], uint4 (&vv)[ATT_BATCH], const u16* keys,
                                           const u16* values, int base, int hi, int lane) {
#pragma unroll
  for (int i = 0; i < ATT_BATCH; ++i) {
    long at = (long)min(base + i, hi - 1) * HEAD_DIM;
    kk[i] = __ldcg((const uint4*)(keys + at) + lane);
    vv[i] = __ldcg((const uint4*)(values + at) + lane);
  }
}
extern "C" __global__ void __launch_bounds__(256, 2) attention(Attention p) {
  __shared__ float q[GROUP][HEAD_DIM];
  __shared__ float acc_of[ATT_WARPS][GROUP][HEAD_DIM];
  __shared__ float2 ml_of[ATT_WARPS][GROUP];
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, split = blockIdx.x, splits = gridDim.x, head = blockIdx.y;
  const int now = *p.position;  // moved on by the last kernel of the step before: fixed during this graph
  const int start = p.window && now + 1 > p.window ? now + 1 - p.window : 0;
  const int per = (now + 1 - start + splits - 1) / splits;
  const int lo = start + split * per, hi = min(lo + per, now + 1);
  u16* keys = p.k + (long)head * p.capacity * HEAD_DIM;
  u16* values = p.v + (long)head * p.capacity * HEAD_DIM;
  for (int i = threadIdx.x + 4 * ATT_WARPS * ATT_BATCH; i < (hi - lo) * 4; i += 256) {
    prefetch_line(keys + (long)lo * HEAD_DIM + i * 64);
    prefetch_line(values + (long)lo * HEAD_DIM + i * 64);
  }
  // Earlier positions, the norm's weights and the rotation do not depend on the predecessor: loaded before the wait.
  uint4 kk[ATT_BATCH], vv[ATT_BATCH];
  int base = lo + warp * ATT_BATCH;
  if (base < hi) load_batch(kk, vv, keys, values, base, hi, lane);
  const bool newest = lo <= now && now < hi, is_key = warp == GROUP;
  const bool rotates = warp < GROUP || (newest && is_key);  // one warp per query head, one for the new key
  float4 wa, wb, rope_a, rope_b;
  if (rotates) {
    const float4* w = (const float4*)(is_key ? p.k_norm : p.q_norm);
    const float4* rope = (const float4*)(p.rope + (long)now * (HEAD_DIM / 2));
    wa = w[lane], wb = w[lane + 32];
    rope_a = rope[lane * 2], rope_b = rope[lane * 2 + 1];
  }
  pdl_wait();
  if (rotates) {
    const float* x = p.qkv + (is_key ? ATT_WIDTH + head * HEAD_DIM : (head * GROUP + warp) * HEAD_DIM);
    float4 a = ((const float4*)x)[lane], b = ((const float4*)x)[lane + 32];
    float squares = a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w;
    float rms = rsqrtf(warp_sum(squares) / HEAD_DIM + p.eps);
    float first[4] = {a.x * rms * wa.x, a.y * rms * wa.y, a.z * rms * wa.z, a.w * rms * wa.w};
    float second[4] = {b.x * rms * wb.x, b.y * rms * wb.y, b.z * rms * wb.z, b.w * rms * wb.w};
    const float cosine[4] = {rope_a.x, rope_a.z, rope_b.x, rope_b.z}, sine[4] = {rope_a.y, rope_a.w, rope_b.y, rope_b.w};
    float ra[4], rb[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ra[i] = first[i] * cosine[i] - second[i] * sine[i];
      rb[i] = second[i] * cosine[i] + first[i] * sine[i];
    }
    if (is_key) {
      u16* to = keys + (long)now * HEAD_DIM;
      ((uint2*)to)[lane] = make_uint2(kv_pair(ra[0], ra[1]), kv_pair(ra[2], ra[3]));
      ((uint2*)to)[lane + 32] = make_uint2(kv_pair(rb[0], rb[1]), kv_pair(rb[2], rb[3]));
    } else {
      const float scale = 0.0625f * 1.4426950408889634f;  // 1/sqrt(256), and base-2 exponentials below
#pragma unroll
      for (int i = 0; i < 4; ++i) q[warp][lane * 4 + i] = ra[i] * scale, q[warp][128 + lane * 4 + i] = rb[i] * scale;
    }
  } else if (newest && warp == GROUP + 1) {
    const float4* x = (const float4*)(p.qkv + ATT_WIDTH + KV_WIDTH + head * HEAD_DIM);
    float4 a = x[lane], b = x[lane + 32];
    u16* to = values + (long)now * HEAD_DIM;
    ((uint2*)to)[lane] = make_uint2(kv_pair(a.x, a.y), kv_pair(a.z, a.w));
    ((uint2*)to)[lane + 32] = make_uint2(kv_pair(b.x, b.y), kv_pair(b.z, b.w));
  }
  __syncthreads();
  float m[GROUP], l[GROUP], acc[GROUP][8];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    m[g] = -1e30f, l[g] = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[g][i] = 0.f;
  }
  // The batch that ends with the newest position was read before that was written.
  if (newest && base < hi && base + ATT_BATCH >= hi) load_batch(kk, vv, keys, values, base, hi, lane);
  while (base < hi) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float s[ATT_BATCH];
#pragma unroll
      for (int i = 0; i < ATT_BATCH; ++i) {
        const u32 w[4] = {kk[i].x, kk[i].y, kk[i].z, kk[i].w};
        float d = 0.f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          d = fmaf(kv_float(w[j] & 0xffffu), q[g][lane * 8 + 2 * j], d);
          d = fmaf(kv_float(w[j] >> 16), q[g][lane * 8 + 2 * j + 1], d);
        }
        s[i] = warp_sum(d);
        if (base + i >= hi) s[i] = -1e30f;
      }
      float top = m[g];
#pragma unroll
      for (int i = 0; i < ATT_BATCH; ++i) top = fmaxf(top, s[i]);
      float shrink = exp2f(m[g] - top);
      m[g] = top;
      l[g] *= shrink;
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[g][j] *= shrink;
#pragma unroll
      for (int i = 0; i < ATT_BATCH; ++i) {
        float e = base + i < hi ? exp2f(s[i] - top) : 0.f;
        l[g] += e;
        const u32 w[4] = {vv[i].x, vv[i].y, vv[i].z, vv[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[g][2 * j] = fmaf(e, kv_float(w[j] & 0xffffu), acc[g][2 * j]);
          acc[g][2 * j + 1] = fmaf(e, kv_float(w[j] >> 16), acc[g][2 * j + 1]);
        }
      }
    }
    base += ATT_WARPS * ATT_BATCH;
    if (base < hi) load_batch(kk, vv, keys, values, base, hi, lane);
  }
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    ((float4*)&acc_of[warp][g][lane * 8])[0] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
    ((float4*)&acc_of[warp][g][lane * 8])[1] = make_float4(acc[g][4], acc[g][5], acc[g][6], acc[g][7]);
    if (lane == 0) ml_of[warp][g] = make_float2(m[g], l[g]);
  }
  __syncthreads();
  const int dim = threadIdx.x;  // 256 threads, 256 dimensions
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    float top = -1e30f, sum = 0.f, v = 0.f;
#pragma unroll
    for (int w = 0; w < ATT_WARPS; ++w) top = fmaxf(top, ml_of[w][g].x);
#pragma unroll
    for (int w = 0; w < ATT_WARPS; ++w) {
      float e = ml_of[w][g].y > 0.f ? exp2f(ml_of[w][g].x - top) : 0.f;
      sum = fmaf(e, ml_of[w][g].y, sum);
      v = fmaf(e, acc_of[w][g][dim], v);
    }
    int slot = (head * GROUP + g) * splits + split;
    p.partial[(long)slot * HEAD_DIM + dim] = sum > 0.f ? v / sum : 0.f;
    if (dim == 0) p.partial_ml[slot] = make_float2(top, sum);
  }
}
