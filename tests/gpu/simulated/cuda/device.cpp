// The card: its properties and its driver's version.
#include "sim.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int capability() {
  static int value = (int)variable("SIM_SM", 90);
  return value;
}

size_t total_bytes() {
  static size_t value = (size_t)(variable("SIM_GIB", 79.1) * (1ull << 30));
  return value;
}

int multiprocessors() {
  static int value = (int)variable("SIM_SMS", 132);
  return value;
}

int most_shared_bytes() {
  switch (capability()) {
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 90: case 100: case 103: return 227 << 10;
    default: return 99 << 10;
  }
}

static int most_threads() {  // of a multiprocessor
  switch (capability()) {
    case 75: return 1024;
    case 86: case 89: case 120: return 1536;
    default: return 2048;
  }
}

static int driver_version() { return (int)variable("SIM_DRIVER", 13000); }

API cudaError_t cudaGetDeviceCount(int *n) {
  *n = 0;
  if (driver_version() < 13000) return fail(cudaErrorInsufficientDriver);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  bool hidden = visible && (!*visible || !strcmp(visible, "-1"));
  *n = hidden ? 0 : (int)variable("SIM_DEVICES", 1);
  return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}

API cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

API cudaError_t cudaSetDevice(int) { return cudaSuccess; }

API cudaError_t cudaDriverGetVersion(int *version) {
  *version = driver_version();
  return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
  *can = 0;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char *name, int length, int) {
  snprintf(name, length, "0000:01:00.0");
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) {
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "Simulated GPU sm_%d", capability());
  found->major = capability() / 10;
  found->minor = capability() % 10;
  found->totalGlobalMem = total_bytes();
  found->multiProcessorCount = multiprocessors();
  found->sharedMemPerBlock = 48 << 10;
  found->sharedMemPerBlockOptin = most_shared_bytes();
  found->sharedMemPerMultiprocessor = most_shared_bytes() + 1024;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = most_threads();
  found->maxBlocksPerMultiProcessor = 32;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->l2CacheSize = 50 << 20;
  found->asyncEngineCount = 3;
  found->concurrentKernels = found->unifiedAddressing = found->cooperativeLaunch = found->canMapHostMemory = 1;
  found->clusterLaunch = capability() >= 90;
  found->textureAlignment = 512;
  found->memPitch = 2147483647;
  return cudaSuccess;
}

// cudaDeviceAttr and CUdevice_attribute have the same numbers.
API int sim_attribute(int attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return most_shared_bytes();
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return most_shared_bytes() + 1024;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1755000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrMultiProcessorCount: return multiprocessors();
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return most_threads();
    case cudaDevAttrComputeCapabilityMajor: return capability() / 10;
    case cudaDevAttrComputeCapabilityMinor: return capability() % 10;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return 0;
  }
}

API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  *value = sim_attribute(attribute);
  return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult *result) {
  static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, symbol) : nullptr;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
