// Decode of one token for up to 8 texts at once: Llama- and Qwen2-shaped decoders in fp16 (RMS norm before each block,
// RoPE, grouped attention, SiLU). Five kernels a layer, one for the LM head with each text's arg-max.
//
// Compiled at run time (NVRTC) per model shape, so it includes nothing. Macros, all required:
//   HIDDEN FFN VOCAB Q_HEADS KV_HEADS HEAD_DIM (64 or 128): the model;  QKV_BIAS 0 or 1
//   QKV_C O_C GATE_C DOWN_C  columns a thread loads at once, 2, 4 or 8 (a block owns 8 times as many columns)
//   GATE_HELD 0 or 1: whether gate's strip waits in registers;  NORM_TOGETHER MERGE_TOGETHER  pieces requested together
//   DOWN_PARTS  blocks that share one strip of `down`;  HEAD_LOADS  16-byte loads a thread of the LM head has in flight
//
// Weights are read where ONNX Runtime has them, as its graphs' initializers: matrices (k, n) in row-major order, the
// embedding (VOCAB, HIDDEN). A block owns a strip of columns, its warps share the rows. All of a block's weights are
// requested before it waits for its predecessor. Products run on tensor cores, mma m16n8k16 with the texts as rows:
// rows 0-7 hold the upper halves of the activations (fp16), rows 8-15 what that rounding lost, so the sum of both is
// the product with fp32 activations, and a text's result does not depend on which texts are beside it.
//
// Every kernel is launched with programmatic stream serialisation, as those of decode.cu.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define TEXTS 8
#define WARPS 8
#define BLOCK 256
#define ATT_WIDTH (Q_HEADS * HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
#define QKV (ATT_WIDTH + 2 * KV_WIDTH)
#define GROUP (Q_HEADS / KV_HEADS)
#define SPLITS 16       // most blocks that share one KV head of one text
#ifndef SPLIT_LEAST
#define SPLIT_LEAST 256  // positions below which no further block joins
#endif
#define GATE_BLOCKS (GATE_C > 2 ? 2 : 3)  // on one multiprocessor
#define ATT_WARPS 4
#define STEPS(K, SHARERS) (((K) / 16 + (SHARERS) - 1) / (SHARERS))
#define PITCH(K) (((K) + 31 & ~31) + 16)  // values from one text's activations to the next: no bank is met twice

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
__device__ __forceinline__ float half_of(u32 bits) {
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(bits & 0xffffu));
  return f;
}
__device__ __forceinline__ u32 pair_of(float lo, float hi) {
  u32 out;
  asm("{.reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};}" : "=r"(out) : "f"(lo), "f"(hi));
  return out;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
// Weights never change, so they may be loaded before the wait; what lies beside them another block reads soon.
__device__ __forceinline__ void load_weights(u32 (&w)[1], const u16* p) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(w[0]) : "l"(p));
}
__device__ __forceinline__ void load_weights(u32 (&w)[2], const u16* p) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
__device__ __forceinline__ void load_weights(u32 (&w)[4], const u16* p) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
__device__ __forceinline__ void copy_async(char* to, const u16* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// c (16 x 8) += a (16 x 16) . b (16 x 8). Of lane 4g + t: a[0], a[2] row g, a[1], a[3] row g + 8, b column g, each of
// columns and rows 2t, 2t + 1 and 2t + 8, 2t + 9; c[0], c[1] row g, c[2], c[3] row g + 8 of columns 2t, 2t + 1.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- activations ------------------------------------------------------------------------------------------------------
// Four values in 16 bytes: their upper halves, then what these lack. As floats they take the same room.
__device__ __forceinline__ uint4 split4(const float4& v) {
  uint4 s;
  s.x = pair_of(v.x, v.y), s.y = pair_of(v.z, v.w);
  s.z = pair_of(v.x - half_of(s.x), v.y - half_of(s.x >> 16));
  s.w = pair_of(v.z - half_of(s.y), v.w - half_of(s.y >> 16));
  return s;
}
// What lane (g, t) feeds to mma of the four values from `at` on of text g. Rows beyond the last text repeat it: nobody
// reads what becomes of them.
__device__ __forceinline__ void fragment(u32 (&a)[4], const float* act, int pitch, int texts, int at, int g) {
  const uint4 s = *(const uint4*)(act + min(g, texts - 1) * pitch + at);
  a[0] = s.x, a[2] = s.y, a[1] = s.z, a[3] = s.w;
}

// --- weights of one strip of columns ----------------------------------------------------------------------------------
// Step s of a warp covers 16 rows: lane (g, t) loads rows 4t .. 4t + 3 of them, columns g * C .. g * C + C of the strip.
template <int N, int C>
struct Strip {
  u32 w[N][4][C / 2];
};
template <int N, int C>
__device__ __forceinline__ void load_strip(Strip<N, C>& s, const u16* matrix, int width, int column, int first, int stride,
                                           int end, int lane) {
  const u16* p = matrix + column + (lane >> 2) * C;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int step = first + i * stride;
    if (step < end) {
#pragma unroll
      for (int r = 0; r < 4; ++r) load_weights(s.w[i][r], p + (long)(step * 16 + (lane & 3) * 4 + r) * width);
    }
  }
}
template <int C>
__device__ __forceinline__ void multiply(float (&acc)[C][4], const u32 (&w)[4][C / 2], const u32 (&a)[4]) {
#pragma unroll
  for (int p = 0; p < C / 2; ++p) {
    const u32 w0 = w[0][p], w1 = w[1][p], w2 = w[2][p], w3 = w[3][p];
    mma(acc[2 * p], a, __byte_perm(w0, w1, 0x5410), __byte_perm(w2, w3, 0x5410));
    mma(acc[2 * p + 1], a, __byte_perm(w0, w1, 0x7632), __byte_perm(w2, w3, 0x7632));
  }
}
// The same through shared memory, where more is in flight than registers hold: 16 rows of 8 * C columns are C / 2 KiB
// in a row, the rows in the order in which lanes read them.
template <int C>
__device__ __forceinline__ void copy_strip(char* to, const u16* matrix, int width, int column, int rows) {
  for (int i = threadIdx.x; i < rows * C; i += BLOCK) {
    const int row = i / C, chunk = i % C, place = (row & ~15) | (row & 3) << 2 | (row >> 2 & 3);
    copy_async(to + (place * C + chunk) * 16, matrix + (long)row * width + column + chunk * 8);
  }
}
template <int C>
__device__ __forceinline__ void read_strip(u32 (&w)[4][C / 2], const char* from, int step, int lane) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const u32* p = (const u32*)(from + (step * 16 + r * 4 + (lane & 3)) * (16 * C)) + (lane >> 2) * (C / 2);
#pragma unroll
    for (int i = 0; i < C / 2; ++i) w[r][i] = p[i];
  }
}
// Each warp's sums to part[warp][text][columns], from column `at` on: lane (g, t) has columns 2t * C .. (2t + 2) * C.
template <int C>
__device__ __forceinline__ void put_sums(float* part, int columns, int at, const float (&acc)[C][4], int texts, int lane) {
  const int g = lane >> 2, t = lane & 3;
  if (g < texts) {
    float* to = part + ((threadIdx.x >> 5) * texts + g) * columns + at + 2 * t * C;
#pragma unroll
    for (int j = 0; j < C; ++j) to[j] = acc[j][0] + acc[j][2], to[C + j] = acc[j][1] + acc[j][3];
  }
}
__device__ __forceinline__ float total(const float* part, int columns, int texts, int text, int column) {
  float v = 0.f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) v += part[(w * texts + text) * columns + column];
  return v;
}

