// The same products of 64 weight rows and 8 tokens, three ways, over one chain of steps of 16 elements of k:
// mma.sync with the weights as its left operand, mma.sync with the tokens there, and wgmma. One block of 128 threads.
// `w` is [64, k] and `x` [8, k], both bf16; `out` is [3, 64, 8] f32, one result for each way.

typedef unsigned u32;
typedef unsigned long long u64;

__device__ void mma(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
bits(const unsigned short* w, const unsigned short* x, float* out, int k) {
  // The tokens of a step as wgmma wants them: two matrices of 8 rows by 16 bytes.
  __shared__ __align__(1024) unsigned short right[128];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float left[4] = {}, low[4] = {}, high[4] = {}, group[4] = {};
  const u32* wl = (const u32*)(w + (long)(warp * 16 + g) * k);
  const u32* wh = (const u32*)(w + (long)(warp * 16 + g + 8) * k);
  const u32* xg = (const u32*)(x + (long)g * k);
  for (int s = 0; s < k / 16; s++) {
    u32 a0 = wl[s * 8 + t], a1 = wh[s * 8 + t], a2 = wl[s * 8 + t + 4], a3 = wh[s * 8 + t + 4];
    u32 b0 = xg[s * 8 + t], b1 = xg[s * 8 + t + 4];
    mma(left, a0, a1, a2, a3, b0, b1);
    // Tokens on the left, twice, and eight weight rows on the right.
    mma(low, b0, b0, b1, b1, a0, a2);
    mma(high, b0, b0, b1, b1, a1, a3);
    __syncthreads();
    int row = threadIdx.x / 8 % 8, column = threadIdx.x % 8, half = threadIdx.x / 64;
    right[half * 64 + row * 8 + column] = x[(long)row * k + s * 16 + half * 8 + column];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    u32 address = (u32)__cvta_generic_to_shared(right);
    u64 matrices = (u64)((address & 0x3ffff) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{.reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},%8,p,1,1,0;}"
                 : "+f"(group[0]), "+f"(group[1]), "+f"(group[2]), "+f"(group[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(matrices), "r"(s > 0 ? 1 : 0)
                 : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 2; i++) {
    int row = warp * 16 + g, column = 2 * t + i;
    out[row * 8 + column] = left[i];
    out[(row + 8) * 8 + column] = left[2 + i];
    // Of these the rows are tokens.
    out[512 + (warp * 16 + column) * 8 + g] = low[i];
    out[512 + (warp * 16 + 8 + column) * 8 + g] = high[i];
    out[1024 + row * 8 + column] = group[i];
    out[1024 + (row + 8) * 8 + column] = group[2 + i];
  }
}
