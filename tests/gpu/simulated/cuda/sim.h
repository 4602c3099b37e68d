// A CUDA runtime and driver of a GPU that is not there.
//
// PyTorch's real CUDA build runs on it. Device memory is the host's, copies are done, kernels compute nothing. It keeps
// the rules of captures: a call that CUDA forbids fails and breaks the capture. It counts memory over processes.
//
// Variables of the environment:
//   SIM_SM=90 SIM_SMS=132 SIM_GIB=79.1 SIM_DEVICES=1   the card: an H100
//   SIM_CONTEXT_MIB=480                                what a process takes before it allocates
//   SIM_DRIVER=13000                                   the CUDA version of the driver
//   SIM_SHM=file                                       where processes count their memory; without it each has a card alone
//   SIM_SKIP=bytes                                     longer copies and fills are only counted
//   SIM_LOG=file                                       a line for each call that a real device would refuse
//   SIM_BROKEN=file                                    in the process whose number it has every call fails, as after an
//                                                      illegal access
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

// ---- the card
double variable(const char *name, double otherwise);
int capability();          // 90 for 9.0
size_t total_bytes();      // of device memory
int multiprocessors();
int most_shared_bytes();   // of a block

// ---- errors
cudaError_t fail(cudaError_t error);  // also what cudaGetLastError returns
bool is_broken();
#define UNLESS_BROKEN \
  if (is_broken()) return fail(cudaErrorIllegalAddress)

// ---- the log
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_callers();  // who called, for the line before

// ---- one lock: a runtime of tests need not be fast on many threads
extern std::recursive_mutex all;
typedef std::lock_guard<std::recursive_mutex> Lock;

// ---- counts, in the order that counts.py names
enum Count {
  KERNELS, COPIES, FILLS, REPLAYS, ALLOCATIONS, FREED, HOST_ALLOCATIONS, STREAM_WAITS, DEVICE_WAITS, EVENT_WAITS, REFUSED,
  PAGEABLE, N_COUNTS
};
extern long counts[N_COUNTS];

// ---- captures
struct Node {
  enum Kind { KERNEL, COPY, FILL } kind;
  std::string name;
  void *target;
  const void *source;
  size_t n_bytes;
  int value;
};
struct CUgraph_st;
CUgraph_st *capture_of(cudaStream_t stream);  // null where the stream captures nothing
bool is_open(CUgraph_st *capture);
cudaError_t refuse(CUgraph_st *capture, const char *why);  // break it
cudaError_t record(CUgraph_st *capture, Node node);
cudaError_t refused_in_captures(const char *call);  // what CUDA calls potentially unsafe
#define UNLESS_CAPTURING(call) \
  if (cudaError_t error = refused_in_captures(call)) return error

// ---- memory
void count_process();  // this process has a context now
bool is_device_memory(const void *pointer);
bool is_host_memory(const void *pointer);  // pinned
void copy(void *target, const void *source, size_t n_bytes);
void fill(void *target, int value, size_t n_bytes);

// ---- for the other libraries
API cudaError_t sim_kernel(const char *name, cudaStream_t stream);
API cudaError_t sim_launch(const char *name, dim3 grid, unsigned threads, size_t shared, cudaStream_t stream);
API int sim_attribute(int attribute);
API int sim_known(const void *pointer);
API long *sim_counts();
