// Streams, events, captures and graphs. Work is done when it is queued, so a wait ends at once.
#include "sim.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <vector>

struct CUstream_st {
  unsigned flags;
  int priority;
  CUgraph_st *capture = nullptr;
};
struct CUevent_st {
  unsigned flags = 0;
  CUgraph_st *capture = nullptr;  // in which it was recorded
};
struct CUgraph_st {
  unsigned long long number;
  cudaStream_t origin;
  pid_t thread;
  cudaStreamCaptureMode mode;
  bool broken = false;
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};

static std::set<CUgraph_st *> open_captures;
static std::set<CUstream_st *> streams;
static thread_local cudaStreamCaptureMode own_mode = cudaStreamCaptureModeGlobal;

static pid_t thread() { return (pid_t)syscall(SYS_gettid); }

// ---- captures
CUgraph_st *capture_of(cudaStream_t stream) {
  bool is_own = stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
  return is_own ? stream->capture : nullptr;
}

bool is_open(CUgraph_st *capture) { return capture && open_captures.count(capture); }

cudaError_t refuse(CUgraph_st *capture, const char *why) {
  capture->broken = true;
  counts[REFUSED]++;
  log_line("UNSAFE %s during capture %llu by thread %d", why, capture->number, capture->thread);
  log_callers();
  return fail(cudaErrorStreamCaptureUnsupported);
}

static bool concerns(CUgraph_st *capture) {
  switch (capture->mode) {
    case cudaStreamCaptureModeGlobal: return own_mode == cudaStreamCaptureModeGlobal;
    case cudaStreamCaptureModeThreadLocal: return capture->thread == thread() && own_mode != cudaStreamCaptureModeRelaxed;
    default: return false;
  }
}

cudaError_t refused_in_captures(const char *call) {
  Lock lock(all);
  for (CUgraph_st *capture : open_captures)
    if (concerns(capture)) return refuse(capture, call);
  return cudaSuccess;
}

cudaError_t record(CUgraph_st *capture, Node node) {
  if (capture->broken) return fail(cudaErrorStreamCaptureInvalidated);
  capture->nodes.push_back(std::move(node));
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Lock lock(all);
  static unsigned long long n_captures = 0;
  if (!stream || stream->capture) return fail(cudaErrorInvalidValue);
  stream->capture = new CUgraph_st{++n_captures, stream, thread(), mode};
  open_captures.insert(stream->capture);
  return cudaSuccess;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  Lock lock(all);
  CUgraph_st *capture = capture_of(stream);
  *graph = nullptr;
  if (!capture || capture->origin != stream) return fail(cudaErrorInvalidValue);
  for (CUstream_st *other : streams)
    if (other->capture == capture) other->capture = nullptr;
  open_captures.erase(capture);
  if (capture->broken) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = capture;
  return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  Lock lock(all);
  CUgraph_st *capture = capture_of(stream);
  *status = !capture          ? cudaStreamCaptureStatusNone
            : capture->broken ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *number,
                                         cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                         const cudaGraphEdgeData **edges, size_t *n_nodes) {
  CUgraph_st *capture = capture_of(stream);
  if (number) *number = capture ? capture->number : 0;
  if (graph) *graph = capture;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (n_nodes) *n_nodes = 0;
  return cudaStreamIsCapturing(stream, status);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  std::swap(own_mode, *mode);
  return cudaSuccess;
}

API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t *, const cudaGraphEdgeData *, size_t,
                                                    unsigned) {
  return cudaSuccess;
}

// ---- graphs
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *n_nodes) {
  *n_nodes = graph->nodes.size();
  return cudaSuccess;
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long) {
  *ready = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[REPLAYS]++;
  if (CUgraph_st *capture = capture_of(stream)) return refuse(capture, "cudaGraphLaunch");
  for (const Node &node : ready->nodes) {
    if (node.kind == Node::COPY) copy(node.target, node.source, node.n_bytes);
    if (node.kind == Node::FILL) fill(node.target, node.value, node.n_bytes);
  }
  return cudaSuccess;
}

// ---- streams
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  Lock lock(all);
  UNLESS_CAPTURING("cudaStreamCreate");
  count_process();
  *stream = new CUstream_st{flags, priority};
  streams.insert(*stream);
  return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(all);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = stream ? stream->priority : 0;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[STREAM_WAITS]++;
  if (CUgraph_st *capture = capture_of(stream)) return refuse(capture, "cudaStreamSynchronize of its stream");
  return refused_in_captures("cudaStreamSynchronize");
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(all);
  if (CUgraph_st *capture = capture_of(stream)) return refuse(capture, "cudaStreamQuery of its stream");
  return refused_in_captures("cudaStreamQuery");
}

API cudaError_t cudaDeviceSynchronize() {
  UNLESS_BROKEN;
  counts[DEVICE_WAITS]++;
  return refused_in_captures("cudaDeviceSynchronize");
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  if (!capture_of(stream)) function(data);
  return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned) {
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}

// ---- events
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = new CUevent_st{flags};
  return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock(all);
  event->capture = capture_of(stream);
  return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(all);
  if (is_open(event->capture)) return refuse(event->capture, "cudaEventQuery of its event");
  return refused_in_captures("cudaEventQuery");
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  UNLESS_BROKEN;
  Lock lock(all);
  counts[EVENT_WAITS]++;
  if (is_open(event->capture)) return refuse(event->capture, "cudaEventSynchronize of its event");
  return refused_in_captures("cudaEventSynchronize");
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock(all);
  if (stream && is_open(event->capture)) stream->capture = event->capture;  // the stream joins the capture
  return cudaSuccess;
}
