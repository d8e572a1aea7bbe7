/* Operations in flight: from NCCL's start event to the stop of their last kernel channel. */
#ifndef PERFD_OPERATIONS_H
#define PERFD_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* State of one communicator. */
struct context;

/* An operation as in NCCL's start event. */
struct operation {
  uint64_t sequence; /* Ignored for p2p, which is counted here. */
  uint64_t count;
  void *group;
  int32_t peer_or_root;
  uint8_t function, datatype, algorithm, protocol;
  uint8_t channels; /* Kernel channels to wait for; 0 when the interface reports none. */
  bool p2p;
};

/* NULL when there is no shared memory; NCCL then gets an empty event mask and sends no events. */
struct context *context_open(uint32_t profiler_version, int *nccl_mask, uint64_t id, const char *name, int nodes,
                             int ranks, int rank);

/* Abandons operations still in flight and frees the context. */
void context_close(struct context *context);

/* Whether operations are recorded now; also applies a change requested by the agent to NCCL's mask. */
bool context_records_operations(struct context *context);

/* For interfaces that report a communicator's id only with its operations. */
void context_identify(struct context *context, uint64_t id, int rank);

/* A handle that is never dereferenced, so that a stale one is harmless. NULL means "not recorded". */
void *operation_start(struct context *context, const struct operation *operation);
void *group_start(void);
void *channel_start(void *operation_handle, uint8_t channel, uint64_t gpu_ns);
void channel_stop_time(void *channel_handle, uint64_t gpu_ns);
bool is_channel(void *handle);

/* Ends the operation or channel of the handle. */
void handle_stop(void *handle);

#endif
