// Launches of kernels: their grids are checked, nothing is computed.
#include "sim.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

// ---- what nvcc's code calls at start and around `kernel<<<...>>>`
static std::unordered_map<const void *, std::string> mangled;

API void **__cudaRegisterFatBinary(void *binary) { return new void *(binary); }
API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **) {}
API char __cudaInitModule(void **) { return 1; }
API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
API void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                                dim3 *, int *) {
  mangled[function] = name;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void *stream;
};
static thread_local std::vector<Configuration> configurations;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *(void **)stream = top.stream;
  return cudaSuccess;
}

// ---- launches
static const char *name_of(const void *function) {
  static std::unordered_map<const void *, std::string> names;
  Lock lock(all);
  auto known = names.find(function);
  if (known != names.end()) return known->second.c_str();
  std::string name = mangled.count(function) ? mangled[function] : "?";
  int status;
  if (char *readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)) {
    name = readable;
    free(readable);
  }
  return (names[function] = name).c_str();
}

API cudaError_t sim_kernel(const char *name, cudaStream_t stream) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[KERNELS]++;
  if (CUgraph_st *capture = capture_of(stream)) return record(capture, {Node::KERNEL, name});
  return cudaSuccess;
}

static bool fits(dim3 grid, unsigned threads, size_t shared) {
  bool some = grid.x && grid.y && grid.z && threads;
  return some && grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535 && threads <= 1024 &&
         shared <= (size_t)most_shared_bytes();
}

API cudaError_t sim_launch(const char *name, dim3 grid, unsigned threads, size_t shared, cudaStream_t stream) {
  if (fits(grid, threads, shared)) return sim_kernel(name, stream);
  log_line("BAD LAUNCH of %s: grid %u %u %u, %u threads, %zu bytes", name, grid.x, grid.y, grid.z, threads, shared);
  log_callers();
  return fail(cudaErrorInvalidConfiguration);
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  return sim_launch(name_of(function), grid, block.x * block.y * block.z, shared, stream);
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, shared, stream);
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **, size_t shared,
                                   cudaStream_t stream) {
  return launch(kernel, grid, block, shared, stream);
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **, size_t shared,
                                            cudaStream_t stream) {
  return launch(function, grid, block, shared, stream);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **) {
  return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

// ---- what PyTorch asks of a kernel
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *found, const void *) {
  memset(found, 0, sizeof *found);
  int built = 75;
  for (int wheel : {75, 80, 86, 90, 100, 120})  // for which PyTorch's wheel has code
    if (wheel <= capability()) built = wheel;
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = built;
  found->maxDynamicSharedSizeBytes = most_shared_bytes();
  return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value <= most_shared_bytes()) return cudaSuccess;
  log_line("TOO MUCH shared memory for %s: %d", name_of(function), value);
  return fail(cudaErrorInvalidValue);
}

API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *, int, size_t) {
  *n = 2;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *, int, size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  *pointer = (void *)symbol;
  return cudaSuccess;
}

API cudaError_t cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