// --- what the host writes before every step -----------------------------------------------------------------------------
struct Text {
  int token;
  int position;  // below 0: no text in this row
  int slot;
  int unused;
};
// The blocks of the attention kernel that share the positions up to `now`, and how many positions each takes.
struct Spread {
  int active, per;
};
__device__ __forceinline__ Spread spread(int now) {
  const int count = now + 1;
  int blocks = min(SPLITS, (count + SPLIT_LEAST - 1) / SPLIT_LEAST);
  Spread s;
  s.per = ((count + blocks - 1) / blocks + 15) & ~15;
  s.active = (count + s.per - 1) / s.per;
  return s;
}

// --- the residual stream and its norm -----------------------------------------------------------------------------------
struct Residual {
  const float* x;        // (TEXTS, HIDDEN) before the last matrix; null: the embedding of each text's token
  const float* delta;    // (parts, TEXTS, HIDDEN) what that matrix gave
  float* out;            // their sum, written by block 0; never x
  const u16* norm;       // (HIDDEN)
  const u16* embedding;  // (VOCAB, HIDDEN)
  const Text* text;
  int texts;
  float eps;
};
#define PIECES ((HIDDEN + 127) / 128)  // a warp's share of a text: 128 values
// What does not depend on the predecessor, in shared memory before the wait.
struct Known {
  Text text[TEXTS];
  u16 norm[HIDDEN];
  float squares[TEXTS][PIECES];
};
__device__ __forceinline__ void load_known(Known& k, const Residual& r) {
  if (threadIdx.x < r.texts) k.text[threadIdx.x] = r.text[threadIdx.x];
  for (int i = threadIdx.x * 4; i < HIDDEN; i += BLOCK * 4) *(uint2*)(k.norm + i) = *(const uint2*)(r.norm + i);
  __syncthreads();
}
// act = norm(x + delta), split. Every thread of the block takes part; the sum's order does not depend on the number of
// texts. A warp requests several pieces before it adds the first. hidden: (slots, HIDDEN) a copy in fp16, or null.
template <int PARTS>
__device__ __forceinline__ void residual_norm(float* act, int pitch, Known& k, const Residual& r, u16* hidden) {
  constexpr int TOGETHER = PARTS > 1 ? NORM_TOGETHER : 4;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tasks = r.texts * PIECES;
  for (int begin = warp; begin < tasks; begin += WARPS * TOGETHER) {
    float4 v[TOGETHER][PARTS + 1];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int task = begin + i * WARPS, text = task / PIECES, at = task % PIECES * 128 + lane * 4;
#pragma unroll
      for (int p = 0; p <= PARTS; ++p) v[i][p] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (task >= tasks || at >= HIDDEN || k.text[text].position < 0) continue;
      if (PARTS) {
        v[i][0] = __ldcg((const float4*)(r.x + text * HIDDEN + at));
      } else {
        const uint2 e = *(const uint2*)(r.embedding + (long)k.text[text].token * HIDDEN + at);
        v[i][0] = make_float4(half_of(e.x), half_of(e.x >> 16), half_of(e.y), half_of(e.y >> 16));
      }
#pragma unroll
      for (int p = 0; p < PARTS; ++p) v[i][p + 1] = __ldcg((const float4*)(r.delta + (p * TEXTS + text) * HIDDEN + at));
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int task = begin + i * WARPS, text = task / PIECES, piece = task % PIECES, at = piece * 128 + lane * 4;
      if (task >= tasks) break;
      float4 x = v[i][0];
#pragma unroll
      for (int p = 1; p <= PARTS; ++p) x.x += v[i][p].x, x.y += v[i][p].y, x.z += v[i][p].z, x.w += v[i][p].w;
      const float squares = warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
      if (lane == 0) k.squares[text][piece] = squares;
      if (at < HIDDEN) {
        *(float4*)(act + text * pitch + at) = x;
        if (blockIdx.x == 0 && r.out) *(float4*)(r.out + text * HIDDEN + at) = x;
      }
    }
  }
  __syncthreads();
  for (int task = warp; task < r.texts * PIECES; task += WARPS) {
    const int text = task / PIECES, at = task % PIECES * 128 + lane * 4;
    if (at >= HIDDEN) continue;
    float squares = 0.f;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) squares += k.squares[text][p];
    const float rms = rsqrtf(squares / HIDDEN + r.eps);
    const float4 x = *(const float4*)(act + text * pitch + at);
    const uint2 w = *(const uint2*)(k.norm + at);
    const float4 n = make_float4(x.x * rms * half_of(w.x), x.y * rms * half_of(w.x >> 16), x.z * rms * half_of(w.y),
                                 x.w * rms * half_of(w.y >> 16));
    const uint4 both = split4(n);
    *(uint4*)(act + text * pitch + at) = both;
    if (hidden && k.text[text].position >= 0)
      *(uint2*)(hidden + (long)k.text[text].slot * HIDDEN + at) = make_uint2(both.x, both.y);
  }
  __syncthreads();
}

