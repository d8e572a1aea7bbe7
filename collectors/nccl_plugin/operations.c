#include "operations.h"

#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "segment.h"

/* Operations in flight at a time. Chosen, not measured: one whose slot is reused counts as incomplete. */
#define SLOTS 4096
/* Channels per operation with a start time: NCCL's MAXCHANNELS is 64. */
#define CHANNELS 64
#define BUILDING 0xFFFFFFFFU
/* Peers that are counted when the number of ranks is unknown, as it is before interface 4. */
#define PEERS_WITHOUT_RANKS 1024
/* Slots tried for an operation before it is dropped; only a slot that another thread is changing is passed over. */
#define MAX_SLOT_TRIES 8
#define NO_SEQUENCE UINT64_MAX

/* A handle is a number: kind, generation of the slot, slot, channel. Its generation detects a stale handle. */
enum { KIND_OPERATION = 1, KIND_CHANNEL = 2, KIND_GROUP = 3 };

struct slot {
  /* High half: generation. Low half: number of stops that the operation still waits for; 0 is a free
   * slot, BUILDING one owned by a thread. */
  _Atomic uint64_t word;
  struct perfd_record record;
  struct context *owner;
  _Atomic uint64_t stop_ns;
  _Atomic uint64_t channels_seen; /* One bit per channel. */
  _Atomic uint64_t channel_start[CHANNELS], channel_stop[CHANNELS];
};

struct context {
  uint32_t profiler_version;
  int32_t rank;
  uint32_t peers;
  uint16_t communicator;
  _Atomic int *nccl_mask;
  _Atomic uint32_t applied;
  _Atomic bool identified;
  _Atomic uint64_t *p2p_sequences; /* Two per peer: sends, receives. */
};

static struct slot slots[SLOTS];
static _Atomic uint32_t next_slot;
static _Atomic uint64_t next_group = 1;

static uint64_t encode(uint64_t kind, uint32_t generation, uint32_t slot, uint8_t channel) {
  return kind << 60 | (uint64_t)generation << 28 | (uint64_t)slot << 8 | channel;
}

static uint64_t kind_of(void *handle) { return (uintptr_t)handle >> 60; }
static uint32_t generation_of(void *handle) { return (uint32_t)((uintptr_t)handle >> 28); }
static struct slot *slot_of(void *handle) { return &slots[((uintptr_t)handle >> 8) % SLOTS]; }
static uint8_t channel_of(void *handle) { return (uint8_t)((uintptr_t)handle & 0xFF); }

static uint32_t generation_in(uint64_t word) { return (uint32_t)(word >> 32); }
static uint32_t pending_in(uint64_t word) { return (uint32_t)word; }
static uint64_t make_word(uint32_t generation, uint32_t pending) { return (uint64_t)generation << 32 | pending; }

