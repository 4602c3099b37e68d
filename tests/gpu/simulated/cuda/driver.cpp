// The CUDA driver (libcuda.so.1), as far as Triton and PyTorch call it.
#include <cuda.h>

#include <cstdio>
#include <string>

#include "sim.h"

static int context, library;

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

API CUresult cuDriverGetVersion(int *version) { return (CUresult)cudaDriverGetVersion(version); }

API CUresult cuDeviceGet(CUdevice *device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *n) { return (CUresult)cudaGetDeviceCount(n); }

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  *value = sim_attribute((int)attribute);
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = cudaGetErrorString((cudaError_t)error);
  return CUDA_SUCCESS;
}

// ---- contexts: one
API CUresult cuCtxGetCurrent(CUcontext *current) {
  *current = (CUcontext)&context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

API CUresult cuCtxGetLimit(size_t *value, CUlimit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *retained, CUdevice) { return cuCtxGetCurrent(retained); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)value = pointer;
  return sim_known((void *)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- compiled kernels: a function is its name
API CUresult cuModuleLoadData(CUmodule *loaded, const void *) {
  *loaded = (CUmodule)&library;
  return CUDA_SUCCESS;
}

API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
  *function = (CUfunction) new std::string(name);
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 128; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

API CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared, CUstream stream, void **, void **) {
  const char *name = ((std::string *)function)->c_str();
  return (CUresult)sim_launch(name, dim3{x, y, z}, block_x * block_y * block_z, shared, stream);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **, void **) {
  return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                        c->sharedMemBytes, c->hStream, nullptr, nullptr);
}

API CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction, const CUlaunchConfig *) {
  *n = 1;
  return CUDA_SUCCESS;
}