// --- kernels. Dynamic shared memory: strips of `gate_up` and `down`, activations (texts, PITCH(K)), sums (WARPS, texts,
// columns) ----------------------------------------------------------------------------------------------------------------
// out (TEXTS, QKV) = norm(x) . W + bias. Grid: QKV / (8 * QKV_C). The first layer has no delta but the embedding.
template <int PARTS>
__device__ __forceinline__ void qkv_of(char* shared, const u16* matrix, const u16* bias, const Residual& r, float* out) {
  __shared__ Known known;
  constexpr int N = STEPS(HIDDEN, WARPS), C = QKV_C, columns = 8 * C;
  float* act = (float*)shared;
  float* part = act + r.texts * PITCH(HIDDEN);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * columns;
  pdl_trigger();
  Strip<N, C> strip;
  load_strip(strip, matrix, QKV, first, warp, WARPS, HIDDEN / 16, lane);
  load_known(known, r);
  pdl_wait();
  residual_norm<PARTS>(act, PITCH(HIDDEN), known, r, 0);
  float acc[C][4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int step = warp + i * WARPS;
    if (step < HIDDEN / 16) {
      u32 a[4];
      fragment(a, act, PITCH(HIDDEN), r.texts, step * 16 + (lane & 3) * 4, lane >> 2);
      multiply(acc, strip.w[i], a);
    }
  }
  put_sums(part, columns, 0, acc, r.texts, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < r.texts * columns; i += BLOCK) {
    const int text = i / columns, column = i % columns;
    float v = total(part, columns, r.texts, text, column);
#if QKV_BIAS
    v += half_of(bias[first + column]);
#endif
    out[text * QKV + first + column] = v;
  }
}
extern "C" __global__ void __launch_bounds__(BLOCK, 2) first_qkv(const u16* m, const u16* bias, Residual r, float* out) {
  extern __shared__ __align__(16) char shared[];
  qkv_of<0>(shared, m, bias, r, out);
}
extern "C" __global__ void __launch_bounds__(BLOCK, 2) qkv(const u16* m, const u16* bias, Residual r, float* out) {
  extern __shared__ __align__(16) char shared[];
  qkv_of<DOWN_PARTS>(shared, m, bias, r, out);
}