static void count_one(_Atomic uint64_t *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static void count_stale(void) {
  struct perfd_header *segment = segment_header();
  if (segment) count_one(&segment->stale);
}

static int mask_for(uint32_t requested, uint32_t profiler_version) {
  /* Operations stay enabled in NCCL even when none are recorded: the callback is where a change is noticed. */
  int mask = ABI_COLL | ABI_P2P;
  if (profiler_version >= 3 && (requested & PERFD_RECORD_GPU_TIME)) mask |= ABI_KERNEL_CH;
  return mask;
}

struct context *context_open(uint32_t profiler_version, int *nccl_mask, uint64_t id, const char *name, int nodes,
                             int ranks, int rank) {
  /* Other communicators share the mask and may be reading it concurrently. */
  _Atomic int *mask = (_Atomic int *)nccl_mask;
  struct context *context = segment_open(profiler_version) ? calloc(1, sizeof *context) : NULL;
  if (!context) return atomic_store(mask, 0), NULL;
  context->peers = ranks > 0 ? (uint32_t)ranks : PEERS_WITHOUT_RANKS;
  context->p2p_sequences = calloc(context->peers, 2 * sizeof *context->p2p_sequences);
  if (!context->p2p_sequences) return free(context), atomic_store(mask, 0), NULL;
  context->profiler_version = profiler_version;
  context->rank = rank;
  context->nccl_mask = mask;
  context->communicator = segment_add_communicator(id, name, nodes, ranks, rank);
  context->identified = id != 0;
  uint32_t requested = atomic_load(&segment_header()->requested);
  atomic_store(&context->applied, requested);
  atomic_store(mask, mask_for(requested, profiler_version));
  return context;
}

bool context_records_operations(struct context *context) {
  struct perfd_header *segment = segment_header();
  if (!segment) return false;
  uint32_t requested = atomic_load_explicit(&segment->requested, memory_order_relaxed);
  if (requested != atomic_load_explicit(&context->applied, memory_order_relaxed)) {
    atomic_store_explicit(&context->applied, requested, memory_order_relaxed);
    atomic_store_explicit(context->nccl_mask, mask_for(requested, context->profiler_version), memory_order_relaxed);
  }
  return requested & PERFD_RECORD_OPERATIONS;
}

void context_identify(struct context *context, uint64_t id, int rank) {
  if (id == 0 || atomic_exchange_explicit(&context->identified, true, memory_order_relaxed)) return;
  context->rank = rank;
  segment_identify_communicator(context->communicator, id, rank);
}

static uint64_t count_p2p(struct context *context, int32_t peer, bool receive) {
  if (peer < 0 || (uint32_t)peer >= context->peers) return NO_SEQUENCE;
  return atomic_fetch_add_explicit(&context->p2p_sequences[2 * peer + receive], 1, memory_order_relaxed);
}

static uint64_t start_of(const struct slot *slot, int channel) {
  return atomic_load_explicit(&slot->channel_start[channel], memory_order_relaxed);
}

static uint64_t stop_of(const struct slot *slot, int channel) {
  return atomic_load_explicit(&slot->channel_stop[channel], memory_order_relaxed);
}

/* The channels of a kernel run side by side. NCCL finds a channel's times by the number of its work, which the host
 * and the GPU count separately: where the GPU counts more (2.27 to 2.30: a rank's send to itself), a channel's times
 * are those of an earlier kernel. So the operation's kernel is that of the channel that started last and of those
 * that overlap with it. The others are left out and counted; one that stopped before it started is always. */
static void add_gpu_time(struct perfd_record *record, const struct slot *slot, uint64_t seen) {
  bool by_gpu = record->timing == PERFD_TIMING_GPU;
  uint64_t start = 0, stop = 0, longest = 0, others = 0;
  for (uint64_t rest = seen; rest; rest &= rest - 1) {
    uint64_t from = start_of(slot, __builtin_ctzll(rest)), to = stop_of(slot, __builtin_ctzll(rest));
    if (from >= start && from <= to) start = from, stop = to;
  }
  for (uint64_t rest = seen, before = 0; rest != before; rest = others) {
    before = rest, others = 0;
    for (; rest; rest &= rest - 1) {
      uint64_t from = start_of(slot, __builtin_ctzll(rest)), to = stop_of(slot, __builtin_ctzll(rest));
      if (from > to || (by_gpu && (to < start || from > stop))) {
        others |= rest & -rest;
        continue;
      }
      if (from < start) start = from;
      if (to > stop) stop = to;
      if (to - from > longest) longest = to - from;
    }
  }
  record->gpu_start_ns = start;
  record->gpu_stop_ns = stop;
  record->gpu_longest_ns = longest;
  record->channels_mistimed = (uint8_t)__builtin_popcountll(others);
}

static void write_record(struct slot *slot, uint8_t flags) {
  struct perfd_record record = slot->record;
  uint64_t seen = atomic_load_explicit(&slot->channels_seen, memory_order_acquire);
  record.flags |= flags;
  record.stop_monotonic_ns = atomic_load_explicit(&slot->stop_ns, memory_order_relaxed);
  record.channels_seen = (uint8_t)__builtin_popcountll(seen);
  record.complete_monotonic_ns = flags & PERFD_FLAG_INCOMPLETE ? 0 : monotonic_ns();
  if (record.channels_seen)
    add_gpu_time(&record, slot, seen);
  else
    record.timing = PERFD_TIMING_HOST;
  segment_write(&record);
}

static void abandon(struct slot *slot) {
  struct perfd_header *segment = segment_header();
  if (segment) count_one(&segment->incomplete);
  write_record(slot, PERFD_FLAG_INCOMPLETE);
}

/* A slot owned by this thread, marked BUILDING; an operation that never ended in it is abandoned. */
static struct slot *take_slot(uint32_t *generation) {
  for (int tries = 0; tries < MAX_SLOT_TRIES; tries++) {
    struct slot *slot = &slots[atomic_fetch_add_explicit(&next_slot, 1, memory_order_relaxed) % SLOTS];
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (pending_in(word) == BUILDING) continue;
    *generation = generation_in(word) + 1;
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &word, make_word(*generation, BUILDING),
                                                 memory_order_acq_rel, memory_order_relaxed))
      continue;
    if (pending_in(word) != 0) abandon(slot);
    return slot;
  }
  return NULL;
}

static uint8_t timing_of(const struct context *context, uint8_t channels) {
  if (channels == 0) return PERFD_TIMING_HOST;
  return context->profiler_version >= 4 ? PERFD_TIMING_GPU : PERFD_TIMING_PROXY;
}

