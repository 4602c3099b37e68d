// Errors, the log and what a test reads: counts.
#include "sim.h"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

std::recursive_mutex all;
long counts[N_COUNTS];
static thread_local cudaError_t last = cudaSuccess;

double variable(const char *name, double otherwise) {
  const char *value = getenv(name);
  return value ? atof(value) : otherwise;
}

API long *sim_counts() { return counts; }

cudaError_t fail(cudaError_t error) { return last = error; }

API cudaError_t cudaGetLastError() {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

API cudaError_t cudaPeekAtLastError() { return last; }

API const char *cudaGetErrorName(cudaError_t error) {
  static thread_local char name[40];
  snprintf(name, sizeof name, "cudaError(%d)", (int)error);
  return name;
}

API const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "simulated error";
  }
}

static bool is_named_in(const char *name) {
  FILE *file = fopen(name, "r");
  int pid = 0;
  if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
  if (file) fclose(file);
  return pid == getpid();
}

// Once broken, a process stays so, also when the file is gone: as CUDA after an illegal access.
bool is_broken() {
  static const char *file = getenv("SIM_BROKEN");
  static std::atomic<bool> broken{false};
  if (file && !broken && is_named_in(file)) broken = true;
  return broken;
}

static FILE *log_file() {
  static FILE *opened = [] {
    const char *name = getenv("SIM_LOG");
    FILE *file = name ? fopen(name, "a") : nullptr;
    if (file) setvbuf(file, nullptr, _IOLBF, 0);
    return file;
  }();
  return opened;
}

void log_line(const char *format, ...) {
  FILE *file = log_file();
  if (!file) return;
  char line[1000];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  fprintf(file, "%d/%d %s\n", getpid(), (int)syscall(SYS_gettid), line);
}

void log_callers() {
  if (!log_file()) return;
  void *frames[16];
  int n_frames = backtrace(frames, 16);
  char **names = backtrace_symbols(frames, n_frames);
  for (int i = 2; i < n_frames; i++) log_line("   at %s", names[i]);
  free(names);
}