// What the blocks of one KV head left: each block's own softmax average, the maximum (log2) and the sum of its exponentials.
struct Partial {
  float* values;  // (TEXTS, Q_HEADS, SPLITS, HEAD_DIM)
  float2* ml;     // (TEXTS, Q_HEADS, SPLITS)
};
// Four splits of four columns of one head.
struct Four {
  float2 ml[4];
  float4 one[4];
};
__device__ __forceinline__ void load4(Four& f, const Partial& p, int head, int first, int active, int column) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    f.ml[s] = make_float2(-1e30f, 0.f), f.one[s] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (first + s < active) {
      f.ml[s] = __ldcg(p.ml + head * SPLITS + first + s);
      f.one[s] = __ldcg((const float4*)(p.values + (head * SPLITS + first + s) * HEAD_DIM + column));
    }
  }
}
// Take four more splits into the average v, which is not yet divided by `sum`.
__device__ __forceinline__ void merge4(float4& v, float& top, float& sum, const Four& f) {
  const float known = top;
#pragma unroll
  for (int s = 0; s < 4; ++s) top = fmaxf(top, f.ml[s].x);
  const float shrink = exp2f(known - top);
  v.x *= shrink, v.y *= shrink, v.z *= shrink, v.w *= shrink, sum *= shrink;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const float w = exp2f(f.ml[s].x - top) * f.ml[s].y;
    sum += w;
    v.x = fmaf(w, f.one[s].x, v.x), v.y = fmaf(w, f.one[s].y, v.y);
    v.z = fmaf(w, f.one[s].z, v.z), v.w = fmaf(w, f.one[s].w, v.w);
  }
}
// out (TEXTS, HIDDEN) = attention . W. Grid: HIDDEN / (8 * O_C).
extern "C" __global__ void __launch_bounds__(BLOCK, 2)
o_proj(const u16* matrix, Partial p, const Text* text_of, int texts, float* out) {
  extern __shared__ __align__(16) char shared[];
  __shared__ int active_of[TEXTS];
  constexpr int N = STEPS(ATT_WIDTH, WARPS), C = O_C, columns = 8 * C;
  float* act = (float*)shared;
  float* part = act + texts * PITCH(ATT_WIDTH);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * columns;
  pdl_trigger();
  Strip<N, C> strip;
  load_strip(strip, matrix, HIDDEN, first, warp, WARPS, ATT_WIDTH / 16, lane);
  if (threadIdx.x < texts) {
    const int now = text_of[threadIdx.x].position;
    active_of[threadIdx.x] = now < 0 ? 0 : spread(now).active;
  }
  __syncthreads();
  pdl_wait();
  for (int begin = threadIdx.x; begin < texts * (ATT_WIDTH / 4); begin += BLOCK * MERGE_TOGETHER) {
    Four f[MERGE_TOGETHER];
#pragma unroll
    for (int j = 0; j < MERGE_TOGETHER; ++j) {
      const int i = begin + j * BLOCK, text = i / (ATT_WIDTH / 4), at = i % (ATT_WIDTH / 4) * 4;
      const int active = text < texts ? active_of[text] : 0;
      load4(f[j], p, text * Q_HEADS + at / HEAD_DIM, 0, active, at % HEAD_DIM);
    }
#pragma unroll
    for (int j = 0; j < MERGE_TOGETHER; ++j) {
      const int i = begin + j * BLOCK, text = i / (ATT_WIDTH / 4), at = i % (ATT_WIDTH / 4) * 4;
      if (text >= texts) break;
      const int active = active_of[text], head = text * Q_HEADS + at / HEAD_DIM;
      float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
      float top = -1e30f, sum = 0.f;
      merge4(v, top, sum, f[j]);
      for (int s = 4; s < active; s += 4) {
        load4(f[j], p, head, s, active, at % HEAD_DIM);
        merge4(v, top, sum, f[j]);
      }
      if (active) v.x /= sum, v.y /= sum, v.z /= sum, v.w /= sum;
      *(uint4*)(act + text * PITCH(ATT_WIDTH) + at) = split4(v);
    }
  }
  __syncthreads();
  float acc[C][4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int step = warp + i * WARPS;
    if (step < ATT_WIDTH / 16) {
      u32 a[4];
      fragment(a, act, PITCH(ATT_WIDTH), texts, step * 16 + (lane & 3) * 4, lane >> 2);
      multiply(acc, strip.w[i], a);
    }
  }
  put_sums(part, columns, 0, acc, texts, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < texts * columns; i += BLOCK) {
    const int text = i / columns, column = i % columns;
    out[text * HIDDEN + first + column] = total(part, columns, texts, text, column);
  }
}

