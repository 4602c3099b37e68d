/* The thread pool. Every thread has a share of a job: neighbouring tasks, which mostly read neighbouring memory. A share is
 * one 64-bit word: its end and the next task to take. A thread takes a ticket with one atomic addition, and the ticket
 * itself says whether there is work. A thread that wakes up late therefore cannot mistake one job for the next. A thread
 * that has finished its share takes tasks from the others', so that no thread waits for sleeping threads. A thread that
 * waits for long sleeps, which frees its processor for the thread that still works, or for another program.
 */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { MAX_THREADS = 256, SPINS = 40000, PATIENCE = 100000, BETWEEN_PAUSES = 64 };

static struct {
    _Atomic uint64_t ticket; /* end << 32 | next */
    char apart[120];         /* no two shares are in one pair of cache lines */
} shares[MAX_THREADS];
static _Atomic int n_tasks, done, sleepers, waiting, wanted = 1;
static task_fn job;
static void *job_context;
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
static inline int has_work(int share) {
    uint64_t now = atomic_load(&shares[share].ticket);
    return (uint32_t)now < (uint32_t)(now >> 32);
}

static void work_on(int share, int thread) {
    while (has_work(share)) {
        uint64_t mine = atomic_fetch_add(&shares[share].ticket, 1);
        if ((uint32_t)mine >= (uint32_t)(mine >> 32)) return;
        job(job_context, (int)(uint32_t)mine, thread);
        int is_last = atomic_fetch_add(&done, 1) + 1 == atomic_load(&n_tasks);
        if (is_last && atomic_load(&waiting)) {
            pthread_mutex_lock(&lock);
            pthread_cond_signal(&all_done);
            pthread_mutex_unlock(&lock);
        }
    }
}

/* Takes tasks of the thread's own share, then of the others'. */
static void work(int thread) {
    int n = atomic_load(&wanted);
    for (int i = 0; i < n; i++) work_on((thread + i) % n, thread);
}

/* Workers beyond the wanted number sleep until it grows. */
static inline int may_work(int thread) { return thread < atomic_load(&wanted) && has_work(thread); }

static void *worker(void *argument) {
    int thread = (int)(intptr_t)argument;
    for (;;) {
        for (int spin = 0; spin < SPINS && !may_work(thread); spin++) relax(spin);
        if (!may_work(thread)) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleepers, 1);
            while (!may_work(thread)) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        work(thread);
    }
    return 0;
}

void noria_parallel(task_fn run, void *context, int n) {
    const int threads = atomic_load(&wanted);
    if (n < 2 || threads < 2) {
        for (int task = 0; task < n; task++) run(context, task, 0);
        return;
    }
    job = run;
    job_context = context;
    atomic_store(&n_tasks, n);
    atomic_store(&done, 0);
    for (int i = threads - 1; i >= 0; i--) {
        uint64_t first = (uint64_t)n * i / threads, end = (uint64_t)n * (i + 1) / threads;
        atomic_store_explicit(&shares[i].ticket, end << 32 | first, memory_order_release);
    }
    atomic_thread_fence(memory_order_seq_cst); /* before `sleepers` is read */
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
    }
    work(0);
    for (int spin = 0; spin < PATIENCE && atomic_load(&done) < n; spin++) relax(spin);
    if (atomic_load(&done) == n) return;
    pthread_mutex_lock(&lock);
    atomic_store(&waiting, 1);
    while (atomic_load(&done) < n) pthread_cond_wait(&all_done, &lock);
    atomic_store(&waiting, 0);
    pthread_mutex_unlock(&lock);
}

int noria_thread_count(void) { return atomic_load(&wanted); }

/* Use n threads, the calling one included; returns the number that exist. Not to be called while kernels run. */
EXPORT int noria_threads(int n) {
    n = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
    for (; started < n - 1; started++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, worker, (void *)(intptr_t)(started + 1))) break;
        pthread_detach(thread);
    }
    if (n > started + 1) n = started + 1;
    atomic_store(&wanted, n);
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

/* The best instruction set of this processor: 0 the architecture's baseline, 1 AVX2 with FMA, 2 AVX-512 with VNNI,
 * 3 with bfloat16 as well, 4 with AMX for bytes too. The test is written by hand, because some compilers have no
 * test of their own in shared libraries. */
EXPORT int noria_level(void) {
#if defined(__x86_64__)
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29, AVX2 = 1 << 5, BMI2 = 1 << 8, VNNI = 1 << 11,
           BF16 = 1 << 5 };
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const unsigned amx = 1u << 24 | 1u << 25; /* tiles, products of bytes */
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || ~c & (FMA | OSXSAVE | F16C)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~b & (AVX2 | BMI2)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); /* which registers the system saves */
    if (~saved & 0x6) return 0;
    if (~b & avx512 || ~c & VNNI || ~saved & 0xE6) return 1;
    int tiles = !(~d & amx || ~saved & 0x60000);
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || ~a & BF16) return 2;
    return tiles && tiles_granted() ? 4 : 3;
#else
    return 0;
#endif
}

/* Whether AMX multiplies bfloat16 here, if the level is 4. */
EXPORT int noria_multiplies_pairs(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & 1u << 22;
#else
    return 0;
#endif
}
