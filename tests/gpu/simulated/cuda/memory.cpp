// Memory: what processes have together, allocations, copies and fills.
#include "sim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

// ---- what processes have together: a table in shared memory, without the rows of processes that have ended
struct Row {
  std::atomic<int> pid;
  std::atomic<long long> n_bytes;
};
static const int N_ROWS = 200;

static bool lives(int pid) { return pid && kill(pid, 0) == 0; }

static Row *rows() {
  static Row *table = [] {
    const char *name = getenv("SIM_SHM");
    int file = name ? open(name, O_RDWR | O_CREAT, 0666) : -1;
    if (name && (file < 0 || ftruncate(file, N_ROWS * sizeof(Row)))) abort();
    int kind = name ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
    return (Row *)mmap(nullptr, N_ROWS * sizeof(Row), PROT_READ | PROT_WRITE, kind, file, 0);
  }();
  return table;
}

static Row &own_row() {
  static Row *own = [] {
    for (Row *row = rows(); row < rows() + N_ROWS; row++) {
      int owner = row->pid.load();
      if (owner != getpid() && lives(owner)) continue;
      if (!row->pid.compare_exchange_strong(owner, getpid())) continue;
      row->n_bytes = (long long)(variable("SIM_CONTEXT_MIB", 480) * (1 << 20));
      return row;
    }
    abort();
  }();
  return *own;
}

void count_process() { own_row(); }

static size_t used_bytes() {
  count_process();
  size_t sum = 0;
  for (Row *row = rows(); row < rows() + N_ROWS; row++)
    if (lives(row->pid.load())) sum += row->n_bytes.load();
  return sum;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  UNLESS_CAPTURING("cudaMemGetInfo");
  size_t used = used_bytes();
  *total = total_bytes();
  *free_bytes = used > *total ? 0 : *total - used;
  return cudaSuccess;
}

// ---- allocations
typedef std::map<char *, size_t> Ranges;
static Ranges device_ranges, host_ranges;

static bool is_in(const Ranges &ranges, const void *pointer) {
  Lock lock(all);
  auto after = ranges.upper_bound((char *)pointer);
  if (after == ranges.begin()) return false;
  auto range = std::prev(after);
  return (char *)pointer < range->first + range->second;
}

bool is_device_memory(const void *pointer) { return is_in(device_ranges, pointer); }
bool is_host_memory(const void *pointer) { return is_in(host_ranges, pointer); }
API int sim_known(const void *pointer) { return is_device_memory(pointer) || is_host_memory(pointer); }

// Pages of the host that nobody writes take none of its memory: weights of real shapes fit.
API cudaError_t cudaMalloc(void **pointer, size_t n_bytes) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[ALLOCATIONS]++;
  UNLESS_CAPTURING("cudaMalloc");
  const size_t granularity = 2 << 20;
  size_t size = (n_bytes + granularity - 1) / granularity * granularity;
  if (used_bytes() + size > total_bytes()) {
    log_line("out of memory: %zu MiB, used %zu", n_bytes >> 20, used_bytes() >> 20);
    return fail(cudaErrorMemoryAllocation);
  }
  *pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*pointer == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  device_ranges[(char *)*pointer] = size;
  own_row().n_bytes += size;
  return cudaSuccess;
}

API cudaError_t cudaFree(void *pointer) {
  Lock lock(all);
  counts[FREED]++;
  count_process();
  if (!pointer) return cudaSuccess;
  UNLESS_CAPTURING("cudaFree");
  auto range = device_ranges.find((char *)pointer);
  if (range == device_ranges.end()) return fail(cudaErrorInvalidValue);
  munmap(pointer, range->second);
  own_row().n_bytes -= range->second;
  device_ranges.erase(range);
  return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **pointer, size_t n_bytes, cudaStream_t) { return cudaMalloc(pointer, n_bytes); }
API cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return cudaFree(pointer); }