// out (TEXTS, FFN) = silu(gate) * up, split in fours. The matrix holds gate's columns, then up's. Grid: FFN / (8 * GATE_C).
// Gate's strip waits in registers where GATE_HELD, otherwise in shared memory as up's does.
extern "C" __global__ void __launch_bounds__(BLOCK, GATE_BLOCKS) gate_up(const u16* matrix, Residual r, u16* out) {
  extern __shared__ __align__(16) char shared[];
  __shared__ Known known;
  constexpr int C = GATE_C, columns = 8 * C, strip_bytes = HIDDEN * columns * 2, N = STEPS(HIDDEN, WARPS);
  constexpr int unrolled = GATE_HELD ? N : 4;
  char *ups = shared, *gates = shared + strip_bytes;
  float* act = (float*)(shared + (GATE_HELD ? 1 : 2) * strip_bytes);
  float* part = act + r.texts * PITCH(HIDDEN);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * columns;
  pdl_trigger();
  Strip<GATE_HELD ? N : 1, C> held;
  if (GATE_HELD)
    load_strip(held, matrix, 2 * FFN, first, warp, WARPS, HIDDEN / 16, lane);
  else
    copy_strip<C>(gates, matrix, 2 * FFN, first, HIDDEN);
  copy_strip<C>(ups, matrix, 2 * FFN, FFN + first, HIDDEN);
  load_known(known, r);
  pdl_wait();
  copies_done();
  residual_norm<1>(act, PITCH(HIDDEN), known, r, 0);
  float gate[C][4] = {}, up[C][4] = {};
#pragma unroll(unrolled)
  for (int i = 0; i < N; ++i) {
    const int step = warp + i * WARPS;
    if (step >= HIDDEN / 16) continue;
    u32 a[4], w[4][C / 2];
    fragment(a, act, PITCH(HIDDEN), r.texts, step * 16 + (lane & 3) * 4, lane >> 2);
    if (!GATE_HELD) read_strip<C>(w, gates, step, lane);
    multiply(gate, GATE_HELD ? held.w[GATE_HELD ? i : 0] : w, a);
    read_strip<C>(w, ups, step, lane);
    multiply(up, w, a);
  }
  put_sums(part, 2 * columns, 0, gate, r.texts, lane);
  put_sums(part, 2 * columns, columns, up, r.texts, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < r.texts * columns; i += BLOCK) {
    const int text = i / columns, column = i % columns;
    const float g = total(part, 2 * columns, r.texts, text, column);
    const float u = total(part, 2 * columns, r.texts, text, columns + column);
    const float v = g / (1.f + exp2f(-1.4426950408889634f * g)) * u;
    const u32 hi = pair_of(v, 0.f), lo = pair_of(v - half_of(hi), 0.f);
    u16* to = out + ((long)text * FFN + (first + column & ~3)) * 2 + (column & 3);
    to[0] = (u16)hi, to[4] = (u16)lo;
  }
}

// out (DOWN_PARTS, TEXTS, HIDDEN) = act . W, a part of the rows each. Grid: (HIDDEN / (8 * DOWN_C), DOWN_PARTS).
extern "C" __global__ void __launch_bounds__(BLOCK, 3) down(const u16* matrix, const float* from, int texts, float* out) {
  extern __shared__ __align__(16) char shared[];
  constexpr int K = FFN / DOWN_PARTS, C = DOWN_C, columns = 8 * C;
  static_assert(FFN % (16 * DOWN_PARTS) == 0, "whole steps a part");
  float* act = (float*)(shared + K * columns * 2);
  float* part = act + texts * PITCH(K);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * columns, k = blockIdx.y * K;
  pdl_trigger();
  copy_strip<C>(shared, matrix + (long)k * HIDDEN, HIDDEN, first, K);
  pdl_wait();
#pragma unroll 4
  for (int i = threadIdx.x; i < texts * (K / 4); i += BLOCK) {
    const int text = i / (K / 4), at = i % (K / 4) * 4;
    *(float4*)(act + text * PITCH(K) + at) = __ldcg((const float4*)(from + (long)text * FFN + k + at));
  }
  copies_done();
  __syncthreads();
  float acc[C][4] = {};
#pragma unroll 4
  for (int step = warp; step < K / 16; step += WARPS) {
    u32 a[4], w[4][C / 2];
    fragment(a, act, PITCH(K), texts, step * 16 + (lane & 3) * 4, lane >> 2);
    read_strip<C>(w, shared, step, lane);
    multiply(acc, w, a);
  }
  put_sums(part, columns, 0, acc, texts, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < texts * columns; i += BLOCK) {
    const int text = i / columns, column = i % columns;
    out[(blockIdx.y * TEXTS + text) * HIDDEN + first + column] = total(part, columns, texts, text, column);
  }
}

