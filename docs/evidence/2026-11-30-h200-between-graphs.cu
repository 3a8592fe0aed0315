// What copies and kernels between two graphs on a stream cost the device: a graph of 20 kernels, over and over.
#include <cuda_runtime.h>
#include <cstdio>
#include <vector>
#include <algorithm>
#define CK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1);} } while (0)
__global__ void spin(float *p, int n) { float v = p[threadIdx.x]; for (int i = 0; i < n; i++) v = v * 1.0001f + 0.5f; p[threadIdx.x] = v; }
__global__ void pull(const uint4 *from, uint4 *to, int n) { for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i]; }
__global__ void push(const unsigned *from, unsigned *to, int n) { int i = threadIdx.x; if (i < n) to[i] = from[i]; }
int main() {
  cudaStream_t s, side; CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  float *d; CK(cudaMalloc(&d, 1 << 20)); unsigned char *tab; CK(cudaMalloc(&tab, 1 << 20)); unsigned char *h; CK(cudaMallocHost(&h, 1 << 20)); unsigned char *o; CK(cudaMallocHost(&o, 1 << 20)); unsigned *drawn; CK(cudaMalloc(&drawn, 1 << 16));
  cudaGraph_t g; cudaGraphExec_t ge;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal)); for (int i = 0; i < 20; i++) spin<<<132, 128, 0, s>>>(d, 2000); CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&ge, g, 0)); CK(cudaGraphUpload(ge, s));
  cudaEvent_t a, b, ready, done; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b)); CK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming)); CK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  auto time = [&](const char *name, auto body) {
    std::vector<float> t;
    for (int r = 0; r < 9; r++) { for (int i = 0; i < 3; i++) body(); CK(cudaEventRecord(a, s)); for (int i = 0; i < 100; i++) body(); CK(cudaEventRecord(b, s)); CK(cudaEventSynchronize(b)); float ms; CK(cudaEventElapsedTime(&ms, a, b)); t.push_back(ms * 10); }
    std::sort(t.begin(), t.end()); static float base = 0; if (base == 0) base = t[4]; printf("%-44s %8.2f us  (+%.2f)\n", name, t[4], t[4] - base);
  };
  auto graph = [&] { CK(cudaGraphLaunch(ge, s)); };
  for (int i = 0; i < 300; i++) graph(); CK(cudaStreamSynchronize(s));
  time("graph", graph);
  time("event after graph", [&] { graph(); CK(cudaEventRecord(done, s)); });
  for (int bytes : {2048, 16384, 65536, 262144, 524288}) { char n[64]; sprintf(n, "h2d %d, graph", bytes); time(n, [&] { CK(cudaMemcpyAsync(tab, h, bytes, cudaMemcpyHostToDevice, s)); graph(); }); }
  for (int rows : {8, 64, 256}) for (int width : {16, 48, 256}) { char n[64]; sprintf(n, "h2d 2d %d x %d of 2048, graph", rows, width); time(n, [&] { CK(cudaMemcpy2DAsync(tab, 2048, h, 2048, width, rows, cudaMemcpyHostToDevice, s)); graph(); }); }
  for (int rows : {8, 256}) { char n[64]; sprintf(n, "h2d 2d %d x 48 packed host, graph", rows); time(n, [&] { CK(cudaMemcpy2DAsync(tab, 2048, h, 48, 48, rows, cudaMemcpyHostToDevice, s)); graph(); }); }
  for (int bytes : {2048, 16384, 65536}) { char n[64]; sprintf(n, "pull kernel %d, graph", bytes); time(n, [&] { pull<<<std::max(1, bytes / 4096), 256, 0, s>>>((uint4 *)h, (uint4 *)tab, bytes / 16); graph(); }); }
  time("graph, kernel", [&] { graph(); spin<<<132, 128, 0, s>>>(d, 10); });
  time("graph, h2d 8192, kernel", [&] { graph(); CK(cudaMemcpyAsync(tab, h, 8192, cudaMemcpyHostToDevice, s)); spin<<<132, 128, 0, s>>>(d, 10); });
  time("graph, d2h 2048", [&] { graph(); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, s)); });
  time("graph, push kernel", [&] { graph(); push<<<1, 512, 0, s>>>(drawn, (unsigned *)o, 512); });
  time("before: h2d 16K, graph, h2d 8K, kernel, d2h", [&] { CK(cudaMemcpyAsync(tab, h, 16384, cudaMemcpyHostToDevice, s)); graph(); CK(cudaMemcpyAsync(tab, h, 8192, cudaMemcpyHostToDevice, s)); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, s)); CK(cudaEventRecord(done, s)); });
  time("before 256: h2d 524K", [&] { CK(cudaMemcpyAsync(tab, h, 524288, cudaMemcpyHostToDevice, s)); graph(); CK(cudaMemcpyAsync(tab, h, 16384, cudaMemcpyHostToDevice, s)); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, s)); CK(cudaEventRecord(done, s)); });
  time("h2d 16K+8K, graph, kernel, d2h", [&] { CK(cudaMemcpyAsync(tab, h, 24576, cudaMemcpyHostToDevice, s)); graph(); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, s)); CK(cudaEventRecord(done, s)); });
  time("h2d 24K, graph, kernel, push", [&] { CK(cudaMemcpyAsync(tab, h, 24576, cudaMemcpyHostToDevice, s)); graph(); spin<<<132, 128, 0, s>>>(d, 10); push<<<1, 512, 0, s>>>(drawn, (unsigned *)o, 512); CK(cudaEventRecord(done, s)); });
  time("h2d 24K, graph, kernel, d2h aside", [&] { CK(cudaMemcpyAsync(tab, h, 24576, cudaMemcpyHostToDevice, s)); graph(); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaEventRecord(ready, s)); CK(cudaStreamWaitEvent(side, ready, 0)); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, side)); CK(cudaEventRecord(done, side)); });
  time("pull 24K, graph, kernel, d2h aside", [&] { pull<<<6, 256, 0, s>>>((uint4 *)h, (uint4 *)tab, 1536); graph(); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaEventRecord(ready, s)); CK(cudaStreamWaitEvent(side, ready, 0)); CK(cudaMemcpyAsync(o, drawn, 2048, cudaMemcpyDeviceToHost, side)); CK(cudaEventRecord(done, side)); });
  time("h2d aside + wait, graph, kernel, d2h aside", [&] { CK(cudaMemcpyAsync(tab, h, 24576, cudaMemcpyHostToDevice, side)); CK(cudaEventRecord(done, side)); CK(cudaStreamWaitEvent(s, done, 0)); graph(); spin<<<132, 128, 0, s>>>(d, 10); CK(cudaEventRecord(ready, s)); });
  time("wait on a past event, graph", [&] { CK(cudaStreamWaitEvent(s, done, 0)); graph(); });
  time("pull 24K, graph, kernel, push", [&] { pull<<<6, 256, 0, s>>>((uint4 *)h, (uint4 *)tab, 1536); graph(); spin<<<132, 128, 0, s>>>(d, 10); push<<<1, 512, 0, s>>>(drawn, (unsigned *)o, 512); CK(cudaEventRecord(done, s)); });
  time("graph again", graph);
}