API cudaError_t cudaHostAlloc(void **pointer, size_t n_bytes, unsigned) {
  Lock lock(all);
  counts[HOST_ALLOCATIONS]++;
  UNLESS_CAPTURING("cudaHostAlloc");
  *pointer = aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
  host_ranges[(char *)*pointer] = n_bytes;
  return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *pointer) {
  Lock lock(all);
  UNLESS_CAPTURING("cudaFreeHost");
  host_ranges.erase((char *)pointer);
  free(pointer);
  return cudaSuccess;
}

API cudaError_t cudaHostRegister(void *pointer, size_t n_bytes, unsigned) {
  Lock lock(all);
  host_ranges[(char *)pointer] = n_bytes;
  return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *pointer) {
  Lock lock(all);
  host_ranges.erase((char *)pointer);
  return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *found, const void *pointer) {
  memset(found, 0, sizeof *found);
  bool device = is_device_memory(pointer), host = is_host_memory(pointer);
  found->type = device ? cudaMemoryTypeDevice : host ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  found->device = device || host ? 0 : cudaInvalidDeviceId;
  found->devicePointer = device || host ? (void *)pointer : nullptr;
  found->hostPointer = host ? (void *)pointer : nullptr;
  return cudaSuccess;
}

// ---- copies and fills
static bool is_short(size_t n_bytes) {
  static size_t most = (size_t)variable("SIM_SKIP", 64e6);
  return n_bytes <= most;
}

void copy(void *target, const void *source, size_t n_bytes) {
  if (is_short(n_bytes)) memmove(target, source, n_bytes);
}

void fill(void *target, int value, size_t n_bytes) {
  if (is_short(n_bytes)) memset(target, value, n_bytes);
}

static bool is_wrong(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToDevice: return from_device || !to_device;
    case cudaMemcpyDeviceToHost: return !from_device || to_device;
    case cudaMemcpyDeviceToDevice: return !(from_device && to_device);
    default: return false;
  }
}

API cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[COPIES]++;
  bool from_device = is_device_memory(source), to_device = is_device_memory(target);
  bool pageable = !(from_device || is_host_memory(source)) || !(to_device || is_host_memory(target));
  counts[PAGEABLE] += pageable;
  if (is_wrong(kind, from_device, to_device)) {
    log_line("WRONG kind %d of a copy: from the device %d, to the device %d", kind, from_device, to_device);
    log_callers();
  }
  CUgraph_st *capture = capture_of(stream);
  if (capture && pageable) {
    log_line("PAGEABLE copy of %zu bytes in a capture", n);
    log_callers();
  }
  if (capture) return record(capture, {Node::COPY, "copy", target, source, n, 0});
  copy(target, source, n);
  return cudaSuccess;
}

API cudaError_t cudaMemcpy(void *target, const void *source, size_t n_bytes, cudaMemcpyKind) {
  UNLESS_BROKEN;
  UNLESS_CAPTURING("cudaMemcpy");
  counts[COPIES]++;
  copy(target, source, n_bytes);
  return cudaSuccess;
}

API cudaError_t cudaMemcpyPeerAsync(void *target, int, const void *source, int, size_t n_bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(target, source, n_bytes, cudaMemcpyDeviceToDevice, stream);
}

API cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch,
                                  size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++) {
    char *to = (char *)target + row * target_pitch;
    const char *from = (const char *)source + row * source_pitch;
    if (cudaError_t error = cudaMemcpyAsync(to, from, width, kind, stream)) return error;
  }
  return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *target, int value, size_t n_bytes, cudaStream_t stream) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[FILLS]++;
  if (!is_device_memory(target)) log_line("WRONG fill of memory that is not the device's");
  if (CUgraph_st *capture = capture_of(stream)) return record(capture, {Node::FILL, "fill", target, nullptr, n_bytes, value});
  fill(target, value, n_bytes);
  return cudaSuccess;
}

API cudaError_t cudaMemset(void *target, int value, size_t n_bytes) {
  UNLESS_CAPTURING("cudaMemset");
  fill(target, value, n_bytes);
  return cudaSuccess;
}
