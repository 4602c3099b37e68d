/* The thread pool. Every thread has a share of a job: neighbouring tasks, which mostly read neighbouring memory. A
 * share is one 64-bit word: its end and the next task to take. A thread takes a ticket with one atomic addition, and
 * the ticket itself says whether there is work. A thread that wakes up late therefore cannot mistake one job for the
 * next. A thread that has finished its share takes tasks from the others', so that no thread waits for sleeping
 * threads. A thread that waits for long sleeps, which frees its processor for a working thread or another program.
 */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#include <unistd.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { MAX_THREADS = 256, SPINS = 40000, PATIENCE = 100000, BETWEEN_PAUSES = 64 };

/* APART: 128-byte alignment. Fields that different threads write must not share a cache line, and processors fetch
 * lines in pairs. */
#define APART __attribute__((aligned(128)))
typedef struct APART {
    _Atomic uint64_t ticket; /* end << 32 | next */
    task_fn run;
    void *context;
} share_t;
static share_t shares[MAX_THREADS];
static struct APART {
    _Atomic int tasks; /* of the job, less those that threads have finished and reported */
} left;
static struct APART { /* changes rarely: all threads keep a copy in their caches */
    _Atomic int sleepers, waiting, chosen;
} rare = {.chosen = 1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, all_done = PTHREAD_COND_INITIALIZER;
static int started; /* workers that exist; they never end */

/* Pauses rarely, because a hypervisor takes the processor away from a thread that mostly pauses. */
static inline void relax(int spin) {
    if (spin % BETWEEN_PAUSES) return;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether a share has a task that no thread has taken. */
static inline int has_work(const share_t *share) {
    uint64_t now = atomic_load_explicit(&share->ticket, memory_order_acquire);
    return (uint32_t)now < (uint32_t)(now >> 32);
}

/* Makes numbers below the normal range count as 0 in this thread, as AMX and vdpbf16ps always have it: then all
 * variants have the same bits, and no product is slow. Returns what `restore_floats` takes. */
static uint64_t flush_subnormals(void) {
    uint64_t before = 0;
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 1 << 15, DENORMALS_ARE_ZEROS = 1 << 6 };
    before = _mm_getcsr();
    _mm_setcsr((unsigned)before | FLUSH_TO_ZERO | DENORMALS_ARE_ZEROS);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
#endif
    return before;
}

static void restore_floats(uint64_t before) {
#if defined(__x86_64__)
    _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#endif
}

/* Returns the number of tasks that the thread has computed. */
static int work_on(share_t *share, int thread) {
    for (int n = 0;; n++) {
        if (!has_work(share)) return n;
        uint64_t mine = atomic_fetch_add(&share->ticket, 1);
        if ((uint32_t)mine >= (uint32_t)(mine >> 32)) return n;
        share->run(share->context, (int)(uint32_t)mine, thread);
    }
}

/* Takes tasks of the thread's own share, then of the others', and reports them together. No job ends before that. */
static void work(int thread) {
    int threads = atomic_load(&rare.chosen), n = 0;
    for (int i = 0; i < threads; i++) n += work_on(shares + (thread + i) % threads, thread);
    if (!n || atomic_fetch_sub(&left.tasks, n) > n || !atomic_load(&rare.waiting)) return;
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&all_done);
    pthread_mutex_unlock(&lock);
}

/* Workers beyond the chosen number sleep until it grows. */
static inline int may_work(int thread) { return has_work(shares + thread) && thread < atomic_load(&rare.chosen); }

static void *worker(void *argument) {
    int thread = (int)(intptr_t)argument;
    flush_subnormals();
    for (;;) {
        for (int spin = 0; spin < SPINS && !may_work(thread); spin++) relax(spin);
        if (!may_work(thread)) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&rare.sleepers, 1);
            while (!may_work(thread)) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&rare.sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        work(thread);
    }
    return 0;
}

static void share(task_fn run, void *context, int n, int threads) {
    atomic_store_explicit(&left.tasks, n, memory_order_relaxed);
    for (int i = threads - 1; i >= 0; i--) {
        uint64_t first = (uint64_t)n * i / threads, end = (uint64_t)n * (i + 1) / threads;
        shares[i].run = run;
        shares[i].context = context;
        atomic_store_explicit(&shares[i].ticket, end << 32 | first, memory_order_release);
    }
    atomic_thread_fence(memory_order_seq_cst); /* before `sleepers` is read */
    if (atomic_load(&rare.sleepers)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
    }
    work(0);
    for (int spin = 0; spin < PATIENCE && atomic_load(&left.tasks); spin++) relax(spin);
    if (!atomic_load(&left.tasks)) return;
    pthread_mutex_lock(&lock);
    atomic_store(&rare.waiting, 1);
    while (atomic_load(&left.tasks)) pthread_cond_wait(&all_done, &lock);
    atomic_store(&rare.waiting, 0);
    pthread_mutex_unlock(&lock);
}

