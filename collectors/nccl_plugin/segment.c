#include "segment.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* 1 MiB per ring buffer: 0.4 s at 20,000 operations per second; an agent reads every 0.1 s. */
#define DEFAULT_RING_ENTRIES 8192
/* A path longer than this is refused. */
#define MAX_PATH_BYTES 512
/* Bounds of PERFD_NCCL_RING_ENTRIES, which is rounded up to a power of two. */
#define MIN_RING_ENTRIES 16
#define MAX_RING_ENTRIES (1U << 20)
#define RECORD_WORDS (sizeof(struct perfd_record) / sizeof(uint64_t))

static struct perfd_header *_Atomic header;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static char path[MAX_PATH_BYTES];

/* Index of the ring buffer that this thread wrote to last, plus one; 0 before its first record. Initial-exec:
 * a thread's first access must not allocate. A destructor would, so a ring buffer is claimed per record. */
static _Thread_local uint32_t preferred __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t threads;

uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static uint64_t unix_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

struct perfd_header *segment_header(void) { return atomic_load_explicit(&header, memory_order_acquire); }

static struct perfd_communicator *communicators(struct perfd_header *segment) {
  return (struct perfd_communicator *)((char *)segment + PERFD_HEADER_BYTES);
}

static size_t ring_bytes(const struct perfd_header *segment) {
  return PERFD_RING_HEADER_BYTES + (size_t)segment->ring_entries * sizeof(struct perfd_record);
}

static size_t rings_offset(void) {
  return PERFD_HEADER_BYTES + PERFD_COMMUNICATORS * sizeof(struct perfd_communicator);
}

static struct perfd_ring_header *ring_at(struct perfd_header *segment, uint32_t index) {
  return (struct perfd_ring_header *)((char *)segment + rings_offset() + index * ring_bytes(segment));
}

static int32_t environment_number(const char *name, int32_t fallback) {
  const char *text = getenv(name);
  if (!text || !*text) return fallback;
  char *end;
  long value = strtol(text, &end, 10);
  return *end || value < 0 || value > INT32_MAX ? fallback : (int32_t)value;
}

static uint32_t ring_entries(void) {
  uint32_t requested = (uint32_t)environment_number("PERFD_NCCL_RING_ENTRIES", DEFAULT_RING_ENTRIES);
  uint32_t entries = MIN_RING_ENTRIES;
  while (entries < requested && entries < MAX_RING_ENTRIES) entries *= 2;
  return entries;
}

/* A child shares the parent's mapping and must not write to it. */
static void forget_in_child(void) {
  struct perfd_header *segment = segment_header();
  atomic_store_explicit(&header, NULL, memory_order_release);
  if (segment) munmap(segment, segment->file_bytes);
  if (file >= 0) close(file);
  file = -1;
  path[0] = '\0';
}

__attribute__((destructor)) static void remove_file(void) {
  if (path[0]) unlink(path);
}

/* Memory is reserved before use: a full /dev/shm must fail here, not as SIGBUS inside NCCL. */
static bool add_ring(struct perfd_header *segment) {
  uint32_t rings = atomic_load(&segment->rings);
  if (rings >= PERFD_RINGS_MAX) return false;
  off_t offset = (off_t)(rings_offset() + rings * ring_bytes(segment));
  if (posix_fallocate(file, offset, (off_t)ring_bytes(segment)) != 0) return false;
  atomic_store_explicit(&segment->rings, rings + 1, memory_order_release);
  return true;
}

static uint32_t live_communicators(struct perfd_header *segment) {
  uint32_t live = 0;
  for (uint32_t i = 0; i < PERFD_COMMUNICATORS; i++) live += atomic_load(&communicators(segment)[i].state) == 1;
  return live;
}

static void ensure_rings(struct perfd_header *segment, uint32_t count) {
  while (atomic_load(&segment->rings) < count && add_ring(segment)) {
  }
}

static bool create_file(size_t bytes) {
  const char *directory = getenv("PERFD_NCCL_DIR");
  if (!directory || !*directory) directory = "/dev/shm";
  int length = snprintf(path, sizeof path, "%s/perfd-nccl-%d-%llx", directory, (int)getpid(),
                        (unsigned long long)monotonic_ns());
  if (length < 0 || (size_t)length >= sizeof path) return false;
  file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  return flock(file, LOCK_EX | LOCK_NB) == 0 && ftruncate(file, (off_t)bytes) == 0 &&
         posix_fallocate(file, 0, (off_t)rings_offset()) == 0;
}

