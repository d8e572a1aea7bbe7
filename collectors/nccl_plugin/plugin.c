/* libnccl-profiler-perfd.so, loaded by NCCL. One export per version of its profiler interface. */
#include <stdatomic.h>
#include <string.h>

#include "abi.h"
#include "operations.h"
#include "segment.h"

#define EXPORT __attribute__((visibility("default")))
#define NAME "perfd"

/* Numbers of ncclFunc_t and ncclDataType_t as of NCCL 2.23, which version 1 passes; later versions pass names. */
static const char *const functions[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
                                        "Send",      "Recv",   "AlltoAll",  "Gather",        "Scatter"};
static const char *const datatypes[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",    "ncclUint32",
                                        "ncclInt64",   "ncclUint64",  "ncclFloat16",  "ncclFloat32",
                                        "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
static const char *const algorithms[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const protocols[] = {"LL", "LL128", "SIMPLE"};

#define UNKNOWN 0xFF

static uint8_t number_of(const char *name, const char *const *names, size_t count) {
  if (!name) return UNKNOWN;
  for (size_t i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) return (uint8_t)i;
  return UNKNOWN;
}

#define NUMBER_OF(name, names) number_of(name, names, sizeof(names) / sizeof *(names))

static abi_result stop_event(void *handle) {
  if (handle) handle_stop(handle);
  return 0;
}

static abi_result finalize(void *context) {
  context_close(context);
  return 0;
}

/* Version 3 reports neither GPU time nor state of a kernel channel: the host's time of its stop event is used. */
static abi_result stop_event_v3(void *handle) {
  if (is_channel(handle)) channel_stop_time(handle, monotonic_ns());
  return stop_event(handle);
}

/* Versions 1 and 2 have no kernel channels. */
static abi_result ignore_state(void *handle, int state, const union abi_state_args *args) {
  (void)handle, (void)state, (void)args;
  return 0;
}

static abi_result record_state_v4(void *handle, int state, const union abi_state_args *args) {
  if (handle && args && state == ABI_STATE_KERNEL_CH_STOP) channel_stop_time(handle, args->kernel_ch.gpu_ns);
  return 0;
}

#define INIT_WITHOUT_RANKS(VERSION)                                                                        \
  static abi_result init_v##VERSION(void **context, int *mask) {                                           \
    *context = context_open(VERSION, mask, 0, NULL, -1, -1, -1);                                           \
    return 0;                                                                                              \
  }

INIT_WITHOUT_RANKS(1)
INIT_WITHOUT_RANKS(2)
INIT_WITHOUT_RANKS(3)

/* `context_open`, with one warning in NCCL's log when nothing can be recorded. */
static void *open_or_warn(uint32_t version, int *mask, uint64_t id, const char *name, int nodes, int ranks, int rank,
                           abi_logger log) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  void *context = context_open(version, mask, id, name, nodes, ranks, rank);
  if (!context && log && !atomic_flag_test_and_set(&warned))
    log(ABI_LOG_WARN, ~0UL, __FILE__, __LINE__,
        "perfd records no operations: cannot create its shared memory; /dev/shm or PERFD_NCCL_DIR is full or"
        " read-only");
  return context;
}

static abi_result init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                          abi_logger log) {
  *context = open_or_warn(4, mask, hash, name, nodes, ranks, rank, log);
  return 0;
}

#define INIT_WITH_ID(VERSION)                                                                              \
  static abi_result init_v##VERSION(void **context, uint64_t id, int *mask, const char *name, int nodes,   \
                                    int ranks, int rank, abi_logger log) {                                 \
    *context = open_or_warn(VERSION, mask, id, name, nodes, ranks, rank, log);                            \
    return 0;                                                                                              \
  }

INIT_WITH_ID(5)
INIT_WITH_ID(6)

static abi_result start_event_v1(void *context, void **handle, const struct abi_descr_v1 *descr) {
  *handle = NULL;
  if (!context) return 0;
  if (descr->type == ABI_GROUP) *handle = group_start();
  if (descr->type == ABI_COLL && context_records_operations(context)) {
    context_identify(context, descr->coll.comm_hash, descr->rank);
    *handle = operation_start(context, &(struct operation){
        .sequence = descr->coll.seq_number, .count = descr->coll.count, .group = descr->parent,
        .peer_or_root = descr->coll.root, .function = descr->coll.func, .datatype = descr->coll.datatype,
        .algorithm = descr->coll.algo, .protocol = descr->coll.proto});
  }
  if (descr->type == ABI_P2P && context_records_operations(context)) {
    context_identify(context, descr->p2p.comm_hash, descr->rank);
    *handle = operation_start(context, &(struct operation){
        .p2p = true, .count = descr->p2p.count, .group = descr->parent, .peer_or_root = descr->p2p.peer,
        .function = descr->p2p.func, .datatype = descr->p2p.datatype, .algorithm = UNKNOWN, .protocol = UNKNOWN});
  }
  return 0;
}