// --- attention ----------------------------------------------------------------------------------------------------------
struct Attention {
  const float* qkv;  // (TEXTS, QKV) of this step
  const u16* cosine; // (positions, HEAD_DIM / 2), as ONNX Runtime's graph has it
  const u16* sine;
  char* k;           // the layer's keys and values of slot 0, each (KV_HEADS, capacity, HEAD_DIM) fp16
  char* v;
  u64 slot_bytes;    // from one slot's to the next one's
  Partial partial;
  const Text* text;
  int capacity;
  float scale;       // 1 / sqrt(HEAD_DIM) * log2(e): exponentials below are of base 2
};
// 16 positions. Keys: lane (g, t) has positions g and g + 8, of each 64 dims 8t .. 8t + 8 and 32 more; values: positions
// 2t, 2t + 1, 2t + 8, 2t + 9, of each 64 dims 8g .. 8g + 8.
#define CHUNKS (HEAD_DIM / 64)
struct KvTile {
  uint4 k[2][2 * CHUNKS], v[4][CHUNKS];
};
__device__ __forceinline__ void load_kv(KvTile& tile, const u16* keys, const u16* values, int base, int hi, int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u16* p = keys + (long)min(base + g + 8 * i, hi - 1) * HEAD_DIM + 8 * t;
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; ++c) tile.k[i][c] = __ldcg((const uint4*)(p + 32 * c));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u16* p = values + (long)min(base + 2 * t + (i & 1) + 8 * (i >> 1), hi - 1) * HEAD_DIM + 8 * g;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) tile.v[i][c] = __ldcg((const uint4*)(p + 64 * c));
  }
}
// One head's running softmax over a warp's positions. acc[8c + j]: columns 64c + 8 * (2t) + j and 64c + 8 * (2t + 1) + j.
struct Running {
  float top, sum, acc[8 * CHUNKS][4];
};
__device__ __forceinline__ void attend(Running& r, const KvTile& tile, const u32 (&q)[4 * CHUNKS][4], int base, int hi, int t) {
  float s[2][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < 2 * CHUNKS; ++c) {
      mma(s[i], q[2 * c], tile.k[i][c].x, tile.k[i][c].y);
      mma(s[i], q[2 * c + 1], tile.k[i][c].z, tile.k[i][c].w);
    }
  }
  float score[4] = {s[0][0] + s[0][2], s[0][1] + s[0][3], s[1][0] + s[1][2], s[1][1] + s[1][3]};
  float top = r.top;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (base + 2 * t + (i & 1) + 8 * (i >> 1) >= hi) score[i] = -1e30f;
    top = fmaxf(top, score[i]);
  }
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  const float shrink = exp2f(r.top - top);
  r.top = top;
  r.sum *= shrink;