void *operation_start(struct context *context, const struct operation *operation) {
  struct perfd_header *segment = segment_header();
  if (!segment) return NULL;
  count_one(&segment->started);
  /* Counted even without a slot: sender and receiver must agree on the number. */
  uint64_t sequence = operation->sequence;
  if (operation->p2p) sequence = count_p2p(context, operation->peer_or_root, operation->function == 7);
  uint32_t generation;
  struct slot *slot = take_slot(&generation);
  if (!slot) {
    count_one(&segment->dropped);
    return NULL;
  }
  bool channels_expected = (atomic_load_explicit(&context->applied, memory_order_relaxed) & PERFD_RECORD_GPU_TIME) &&
                       context->profiler_version >= 3 &&
                       !(operation->p2p && operation->peer_or_root == context->rank);
  uint8_t channels = channels_expected ? operation->channels : 0;
  slot->owner = context;
  slot->record = (struct perfd_record){
      .operation_sequence = sequence,
      .start_monotonic_ns = monotonic_ns(),
      .count = operation->count,
      .group = (uintptr_t)operation->group,
      .peer_or_root = operation->peer_or_root,
      .communicator = context->communicator,
      .function = operation->function,
      .datatype = operation->datatype,
      .algorithm = operation->algorithm,
      .protocol = operation->protocol,
      .channels = operation->channels,
      .timing = timing_of(context, channels),
      .flags = operation->p2p ? PERFD_FLAG_P2P : 0,
  };
  atomic_store_explicit(&slot->stop_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&slot->channels_seen, 0, memory_order_relaxed);
  /* It ends after its own stop and the stops of its channels, in any order. */
  atomic_store_explicit(&slot->word, make_word(generation, 1U + channels), memory_order_release);
  return (void *)(uintptr_t)encode(KIND_OPERATION, generation, (uint32_t)(slot - slots), 0);
}

void *group_start(void) {
  uint64_t number = atomic_fetch_add_explicit(&next_group, 1, memory_order_relaxed);
  return (void *)(uintptr_t)(encode(KIND_GROUP, 0, 0, 0) | (number & 0xFFFFFFFFFFFULL));
}

static bool is_current(void *handle) {
  uint64_t word = atomic_load_explicit(&slot_of(handle)->word, memory_order_acquire);
  return generation_in(word) == generation_of(handle) && pending_in(word) != 0 && pending_in(word) != BUILDING;
}

void *channel_start(void *operation_handle, uint8_t channel, uint64_t gpu_ns) {
  if (kind_of(operation_handle) != KIND_OPERATION || !is_current(operation_handle)) return count_stale(), NULL;
  struct slot *slot = slot_of(operation_handle);
  atomic_store_explicit(&slot->channel_start[channel % CHANNELS], gpu_ns, memory_order_relaxed);
  return (void *)(uintptr_t)encode(KIND_CHANNEL, generation_of(operation_handle), (uint32_t)(slot - slots), channel);
}

bool is_channel(void *handle) { return kind_of(handle) == KIND_CHANNEL; }

void channel_stop_time(void *channel_handle, uint64_t gpu_ns) {
  if (kind_of(channel_handle) != KIND_CHANNEL || !is_current(channel_handle)) {
    count_stale();
    return;
  }
  struct slot *slot = slot_of(channel_handle);
  uint8_t channel = channel_of(channel_handle) % CHANNELS;
  atomic_store_explicit(&slot->channel_stop[channel], gpu_ns, memory_order_relaxed);
  atomic_fetch_or_explicit(&slot->channels_seen, 1ULL << channel, memory_order_release);
}

void handle_stop(void *handle) {
  uint64_t kind = kind_of(handle);
  if (kind != KIND_OPERATION && kind != KIND_CHANNEL) return;
  struct slot *slot = slot_of(handle);
  if (kind == KIND_OPERATION && is_current(handle))
    atomic_store_explicit(&slot->stop_ns, monotonic_ns(), memory_order_relaxed);
  uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
  uint64_t next;
  do {
    uint32_t pending = pending_in(word);
    if (generation_in(word) != generation_of(handle) || pending == 0 || pending == BUILDING) return count_stale();
    /* The thread of the last stop owns the slot until the record is written. */
    next = make_word(generation_in(word), pending == 1 ? BUILDING : pending - 1);
  } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, next, memory_order_acq_rel,
                                                  memory_order_acquire));
  if (pending_in(next) != BUILDING) return;
  write_record(slot, 0);
  atomic_store_explicit(&slot->word, make_word(generation_in(next), 0), memory_order_release);
}

void context_close(struct context *context) {
  if (!context) return;
  for (uint32_t i = 0; i < SLOTS; i++) {
    struct slot *slot = &slots[i];
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (pending_in(word) == 0 || pending_in(word) == BUILDING || slot->owner != context) continue;
    uint64_t owned = make_word(generation_in(word), BUILDING);
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &word, owned, memory_order_acq_rel,
                                                 memory_order_relaxed))
      continue;
    abandon(slot);
    atomic_store_explicit(&slot->word, make_word(generation_in(owned), 0), memory_order_release);
  }
  segment_finalize_communicator(context->communicator);
  free(context->p2p_sequences);
  free(context);
}