/* Versions 2 to 6 differ in field order, in the source of the group and in the channel count. */
#define COLL_OPERATION(GROUP, CHANNELS_OF_COLL)                                                            \
  &(struct operation) {                                                                                    \
    .sequence = descr->coll.seq_number, .count = descr->coll.count, .group = (GROUP),                      \
    .peer_or_root = descr->coll.root, .function = NUMBER_OF(descr->coll.func, functions),                  \
    .datatype = NUMBER_OF(descr->coll.datatype, datatypes),                                                \
    .algorithm = NUMBER_OF(descr->coll.algo, algorithms), .protocol = NUMBER_OF(descr->coll.proto, protocols), \
    .channels = (CHANNELS_OF_COLL)                                                                         \
  }

#define P2P_OPERATION(GROUP, CHANNELS_OF_P2P)                                                              \
  &(struct operation) {                                                                                    \
    .p2p = true, .count = descr->p2p.count, .group = (GROUP), .peer_or_root = descr->p2p.peer,             \
    .function = NUMBER_OF(descr->p2p.func, functions), .datatype = NUMBER_OF(descr->p2p.datatype, datatypes), \
    .algorithm = UNKNOWN, .protocol = UNKNOWN, .channels = (CHANNELS_OF_P2P)                               \
  }

#define START_EVENT(VERSION, DESCR, IDENTIFY_COLL, IDENTIFY_P2P, COLL_GROUP, P2P_GROUP, COLL_CHANNELS,     \
                    P2P_CHANNELS, KERNEL_CHANNEL)                                                          \
  static abi_result start_event_v##VERSION(void *context, void **handle, const DESCR *descr) {             \
    *handle = NULL;                                                                                        \
    if (!context) return 0;                                                                                \
    if (descr->type == ABI_GROUP) *handle = group_start();                                                 \
    if (descr->type == ABI_COLL && context_records_operations(context)) {                                    \
      IDENTIFY_COLL;                                                                                       \
      *handle = operation_start(context, COLL_OPERATION(COLL_GROUP, COLL_CHANNELS));                       \
    }                                                                                                      \
    if (descr->type == ABI_P2P && context_records_operations(context)) {                                     \
      IDENTIFY_P2P;                                                                                        \
      *handle = operation_start(context, P2P_OPERATION(P2P_GROUP, P2P_CHANNELS));                          \
    }                                                                                                      \
    KERNEL_CHANNEL;                                                                                        \
    return 0;                                                                                              \
  }

#define BY_HASH(MEMBER) context_identify(context, descr->MEMBER.comm_hash, descr->rank)
#define NOTHING (void)0
#define CHANNEL_AT(TIME)                                                                                   \
  if (descr->type == ABI_KERNEL_CH && descr->parent)                                                       \
  *handle = channel_start(descr->parent, descr->kernel_ch.channel, TIME)

START_EVENT(2, struct abi_descr_v2, BY_HASH(coll), BY_HASH(p2p), descr->parent, descr->parent, 0, 0, NOTHING)
/* Before version 4 a send's channel count is unknown, hence its end on the GPU. */
START_EVENT(3, struct abi_descr_v3, BY_HASH(coll), BY_HASH(p2p), descr->parent, descr->parent,
            descr->coll.max_channels, 0, CHANNEL_AT(monotonic_ns()))
START_EVENT(4, struct abi_descr_v4, NOTHING, NOTHING, descr->parent, descr->parent, descr->coll.channels,
            descr->p2p.channels, CHANNEL_AT(descr->kernel_ch.gpu_ns))
START_EVENT(5, struct abi_descr_v5, NOTHING, NOTHING, descr->coll.parent_group, descr->p2p.parent_group,
            descr->coll.channels, descr->p2p.channels, CHANNEL_AT(descr->kernel_ch.gpu_ns))

EXPORT struct abi_profiler_v1 ncclProfiler_v1 = {NAME, init_v1, start_event_v1, stop_event, ignore_state, finalize};
EXPORT struct abi_profiler_v2 ncclProfiler_v2 = {NAME, init_v2, start_event_v2, stop_event, ignore_state, finalize};
EXPORT struct abi_profiler_v3 ncclProfiler_v3 = {NAME, init_v3, start_event_v3, stop_event_v3, ignore_state, finalize};
EXPORT struct abi_profiler_v4 ncclProfiler_v4 = {NAME, init_v4, start_event_v4, stop_event, record_state_v4, finalize};
EXPORT struct abi_profiler_v5 ncclProfiler_v5 = {NAME, init_v5, start_event_v5, stop_event, record_state_v4, finalize};
EXPORT struct abi_profiler_v6 ncclProfiler_v6 = {NAME, init_v6, start_event_v5, stop_event, record_state_v4, finalize};
