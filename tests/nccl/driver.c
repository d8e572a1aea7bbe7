/* Plays NCCL's part: drives the plugin through one interface version, without a GPU.
 *
 *   driver LIBRARY VERSION SCENARIO [COUNT [SEED]]
 *
 * It prints "ready" when the scenario has run and waits for the end of its standard input, so that a
 * reader can look at the shared memory. A line on standard input in between starts the next phase of a
 * scenario that has several. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

static void *library;
/* The interface that is driven, once it was looked for; NULL again when the library is another. */
static void *interface;
static int version;
static int mask;

/* Whether this thread is inside NCCL's path, where nothing may be allocated and no lock taken. */
static _Thread_local int on_path;
static int allocations, locks;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);

/* The plugin finds these before libc's. */
void *malloc(size_t bytes) {
  allocations += on_path;
  return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
  allocations += on_path;
  return __libc_calloc(count, bytes);
}
/* A shared memory that is full, and so small that it is full soon. */
int posix_fallocate(int file, off_t offset, off_t bytes) {
  const char *room = getenv("DRIVER_ROOM_BYTES");
  if (room && offset + bytes > atoll(room)) return ENOSPC;
  return fallocate(file, 0, offset, bytes) ? errno : 0;
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
  locks += on_path;
  return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &(struct timespec){.tv_sec = LONG_MAX});
}
#endif

/* One operation's worth of callbacks, whatever the version. */
struct task {
  void *handle;
  int channels;
  uint64_t gpu_start, gpu_stop;
};

static void *profiler(void) {
  char name[32];
  void *found = __atomic_load_n(&interface, __ATOMIC_RELAXED);
  if (found) return found;
  snprintf(name, sizeof name, "ncclProfiler_v%d", version);
  found = dlsym(library, name);
  if (!found) fprintf(stderr, "no %s\n", name), exit(2);
  __atomic_store_n(&interface, found, __ATOMIC_RELAXED);
  return found;
}

/* NCCL's log, of which warnings are shown. */
static void log_warnings(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)flags, (void)file, (void)line;
  if (level != ABI_LOG_WARN) return;
  va_list arguments;
  va_start(arguments, format);
  printf("NCCL WARN ");
  vprintf(format, arguments);
  printf("\n");
  va_end(arguments);
}

static void *init(uint64_t id, int ranks, int rank) {
  void *context = NULL;
  int result = 0;
  switch (version) {
  case 1: result = ((struct abi_profiler_v1 *)profiler())->init(&context, &mask); break;
  case 2: result = ((struct abi_profiler_v2 *)profiler())->init(&context, &mask); break;
  case 3: result = ((struct abi_profiler_v3 *)profiler())->init(&context, &mask); break;
  case 4: result = ((struct abi_profiler_v4 *)profiler())->init(&context, &mask, "a name", id, 1, ranks, rank, log_warnings); break;
  case 5: result = ((struct abi_profiler_v5 *)profiler())->init(&context, id, &mask, NULL, 1, ranks, rank, log_warnings); break;
  case 6: result = ((struct abi_profiler_v6 *)profiler())->init(&context, id, &mask, "", 1, ranks, rank, log_warnings); break;
  }
  if (result) exit(3);
  return context;
}

static void *start(void *context, void *descr) {
  void *handle = (void *)0xDEAD;
  switch (version) {
  case 1: ((struct abi_profiler_v1 *)profiler())->start_event(context, &handle, descr); break;
  case 2: ((struct abi_profiler_v2 *)profiler())->start_event(context, &handle, descr); break;
  case 3: ((struct abi_profiler_v3 *)profiler())->start_event(context, &handle, descr); break;
  case 4: ((struct abi_profiler_v4 *)profiler())->start_event(context, &handle, descr); break;
  default: ((struct abi_profiler_v5 *)profiler())->start_event(context, &handle, descr); break;
  }
  return handle;
}

/* The rest of the functions have one signature in all versions. */
static void stop(void *handle) {
  if (handle) ((struct abi_profiler_v5 *)profiler())->stop_event(handle);
}
static void record(void *handle, int state, uint64_t gpu_ns) {
  union abi_state_args args = {.kernel_ch = {gpu_ns}};
  /* NCCL 2.26 has no state for the end of a kernel's channel: it only stops. */
  if (version == 3 && state == ABI_STATE_KERNEL_CH_STOP) return;
  if (handle) ((struct abi_profiler_v5 *)profiler())->record_state(handle, state, &args);
}
static void finalize(void *context) { ((struct abi_profiler_v5 *)profiler())->finalize(context); }