void noria_parallel(task_fn run, void *context, int n) {
    const int threads = atomic_load(&rare.chosen);
    const uint64_t before = flush_subnormals(); /* the calling thread belongs to others */
    if (n >= 2 && threads >= 2) share(run, context, n, threads);
    else for (int task = 0; task < n; task++) run(context, task, 0);
    restore_floats(before);
}

int noria_thread_count(void) { return atomic_load(&rare.chosen); }

static APART char first_memory[THREAD_BYTES];
static void *memory[MAX_THREADS] = {first_memory};

void *noria_memory(int thread) { return memory[thread]; }

static int64_t shared_cache;

/* The C library's sysconf gives the sum over all cores of the host on some virtual machines, and sysfs the whole L3 of
 * the host on others: 480 MiB for two cores. No common processor has more than 16 MiB for each core, which is the
 * bound. Where the system does not tell (ARM, some virtual machines), 1 MiB a core is a cautious guess. */
static void measure_cache(void) {
    enum { MIB = 1024 * 1024, MOST = 16 * MIB, GUESS = MIB };
    long long kib = 0, cores = sysconf(_SC_NPROCESSORS_ONLN);
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file && fscanf(file, "%lldK", &kib) != 1) kib = 0;
    if (file) fclose(file);
    if (cores < 1) cores = 1;
    shared_cache = !kib ? cores * GUESS : kib * 1024 < cores * MOST ? kib * 1024 : cores * MOST;
}

int64_t noria_shared_cache(void) { return shared_cache; }

static int to_second;

/* AMD's family 19h (Zen 3, Zen 4) waits for prefetches to the first level: attention takes 1.3 times as long with them.
 * On a Zen 5 it is the other way round. Other processors are unmeasured. */
static void recognize_processor(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) to_second = (a >> 8 & 15) + (a >> 20 & 255) == 0x19;
#endif
}

int noria_prefetches_to_second(void) { return to_second; }

/* Use n threads, the calling one included; returns the number that exist. Not to be called while kernels run. */
EXPORT int noria_threads(int n) {
    if (!shared_cache) measure_cache(), recognize_processor();
    n = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
    for (; started < n - 1; started++) {
        pthread_t thread;
        void **own = memory + started + 1;
        if (!*own && !(*own = aligned_alloc(64, THREAD_BYTES))) break;
        if (pthread_create(&thread, 0, worker, (void *)(intptr_t)(started + 1))) break;
        pthread_detach(thread);
    }
    if (n > started + 1) n = started + 1;
    atomic_store(&rare.chosen, n);
    return n;
}

/* The hash of the sources from which the library was compiled. */
EXPORT const char *noria_fingerprint(void) { return FINGERPRINT; }

/* Whether the system lets this process use tile registers. Linux needs this request before any thread uses them. */
static int tiles_granted(void) {
#if defined(__linux__) && defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA);
#else
    return 0;
#endif
}

/* The best instruction set of this processor: 0 the architecture's baseline, 1 AVX2 with FMA, 2 AVX-512 with VNNI, 3
 * with bfloat16 as well, 4 with AMX for bfloat16 and bytes too; on ARM 1 dot products of bytes, 2 matrix products of
 * bytes too. The test is written by hand, because some compilers have no test of their own in shared libraries. */
EXPORT int noria_level(void) {
#if defined(FORCED_LEVEL) /* for tests: a compiler that emulates the instructions */
    return FORCED_LEVEL;
#elif defined(__x86_64__)
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29, AVX2 = 1 << 5, BMI2 = 1 << 8, VNNI = 1 << 11,
           BF16 = 1 << 5 };
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const unsigned amx = 1u << 22 | 1u << 24 | 1u << 25; /* products of bfloat16, tiles, products of bytes */
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || ~c & (FMA | OSXSAVE | F16C)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~b & (AVX2 | BMI2)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); /* which registers the system saves */
    if (~saved & 0x6) return 0;
    if (~b & avx512 || ~c & VNNI || ~saved & 0xE6) return 1;
    int tiles = !(~d & amx || ~saved & 0x60000);
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || ~a & BF16) return 2;
    return tiles && tiles_granted() ? 4 : 3;
#elif defined(__aarch64__) && defined(__linux__)
    const unsigned long dot = 1ul << 20, i8mm = 1ul << 13; /* HWCAP_ASIMDDP; HWCAP2_I8MM, which older headers lack */
    if (!(getauxval(AT_HWCAP) & dot)) return 0;
    return getauxval(AT_HWCAP2) & i8mm ? 2 : 1;
#else
    return 0;
#endif
}