static void discard_file(void) {
  if (file >= 0) {
    close(file);
    unlink(path);
  }
  file = -1;
  path[0] = '\0';
}

static uint32_t initial_recording(void) {
  const char *text = getenv("PERFD_NCCL_EVENTS");
  if (text && strcmp(text, "off") == 0) return 0;
  if (text && strcmp(text, "operations") == 0) return PERFD_RECORD_OPERATIONS;
  return PERFD_RECORD_OPERATIONS | PERFD_RECORD_GPU_TIME;
}

static void fill_header(struct perfd_header *segment, size_t bytes, uint32_t entries, uint32_t profiler_version) {
  segment->layout_version = PERFD_LAYOUT_VERSION;
  segment->file_bytes = bytes;
  segment->pid = (uint32_t)getpid();
  segment->ring_entries = entries;
  segment->record_bytes = sizeof(struct perfd_record);
  segment->communicators = PERFD_COMMUNICATORS;
  segment->rank = environment_number("RANK", -1);
  segment->local_rank = environment_number("LOCAL_RANK", -1);
  segment->world_size = environment_number("WORLD_SIZE", -1);
  segment->profiler_version = profiler_version;
  segment->unix_ns = unix_ns();
  segment->monotonic_ns = monotonic_ns();
  atomic_store(&segment->requested, initial_recording());
}

static struct perfd_header *create_segment(uint32_t profiler_version) {
  uint32_t entries = ring_entries();
  size_t one_ring = PERFD_RING_HEADER_BYTES + (size_t)entries * sizeof(struct perfd_record);
  size_t bytes = rings_offset() + PERFD_RINGS_MAX * one_ring;
  if (!create_file(bytes)) return discard_file(), NULL;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return discard_file(), NULL;
  struct perfd_header *segment = memory;
  fill_header(segment, bytes, entries, profiler_version);
  if (!add_ring(segment)) {
    munmap(memory, bytes);
    return discard_file(), NULL;
  }
  /* Last, so that a reader never sees a half-built segment. */
  __atomic_store_n(&segment->magic, PERFD_MAGIC, __ATOMIC_RELEASE);
  return segment;
}

bool segment_open(uint32_t profiler_version) {
  static bool prepared;
  pthread_mutex_lock(&table_lock);
  if (!prepared) {
    prepared = true;
    pthread_atfork(NULL, NULL, forget_in_child);
  }
  struct perfd_header *segment = segment_header();
  if (!segment) {
    segment = create_segment(profiler_version);
    atomic_store_explicit(&header, segment, memory_order_release);
  }
  pthread_mutex_unlock(&table_lock);
  return segment != NULL;
}

static uint16_t free_entry(struct perfd_header *segment) {
  struct perfd_communicator *table = communicators(segment);
  uint16_t oldest = PERFD_NO_COMMUNICATOR;
  for (uint16_t i = 0; i < PERFD_COMMUNICATORS; i++) {
    uint32_t state = atomic_load(&table[i].state);
    if (state == 0) return i;
    if (state != 2) continue;
    if (oldest == PERFD_NO_COMMUNICATOR || table[i].created_monotonic_ns < table[oldest].created_monotonic_ns)
      oldest = i;
  }
  return oldest;
}

/* The PCI address of CUDA's device in this thread: NCCL sets it to that of the communicator before it calls `init`.
 * libcuda is the process's own; the plugin does not link it. */
static uint64_t current_device(void) {
  enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 }; /* CUdevice_attribute */
  void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!cuda) return 0;
  int (*device_of_context)(int *) = (int (*)(int *))dlsym(cuda, "cuCtxGetDevice");
  int (*attribute_of)(int *, int, int) = (int (*)(int *, int, int))dlsym(cuda, "cuDeviceGetAttribute");
  int device, domain, bus, number;
  bool known = device_of_context && attribute_of && device_of_context(&device) == 0 &&
               attribute_of(&domain, PCI_DOMAIN, device) == 0 && attribute_of(&bus, PCI_BUS, device) == 0 &&
               attribute_of(&number, PCI_DEVICE, device) == 0;
  dlclose(cuda);
  return known ? PERFD_DEVICE_KNOWN | (uint64_t)(uint32_t)domain << 16 | (uint64_t)(bus & 0xFF) << 8 | (number & 0xFF)
               : 0;
}