static void *start_group(void *context) {
  if (version < 5) return start(context, &(struct abi_descr_v4){.type = ABI_GROUP});
  return start(context, &(struct abi_descr_v5){.type = ABI_GROUP});
}

#define NAMED(VERSION, ...)                                                                               \
  case VERSION:                                                                                           \
    return start(context, &(struct abi_descr_v##VERSION){.parent = group, .rank = 1, .type = ABI_COLL, .coll = {__VA_ARGS__}})

static void *start_coll(void *context, void *group, uint64_t sequence, size_t count, int channels) {
  switch (version) {
  case 1:
    return start(context, &(struct abi_descr_v1){.type = ABI_COLL, .parent = group, .rank = 1,
        .coll = {.comm_hash = 77, .seq_number = sequence, .func = 4, .count = count, .datatype = 9, .algo = 1, .proto = 2}});
    NAMED(2, .comm_hash = 77, .seq_number = sequence, .func = "AllReduce", .count = count, .datatype = "ncclBfloat16", .algo = "RING", .proto = "SIMPLE");
    NAMED(3, .comm_hash = 77, .seq_number = sequence, .func = "AllReduce", .count = count, .datatype = "ncclBfloat16", .max_channels = channels, .algo = "RING", .proto = "SIMPLE");
    NAMED(4, .seq_number = sequence, .func = "AllReduce", .count = count, .datatype = "ncclBfloat16", .channels = channels, .algo = "RING", .proto = "SIMPLE");
  default:
    return start(context, &(struct abi_descr_v5){.type = ABI_COLL, .rank = 1, .coll = {
        .seq_number = sequence, .func = "AllReduce", .count = count, .datatype = "ncclBfloat16", .channels = channels,
        .algo = "RING", .proto = "SIMPLE", .parent_group = group}});
  }
}

#define P2P(VERSION, ...)                                                                                 \
  case VERSION:                                                                                           \
    return start(context, &(struct abi_descr_v##VERSION){.type = ABI_P2P, .parent = group, .rank = 1, .p2p = {__VA_ARGS__}})

static void *start_p2p(void *context, void *group, int receive, int peer, size_t count, int channels) {
  const char *func = receive ? "Recv" : "Send";
  switch (version) {
    P2P(1, .comm_hash = 77, .func = receive ? 7 : 6, .datatype = 0, .count = count, .peer = peer);
    P2P(2, .comm_hash = 77, .func = func, .datatype = "ncclInt8", .count = count, .peer = peer);
    P2P(3, .comm_hash = 77, .func = func, .datatype = "ncclInt8", .count = count, .peer = peer);
    P2P(4, .func = func, .datatype = "ncclInt8", .count = count, .peer = peer, .channels = channels);
  default:
    return start(context, &(struct abi_descr_v5){.type = ABI_P2P, .rank = 1, .p2p = {
        .func = func, .datatype = "ncclInt8", .count = count, .peer = peer, .channels = channels, .parent_group = group}});
  }
}

static void *start_channel(void *context, void *parent, int channel, uint64_t gpu_ns) {
  if (version == 3)
    return start(context, &(struct abi_descr_v3){.type = ABI_KERNEL_CH, .parent = parent, .kernel_ch = {channel}});
  if (version == 4)
    return start(context, &(struct abi_descr_v4){.type = ABI_KERNEL_CH, .parent = parent, .kernel_ch = {channel, gpu_ns}});
  return start(context, &(struct abi_descr_v5){.type = ABI_KERNEL_CH, .parent = parent, .kernel_ch = {channel, gpu_ns}});
}

static int kernel_channels(void) {
  return version >= 3 && (__atomic_load_n(&mask, __ATOMIC_RELAXED) & ABI_KERNEL_CH);
}

/* What the proxy thread does for one operation: channels start and stop one after the other. */
static void run_kernel(void *context, const struct task *task) {
  if (!task->handle || !kernel_channels()) return;
  void *channels[64];
  for (int c = 0; c < task->channels; c++) channels[c] = start_channel(context, task->handle, c, task->gpu_start + c);
  for (int c = 0; c < task->channels; c++) {
    record(channels[c], ABI_STATE_KERNEL_CH_STOP, task->gpu_stop - c);
    stop(channels[c]);
  }
}

/* A queue from the calling thread to the proxy thread of one communicator. */
struct communicator {
  void *context;
  uint64_t id;
  int count;
  unsigned seed;
  struct task *queue;
  int tail, head;
  pthread_mutex_t lock;
  pthread_cond_t changed;
};

static void *proxy(void *argument) {
  struct communicator *comm = argument;
  for (int head = 0; head < comm->count; head++) {
    pthread_mutex_lock(&comm->lock);
    while (comm->tail <= head) pthread_cond_wait(&comm->changed, &comm->lock);
    struct task task = comm->queue[head];
    pthread_mutex_unlock(&comm->lock);
    run_kernel(comm->context, &task);
    pthread_mutex_lock(&comm->lock);
    comm->head = head + 1;
    pthread_cond_signal(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
  }
  return NULL;
}

/* NCCL keeps 64 kernel times a channel, so no more operations than that are in flight unnoticed. */
static void enqueue(struct communicator *comm, struct task task) {
  pthread_mutex_lock(&comm->lock);
  while (comm->tail - comm->head >= 64) pthread_cond_wait(&comm->changed, &comm->lock);
  comm->queue[comm->tail++] = task;
  pthread_cond_signal(&comm->changed);
  pthread_mutex_unlock(&comm->lock);
}

static void *caller(void *argument) {
  struct communicator *comm = argument;
  comm->context = init(comm->id, 8, 1);
  comm->queue = calloc(comm->count, sizeof *comm->queue);
  pthread_mutex_init(&comm->lock, NULL);
  pthread_cond_init(&comm->changed, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, proxy, comm);
  for (int i = 0; i < comm->count; i++) {
    void *group = start_group(comm->context);
    struct task task = {.channels = 1 + i % 8, .gpu_start = 1000000ULL * (i + 1), .gpu_stop = 1000000ULL * (i + 1) + 5000 + i};
    if (i % 4 == 3) task.handle = start_p2p(comm->context, group, i / 4 % 2, 2 + i / 8 % 2, 4096, task.channels);
    else task.handle = start_coll(comm->context, group, i - i / 4, 1 << 20, task.channels);
    /* Half of the operations reach the GPU before their enqueue is over. */
    if (i % 2) enqueue(comm, task), stop(task.handle);
    else stop(task.handle), enqueue(comm, task);
    stop(group);
  }
  pthread_join(thread, NULL);
  return NULL;
}

static void run_communicators(int communicators, int count) {
  struct communicator *comms = calloc(communicators, sizeof *comms);
  pthread_t *threads = calloc(communicators, sizeof *threads);
  for (int c = 0; c < communicators; c++) {
    comms[c] = (struct communicator){.id = 100 + c, .count = count};
    pthread_create(&threads[c], NULL, caller, &comms[c]);
  }
  for (int c = 0; c < communicators; c++) pthread_join(threads[c], NULL);
}

static void wait_for_reader(const char *word) {
  printf("%s\n", word);
  fflush(stdout);
  char line[64];
  if (!fgets(line, sizeof line, stdin)) exit(0);
}

/* Channels that never come, and those that come after the operation was given up. */
static void lose_channels(int count) {
  void *context = init(100, 8, 1);
  void *first = NULL;
  for (int i = 0; i < count; i++) {
    void *handle = start_coll(context, NULL, i, 1, 2);
    if (i == 0) first = handle;
    stop(handle);
  }
  stop(first);
  void *channel = start_channel(context, first, 0, 5);
  record(channel, ABI_STATE_KERNEL_CH_STOP, 6);
  finalize(context);
}

/* Callbacks in any order, each handle used and misused. */
static void fuzz(int count, unsigned seed) {
  void *context = init(100, 8, 1);
  void *handles[256] = {0};
  for (int i = 0; i < count; i++) {
    int slot = rand_r(&seed) % 256, other = rand_r(&seed) % 256;
    switch (rand_r(&seed) % 7) {
    case 0: handles[slot] = start_coll(context, handles[other], i, 1, rand_r(&seed) % 70); break;
    case 1: handles[slot] = start_p2p(context, handles[other], i % 2, (int)(rand_r(&seed) % 12) - 2, 1, rand_r(&seed) % 5); break;
    case 2: if (version >= 3 && handles[other]) handles[slot] = start_channel(context, handles[other], rand_r(&seed) % 256, rand_r(&seed)); break;
    case 3: record(handles[slot], rand_r(&seed) % 40, rand_r(&seed)); break;
    case 4: stop(handles[slot]); break;
    case 5: stop(handles[slot]), stop(handles[slot]); break;
    case 6: handles[slot] = start_group(context); break;
    }
    if (rand_r(&seed) % 5000 == 0) finalize(context), context = init(100 + i, 8, 1);
  }
  finalize(context);
}

static void use_in_child(int count) {
  run_communicators(1, count);
  pid_t child = fork();
  if (child == 0) {
    run_communicators(1, count);
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  if (status) fprintf(stderr, "child ended with %d\n", status), exit(4);
}

static void reload(const char *path, int count) {
  for (int round = 0; round < 3; round++) {
    void *context = init(100 + round, 8, 1);
    for (int i = 0; i < count; i++) {
      struct task task = {.handle = start_coll(context, NULL, i, 1, 1), .channels = 1, .gpu_start = 10, .gpu_stop = 20};
      stop(task.handle);
      run_kernel(context, &task);
    }
    finalize(context);
    dlclose(library);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    interface = NULL;
  }
}

struct replay {
  void *context;
  int count;
};

/* Launches of one captured collective: announced by CUDA's callback thread, with the number that it had when
 * it was captured, and without a group. */
static void *replays(void *argument) {
  struct replay *replay = argument;
  for (int i = 0; i < replay->count; i++) {
    struct task task = {.handle = start_coll(replay->context, NULL, 0, 1 << 20, 2), .channels = 2};
    task.gpu_start = 1000000ULL * (i + 1), task.gpu_stop = task.gpu_start + 5000;
    stop(task.handle);
    run_kernel(replay->context, &task);
  }
  return NULL;
}

static void *initialise(void *context) { return *(void **)context = init(100, 8, 1), NULL; }
static void *finish(void *context) { return finalize(context), NULL; }

static void in_thread(void *(*function)(void *), void *argument) {
  pthread_t thread;
  pthread_create(&thread, NULL, function, argument);
  pthread_join(thread, NULL);
}

/* A communicator that is made, used and ended by different threads, as non-blocking ones are. */
static void replay_graph(int count) {
  struct replay replay = {.count = count};
  in_thread(initialise, &replay.context);
  in_thread(replays, &replay);
  in_thread(finish, replay.context);
}

static void switch_events(int count) {
  void *context = init(100, 8, 1);
  for (int phase = 0; phase < 3; phase++) {
    for (int i = 0; i < count; i++) {
      struct task task = {.handle = start_coll(context, NULL, i, 1, 1), .channels = 1, .gpu_start = 10, .gpu_stop = 20};
      run_kernel(context, &task);
      stop(task.handle);
    }
    if (phase < 2) wait_for_reader("phase");
  }
}

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* A job that goes on for as long as its standard input: a burst of COUNT all-reduces for each line, each as
 * long on the GPU as DRIVER_GPU_NS says, one after the other unless DRIVER_MIXED_UP is set. With DRIVER_GPU_PERCENT
 * a burst takes this share of the time since the one before, however fast the machine is. The word after a burst is
 * how many were begun in all. */
static void run_bursts(int count) {
  const char *fixed = getenv("DRIVER_GPU_NS"), *percent = getenv("DRIVER_GPU_PERCENT");
  uint64_t gpu_ns = fixed ? strtoull(fixed, NULL, 10) : 1000000, sequence = 0, at = 1000000000;
  uint64_t before_ns = monotonic_ns();
  int stale = getenv("DRIVER_STALE_CHANNEL") != NULL;
  void *context = init(100, atoi(getenv("WORLD_SIZE")), atoi(getenv("RANK")));
  for (;;) {
    char word[32];
    snprintf(word, sizeof word, "%llu", (unsigned long long)sequence);
    wait_for_reader(word);
    if (percent) {
      uint64_t now_ns = monotonic_ns();
      gpu_ns = (now_ns - before_ns) * strtoull(percent, NULL, 10) / 100 / count;
      before_ns = now_ns;
    }
    uint64_t apart_ns = getenv("DRIVER_MIXED_UP") ? gpu_ns / 2 : 2 * gpu_ns;
    for (int i = 0; i < count; i++, at += apart_ns) {
      struct task task = {.handle = start_coll(context, NULL, sequence++, 1 << 20, 1 + stale), .channels = 1, .gpu_start = at, .gpu_stop = at + gpu_ns};
      stop(task.handle);
      run_kernel(context, &task);
      if (!stale) continue;
      /* As with NCCL 2.28.9 in an all-to-all: the second channel has the times of the kernel before. */
      void *channel = start_channel(context, task.handle, 1, at - apart_ns);
      record(channel, ABI_STATE_KERNEL_CH_STOP, at - apart_ns + gpu_ns);
      stop(channel);
    }
  }
}

/* One process with many GPUs: a communicator of all, then pairs of neighbors, COUNT all-reduces on each. */
static void use_devices(int count) {
  int gpus = atoi(getenv("DRIVER_GPUS"));
  bool whole = !getenv("DRIVER_PAIRS_ONLY");
  for (int gpu = 0; gpu < 2 * gpus; gpu++) {
    bool pair = gpu >= gpus;
    int member = gpu % gpus;
    if (!pair && !whole) continue;
    void *context = pair ? init(200 + member / 2, 2, member % 2) : init(100, gpus, member);
    for (int i = 0; i < count; i++) {
      struct task task = {.handle = start_coll(context, NULL, i, 1 << 20, 1), .channels = 1};
      task.gpu_start = 1000000ULL * (i + 1), task.gpu_stop = task.gpu_start + 1000 * (1 + member);
      stop(task.handle);
      run_kernel(context, &task);
    }
  }
}

static int finished;

/* From here on the kernel ends this thread at any system call but its exit. The clock is read without one
 * where the machine allows that, which is not the plugin's to decide. */
static int forbid_system_calls(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void *without_system_calls(void *argument) {
  struct communicator *comm = argument;
  if (forbid_system_calls()) exit(5);
  on_path = 1;
  for (int i = 0; i < comm->count; i++) {
    void *group = start_group(comm->context);
    struct task task = {.channels = 2, .gpu_start = 10, .gpu_stop = 20};
    if (i % 2) task.handle = start_p2p(comm->context, group, i / 2 % 2, 2, 4096, task.channels);
    else task.handle = start_coll(comm->context, group, i / 2, 1 << 20, task.channels);
    run_kernel(comm->context, &task);
    stop(task.handle);
    stop(group);
  }
  on_path = 0;
  finished = 1;
  syscall(SYS_exit, 0);
  return NULL;
}

/* What the callbacks may not do, in a thread that the plugin has not seen before. */
static void watch_callbacks(int count) {
  /* A program as large as PyTorch has used up the thread-specific values that need no memory. */
  pthread_key_t key;
  for (int i = 0; i < 40; i++) pthread_key_create(&key, NULL);
  struct communicator comm = {.context = init(100, 8, 1), .count = count};
  profiler();
  pthread_t thread;
  pthread_create(&thread, NULL, without_system_calls, &comm);
  pthread_join(thread, NULL);
  printf("%s, %d allocations, %d locks\n", finished ? "no system call" : "a system call", allocations, locks);
}

/* How long an operation's callbacks keep NCCL: a start and a stop, and those of one kernel channel. */
static void time_callbacks(int count) {
  void *context = init(100, 8, 1);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int i = 0; i < count; i++) {
    struct task task = {.handle = start_coll(context, NULL, i, 1 << 20, 1), .channels = 1, .gpu_start = 10, .gpu_stop = 20};
    stop(task.handle);
    run_kernel(context, &task);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ns = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
  printf("%.1f ns an operation\n", ns / count);
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  const char *scenario = argv[3];
  int count = argc > 4 ? atoi(argv[4]) : 100;
  version = atoi(argv[2]);
  library = strcmp(argv[1], "linked") ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : dlopen(NULL, RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  if (!strcmp(scenario, "one")) run_communicators(1, count);
  else if (!strcmp(scenario, "many")) run_communicators(6, count);
  else if (!strcmp(scenario, "lost")) lose_channels(count);
  else if (!strcmp(scenario, "fuzz")) fuzz(count, argc > 5 ? atoi(argv[5]) : 1);
  else if (!strcmp(scenario, "fork")) use_in_child(count);
  else if (!strcmp(scenario, "reload")) reload(argv[1], count);
  else if (!strcmp(scenario, "switch")) switch_events(count);
  else if (!strcmp(scenario, "bursts")) run_bursts(count);
  else if (!strcmp(scenario, "devices")) use_devices(count);
  else if (!strcmp(scenario, "graph")) replay_graph(count);
  else if (!strcmp(scenario, "watch")) watch_callbacks(count);
  else if (!strcmp(scenario, "time")) time_callbacks(count);
  else return 2;
  printf("mask %d\n", mask);
  wait_for_reader("ready");
  return 0;
}
