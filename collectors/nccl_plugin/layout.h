/* Layout of the shared memory that the plugin writes and the agent reads.
 *
 * One file per process, `perfd-nccl-<pid>-<monotonic ns>`, in /dev/shm unless
 * PERFD_NCCL_DIR is set. The process holds a lock on it (flock) while it
 * lives, so that a reader can detect the file of a dead process.
 * All numbers are little endian. A reader must check magic and version.
 *
 *   0      struct perfd_header
 *   4096   PERFD_COMMUNICATORS x struct perfd_communicator
 *   then   ring buffers: PERFD_RING_HEADER_BYTES, then entries x struct perfd_record
 *
 * A ring buffer has one writer at a time. The writer never waits for a reader: it
 * overwrites the oldest record, and a reader detects from `written` that records
 * were lost. A copied record is valid if its `sequence` is the requested position
 * plus one, and `written`, read after the copy, is less than a full ring buffer
 * ahead: the oldest record may be overwritten at that moment.
 */
#ifndef PERFD_LAYOUT_H
#define PERFD_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define PERFD_MAGIC 0x314C434EU /* "NCL1" */
#define PERFD_LAYOUT_VERSION 1
#define PERFD_HEADER_BYTES 4096    /* One page. */
#define PERFD_COMMUNICATORS 256    /* Entries of the table; chosen, not measured. */
#define PERFD_RING_HEADER_BYTES 64 /* One cache line. */
#define PERFD_RINGS_MAX 8          /* A thread claims one only while it writes a record, so few serve many threads. */

/* Bits of `requested`, set by the agent. They are perfd's, not NCCL's. */
enum {
  PERFD_RECORD_OPERATIONS = 1, /* A record per collective, send and receive. */
  PERFD_RECORD_GPU_TIME = 2,   /* Their times on the GPU; makes NCCL's proxy thread poll. */
};

struct perfd_header {
  uint32_t magic;
  uint32_t layout_version;
  uint64_t file_bytes;
  uint32_t pid; /* In the process's own PID namespace. */
  uint32_t ring_entries;
  uint32_t record_bytes;
  uint32_t communicators;
  int32_t rank; /* From RANK, LOCAL_RANK, WORLD_SIZE; -1 where the variable is absent. */
  int32_t local_rank;
  int32_t world_size;
  uint32_t profiler_version; /* Of NCCL's interface: 1 to 6. */
  /* The two clocks read together, to turn the records' monotonic times into wall time. */
  uint64_t unix_ns;
  uint64_t monotonic_ns;
  uint8_t pad0[64];
  /* Written by the agent. */
  _Atomic uint32_t requested;
  uint8_t pad1[124];
  /* Written by the plugin. */
  _Atomic uint32_t rings;    /* Ring buffers backed by memory. */
  _Atomic uint32_t reserved;
  _Atomic uint64_t started;  /* Operations that NCCL started while recording was on. */
  _Atomic uint64_t recorded; /* Records written, complete or not. */
  _Atomic uint64_t incomplete;
  _Atomic uint64_t dropped;  /* Operations without a free ring buffer or slot. */
  _Atomic uint64_t stale;    /* Callbacks for an operation that was abandoned before. */
};

#define PERFD_DEVICE_KNOWN (1ULL << 63)

struct perfd_communicator {
  uint64_t id;      /* NCCL's commId or commHash; 0 before interface 4. */
  int32_t rank;     /* -1 before interface 4. */
  int32_t ranks;
  int32_t nodes;
  _Atomic uint32_t state; /* 0 never used, 1 live, 2 finalized. */
  uint64_t created_monotonic_ns;
  char name[24];   /* The user's name for it, truncated; empty when there is none. */
  uint64_t device; /* PCI address of its GPU: PERFD_DEVICE_KNOWN | domain << 16 | bus << 8 | device; 0 if unknown. */
};

struct perfd_ring_header {
  _Atomic uint64_t written; /* Records ever written. */
  _Atomic uint32_t claimed; /* 1 while a thread writes a record. */
  uint8_t pad[52];
};

enum { PERFD_TIMING_HOST = 1, PERFD_TIMING_PROXY = 2, PERFD_TIMING_GPU = 3 };

enum {
  PERFD_FLAG_INCOMPLETE = 1, /* Abandoned before all its kernel channels stopped. */
  PERFD_FLAG_P2P = 2,
};

struct perfd_record {
  _Atomic uint64_t sequence;
  uint64_t operation_sequence; /* NCCL's for a collective; counted per peer and direction for p2p. */
  uint64_t start_monotonic_ns; /* NCCL's start event: enqueue, not execution. */
  uint64_t stop_monotonic_ns;
  uint64_t complete_monotonic_ns; /* Stop event of its last channel. */
  uint64_t gpu_start_ns; /* First channel's start on the GPU's own clock; 0 without GPU time. */
  uint64_t gpu_stop_ns;  /* Last channel's stop; of both, those with the times of another kernel are left out. */
  uint64_t gpu_longest_ns; /* Longest channel. */
  uint64_t count;        /* Elements, as the caller passed them. */
  uint64_t group;        /* Operations of one group share a kernel, hence its times. */
  int32_t peer_or_root;
  uint16_t communicator;
  uint8_t function;
  uint8_t datatype;
  uint8_t algorithm;
  uint8_t protocol;
  uint8_t channels;
  uint8_t channels_seen;
  uint8_t timing;
  uint8_t flags;
  uint8_t channels_mistimed; /* Channels for which NCCL reported the times of an earlier kernel. */
  uint8_t pad[33];
};

_Static_assert(sizeof(struct perfd_header) <= PERFD_HEADER_BYTES, "header outgrew its page");
_Static_assert(sizeof(struct perfd_communicator) == 64, "layout is fixed");
_Static_assert(sizeof(struct perfd_ring_header) == PERFD_RING_HEADER_BYTES, "layout is fixed");
_Static_assert(sizeof(struct perfd_record) == 128, "layout is fixed");

#endif