uint16_t segment_add_communicator(uint64_t id, const char *name, int nodes, int ranks, int rank) {
  struct perfd_header *segment = segment_header();
  if (!segment) return PERFD_NO_COMMUNICATOR;
  uint64_t device = current_device();
  pthread_mutex_lock(&table_lock);
  uint16_t index = free_entry(segment);
  if (index != PERFD_NO_COMMUNICATOR) {
    struct perfd_communicator *entry = &communicators(segment)[index];
    entry->id = id;
    entry->rank = rank;
    entry->ranks = ranks;
    entry->nodes = nodes;
    entry->device = device;
    entry->created_monotonic_ns = monotonic_ns();
    memset(entry->name, 0, sizeof entry->name);
    if (name) strncpy(entry->name, name, sizeof entry->name - 1);
    atomic_store_explicit(&entry->state, 1, memory_order_release);
  }
  /* Each communicator has a proxy thread and may have a calling thread of its own. */
  ensure_rings(segment, 2 * live_communicators(segment));
  pthread_mutex_unlock(&table_lock);
  return index;
}

void segment_finalize_communicator(uint16_t communicator) {
  struct perfd_header *segment = segment_header();
  if (segment && communicator < PERFD_COMMUNICATORS)
    atomic_store_explicit(&communicators(segment)[communicator].state, 2, memory_order_release);
}

void segment_identify_communicator(uint16_t communicator, uint64_t id, int rank) {
  struct perfd_header *segment = segment_header();
  if (!segment || communicator >= PERFD_COMMUNICATORS) return;
  communicators(segment)[communicator].id = id;
  communicators(segment)[communicator].rank = rank;
}

/* Threads start at different ring buffers and keep theirs; on contention a thread takes the next free one. */
static struct perfd_ring_header *claim_ring(struct perfd_header *segment) {
  uint32_t rings = atomic_load_explicit(&segment->rings, memory_order_acquire);
  uint32_t first = preferred ? preferred - 1 : atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
  for (uint32_t i = 0; i < rings; i++) {
    uint32_t index = (first + i) % rings;
    struct perfd_ring_header *ring = ring_at(segment, index);
    uint32_t unclaimed = 0;
    if (atomic_compare_exchange_strong_explicit(&ring->claimed, &unclaimed, 1, memory_order_acquire,
                                                memory_order_relaxed)) {
      preferred = index + 1;
      return ring;
    }
  }
  return NULL;
}

void segment_write(const struct perfd_record *record) {
  struct perfd_header *segment = segment_header();
  if (!segment) return;
  struct perfd_ring_header *ring = claim_ring(segment);
  if (!ring) {
    atomic_fetch_add_explicit(&segment->dropped, 1, memory_order_relaxed);
    return;
  }
  uint64_t position = atomic_load_explicit(&ring->written, memory_order_relaxed);
  char *entries = (char *)ring + PERFD_RING_HEADER_BYTES;
  _Atomic uint64_t *target =
      (_Atomic uint64_t *)(entries + (position & (segment->ring_entries - 1)) * sizeof(struct perfd_record));
  const uint64_t *source = (const uint64_t *)record;
  /* `sequence` is cleared first and set last, so that a torn copy is detected. Release on each word orders
   * it after the first store; on x86-64 it costs nothing. */
  atomic_store_explicit(&target[0], 0, memory_order_relaxed);
  for (size_t word = 1; word < RECORD_WORDS; word++)
    atomic_store_explicit(&target[word], source[word], memory_order_release);
  atomic_store_explicit(&target[0], position + 1, memory_order_release);
  atomic_store_explicit(&ring->written, position + 1, memory_order_release);
  atomic_store_explicit(&ring->claimed, 0, memory_order_release);
  atomic_fetch_add_explicit(&segment->recorded, 1, memory_order_relaxed);
}