#pragma unroll
  for (int i = 0; i < 8 * CHUNKS; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) r.acc[i][j] *= shrink;
  float4 e;
  e.x = score[0] > -1e29f ? exp2f(score[0] - top) : 0.f, e.y = score[1] > -1e29f ? exp2f(score[1] - top) : 0.f;
  e.z = score[2] > -1e29f ? exp2f(score[2] - top) : 0.f, e.w = score[3] > -1e29f ? exp2f(score[3] - top) : 0.f;
  r.sum += e.x + e.y + e.z + e.w;
  const uint4 both = split4(e);
  const u32 a[4] = {both.x, both.z, both.y, both.w};
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const u32 v0[4] = {tile.v[0][c].x, tile.v[0][c].y, tile.v[0][c].z, tile.v[0][c].w};
    const u32 v1[4] = {tile.v[1][c].x, tile.v[1][c].y, tile.v[1][c].z, tile.v[1][c].w};
    const u32 v2[4] = {tile.v[2][c].x, tile.v[2][c].y, tile.v[2][c].z, tile.v[2][c].w};
    const u32 v3[4] = {tile.v[3][c].x, tile.v[3][c].y, tile.v[3][c].z, tile.v[3][c].w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      mma(r.acc[8 * c + 2 * p], a, __byte_perm(v0[p], v1[p], 0x5410), __byte_perm(v2[p], v3[p], 0x5410));
      mma(r.acc[8 * c + 2 * p + 1], a, __byte_perm(v0[p], v1[p], 0x7632), __byte_perm(v2[p], v3[p], 0x7632));
    }
  }
}
// Rotate pair `pair` of the head at x: (first, second) of columns pair and pair + HEAD_DIM / 2.
__device__ __forceinline__ float2 rotated(const float* x, const Attention& p, int now, int pair) {
  const float a = __ldcg(x + pair), b = __ldcg(x + pair + HEAD_DIM / 2);
  const float c = half_of(p.cosine[(long)now * (HEAD_DIM / 2) + pair]), s = half_of(p.sine[(long)now * (HEAD_DIM / 2) + pair]);
  return make_float2(a * c - b * s, b * c + a * s);
}
// RoPE, KV append and attention. Grid (SPLITS, KV_HEADS, texts), 128 threads. `o_proj` merges what the splits leave.
extern "C" __global__ void __launch_bounds__(32 * ATT_WARPS) attention(Attention p) {
  __shared__ __align__(16) u16 query[2][8][HEAD_DIM + 16];
  __shared__ float acc_of[ATT_WARPS][8][HEAD_DIM];
  __shared__ float2 ml_of[ATT_WARPS][8];
  static_assert(GROUP <= 8, "one tile of queries");
  pdl_trigger();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int split = blockIdx.x, head = blockIdx.y, text = blockIdx.z;
  const int now = p.text[text].position;  // written by the host before the step: fixed during this graph
  if (now < 0) return;
  const Spread way = spread(now);
  if (split >= way.active) return;
  const int lo = split * way.per, hi = min(lo + way.per, now + 1);
  const long at = (long)p.text[text].slot * p.slot_bytes;
  u16* keys = (u16*)(p.k + at) + (long)head * p.capacity * HEAD_DIM;
  u16* values = (u16*)(p.v + at) + (long)head * p.capacity * HEAD_DIM;
  int base = lo + warp * 16;
  const bool early = base + 16 <= now && base < hi;  // earlier positions do not depend on the predecessor
  KvTile tile;
  if (early) load_kv(tile, keys, values, base, hi, lane);
  pdl_wait();
  const float* x = p.qkv + text * QKV;
  for (int i = threadIdx.x; i < 8 * (HEAD_DIM / 2); i += 32 * ATT_WARPS) {
    const int h = i / (HEAD_DIM / 2), pair = i % (HEAD_DIM / 2);
    float2 r = make_float2(0.f, 0.f);
    if (h < GROUP) r = rotated(x + (head * GROUP + h) * HEAD_DIM, p, now, pair);
    const u32 up = pair_of(r.x * p.scale, r.y * p.scale);
    const u32 rest = pair_of(r.x * p.scale - half_of(up), r.y * p.scale - half_of(up >> 16));
    query[0][h][pair] = (u16)up, query[0][h][pair + HEAD_DIM / 2] = (u16)(up >> 16);
    query[1][h][pair] = (u16)rest, query[1][h][pair + HEAD_DIM / 2] = (u16)(rest >> 16);
  }
  if (now < hi && threadIdx.x < HEAD_DIM / 2) {  // the last block appends
    const float2 r = rotated(x + ATT_WIDTH + head * HEAD_DIM, p, now, threadIdx.x);
    const u32 key = pair_of(r.x, r.y);
    u16* to = keys + (long)now * HEAD_DIM + threadIdx.x;
    to[0] = (u16)key, to[HEAD_DIM / 2] = (u16)(key >> 16);
    const float2 value = *(const float2*)(x + ATT_WIDTH + KV_WIDTH + head * HEAD_DIM + 2 * threadIdx.x);
    *(u32*)(values + (long)now * HEAD_DIM + 2 * threadIdx.x) = pair_of(value.x, value.y);
  }
  __syncthreads();
  if (base < hi && !early) load_kv(tile, keys, values, base, hi, lane);
  u32 q[4 * CHUNKS][4];
#pragma unroll
  for (int c = 0; c < 2 * CHUNKS; ++c) {
    const uint4 up = *(const uint4*)&query[0][g][32 * c + 8 * t], rest = *(const uint4*)&query[1][g][32 * c + 8 * t];
    q[2 * c][0] = up.x, q[2 * c][1] = rest.x, q[2 * c][2] = up.y, q[2 * c][3] = rest.y;
    q[2 * c + 1][0] = up.z, q[2 * c + 1][1] = rest.z, q[2 * c + 1][2] = up.w, q[2 * c + 1][3] = rest.w;
  }
  Running run = {-1e30f, 0.f};
  while (base < hi) {
    const int next = base + 16 * ATT_WARPS;
    KvTile following;
    if (next < hi) load_kv(following, keys, values, next, hi, lane);
    attend(run, tile, q, base, hi, t);
    tile = following;
    base = next;
  }
  run.sum += __shfl_xor_sync(~0u, run.sum, 1);
  run.sum += __shfl_xor_sync(~0u, run.sum, 2);
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float(&v)[4] = run.acc[8 * c + j];
      acc_of[warp][g][64 * c + 16 * t + j] = v[0] + v[2];
      acc_of[warp][g][64 * c + 16 * t + 8 + j] = v[1] + v[3];
    }
  }
  if (t == 0) ml_of[warp][g] = make_float2(run.top, run.sum);
  __syncthreads();
  for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += 32 * ATT_WARPS) {
    const int h = i / HEAD_DIM, dim = i % HEAD_DIM;
    float top = -1e30f, sum = 0.f, v = 0.f;
#pragma unroll
    for (int w = 0; w < ATT_WARPS; ++w) top = fmaxf(top, ml_of[w][h].x);
#pragma unroll
    for (int w = 0; w < ATT_WARPS; ++w) {
      const float e = exp2f(ml_of[w][h].x - top);
      sum = fmaf(e, ml_of[w][h].y, sum);
      v = fmaf(e, acc_of[w][h][dim], v);
    }
    const long slot = ((long)text * Q_HEADS + head * GROUP + h) * SPLITS + split;
    p.partial.values[slot * HEAD_DIM + dim] = v / sum;
    if (dim == 0) p.partial.ml[slot] = make_float2(top, sum);
  }
}

// --- the LM head ----------------------------------------------------------------------------------------------------------
struct Choice {
  u64* best;         // (TEXTS) ordered logit << 32 | ~row; 0 between steps
  u32* arrived;      // 0 between steps
  long long* token;  // (TEXTS) out
  float* logits;     // (texts, VOCAB) or null
  u16* hidden;       // (slots, HIDDEN) fp16: each text's row at its slot, out
};
// logits = norm(x) . embedding^T, 8 vocabulary rows a warp at a time: lane (g, t) has row g, of each 32 columns 8t .. 8t + 8.
extern "C" __global__ void __launch_bounds__(BLOCK, 2) lm_head(const u16* table, Residual r, Choice c) {
  extern __shared__ __align__(16) char shared[];
  __shared__ u64 best_of[WARPS][TEXTS];
  __shared__ Known known;
  constexpr int LOADS = HIDDEN / 32, ROUNDS = LOADS / HEAD_LOADS, pitch = PITCH(HIDDEN);
  static_assert(LOADS % HEAD_LOADS == 0 && VOCAB % 8 == 0, "whole rounds");
  float* act = (float*)shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int groups = VOCAB / 8, stride = gridDim.x * WARPS;
  pdl_trigger();
  u32 w[HEAD_LOADS][4];
  int group = blockIdx.x * WARPS + warp;
  if (group < groups) {
#pragma unroll
    for (int i = 0; i < HEAD_LOADS; ++i) load_weights(w[i], table + ((long)group * 8 + g) * HIDDEN + 32 * i + 8 * t);
  }
  load_known(known, r);
  pdl_wait();
  residual_norm<DOWN_PARTS>(act, pitch, known, r, blockIdx.x == 0 ? c.hidden : 0);
  u64 best = 0;
  while (group < groups) {
    const int next = group + stride;
    float acc[2][4] = {};
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int ahead = min(round + 1 < ROUNDS ? group : next, groups - 1), from = (round + 1) % ROUNDS * HEAD_LOADS;
      const u16* p = table + ((long)ahead * 8 + g) * HIDDEN + 32 * from + 8 * t;
#pragma unroll
      for (int i = 0; i < HEAD_LOADS; ++i) {
        const int at = 32 * (round * HEAD_LOADS + i) + 8 * t;
        u32 a[4], b[4];
        fragment(a, act, pitch, r.texts, at, g);
        fragment(b, act, pitch, r.texts, at + 4, g);
        mma(acc[0], a, w[i][0], w[i][1]);
        mma(acc[1], b, w[i][2], w[i][3]);
        load_weights(w[i], p + 32 * i);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float v = acc[0][i] + acc[0][i + 2] + (acc[1][i] + acc[1][i + 2]);
      const int row = group * 8 + 2 * t + i;
      if (c.logits && g < r.texts) c.logits[(long)g * VOCAB + row] = v;
      u32 bits = __float_as_uint(v);
      bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
      const u64 key = (u64)bits << 32 | (u32)~row;  // equal logits: the lower row wins
      best = key > best ? key : best;
    }
    group = next;
  }
#pragma unroll
  for (int o = 1; o < 4; o <<= 1) {
    const u32 low = __shfl_xor_sync(~0u, (int)(u32)best, o), high = __shfl_xor_sync(~0u, (int)(u32)(best >> 32), o);
    const u64 other = (u64)high << 32 | low;
    best = other > best ? other : best;
  }
  if (t == 0) best_of[warp][g] = best;
  __syncthreads();
  if (threadIdx.x < r.texts) {
    best = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) best = best_of[i][threadIdx.x] > best ? best_of[i][threadIdx.x] : best;
    atomicMax(c.best + threadIdx.x, best);
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(c.arrived, 1u) == gridDim.x - 1) {
    __threadfence();
    for (int i = 0; i < r.texts; ++i) c.token[i] = (long long)(u32)~(u32)atomicExch(c.best + i, 0ull);
    *c.arrived = 0;
  }
}
