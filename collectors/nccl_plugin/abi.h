/* NCCL's profiler interface, versions 1 to 6, as far as this plugin uses it.
 *
 * Written from the interface's documentation, so that building needs neither NCCL
 * nor CUDA. NCCL uses the newest version that both it and the plugin support; with
 * all six exported, every NCCL since 2.23 finds one.
 */
#ifndef PERFD_ABI_H
#define PERFD_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef int abi_result; /* ncclResult_t; 0 is success. */

enum {
  ABI_GROUP = 1 << 0,
  ABI_COLL = 1 << 1,
  ABI_P2P = 1 << 2,
  ABI_KERNEL_CH = 1 << 6,
};

enum { ABI_STATE_KERNEL_CH_STOP = 22 };

enum { ABI_LOG_WARN = 2 }; /* Printed with NCCL_DEBUG=WARN and above. */

typedef void (*abi_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* Functions, types, algorithms and protocols are numbers in version 1, names later. */
struct abi_descr_v1 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t comm_hash, seq_number;
      uint8_t func;
      const void *send_buff;
      void *recv_buff;
      size_t count;
      int root;
      uint8_t datatype;
      uint32_t op;
      size_t traffic_bytes;
      uint8_t max_channels, warps, algo, proto;
      int is_collnet, is_nvls;
    } coll;
    struct {
      const char *name;
      uint64_t comm_hash;
      uint8_t func;
      void *buff;
      uint8_t datatype;
      size_t count;
      int peer;
    } p2p;
  };
};

struct abi_descr_v2 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t comm_hash, seq_number;
      const char *func;
      const void *send_buff;
      void *recv_buff;
      size_t count;
      int root;
      const char *datatype;
      size_t traffic_bytes;
      uint8_t max_channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char *name;
      uint64_t comm_hash;
      const char *func;
      void *buff;
      const char *datatype;
      size_t count;
      int peer;
    } p2p;
  };
};

struct abi_descr_v3 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t comm_hash, seq_number;
      const char *func;
      const void *send_buff;
      void *recv_buff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t max_channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char *name;
      uint64_t comm_hash;
      const char *func;
      void *buff;
      const char *datatype;
      size_t count;
      int peer;
    } p2p;
    struct {
      uint8_t channel;
    } kernel_ch;
  };
};

struct abi_descr_v4 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      uint64_t seq_number;
      const char *func;
      const void *send_buff;
      void *recv_buff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char *func;
      void *buff;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    struct {
      uint8_t channel;
      uint64_t gpu_ns;
    } kernel_ch;
  };
};

/* Version 6 adds copy-engine events to the union and changes nothing else that is read here. */
struct abi_descr_v5 {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      uint64_t seq_number;
      const char *func;
      const void *send_buff;
      void *recv_buff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t channels, warps;
      const char *algo, *proto;
      void *parent_group;
    } coll;
    struct {
      const char *func;
      void *buff;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void *parent_group;
    } p2p;
    struct {
      uint8_t channel;
      uint64_t gpu_ns;
    } kernel_ch;
  };
};

union abi_state_args {
  struct {
    uint64_t gpu_ns;
  } kernel_ch;
};

#define ABI_PROFILER(VERSION, DESCR, ...)                                                                 \
  struct abi_profiler_v##VERSION {                                                                        \
    const char *name;                                                                                     \
    abi_result (*init)(__VA_ARGS__);                                                                      \
    abi_result (*start_event)(void *context, void **handle, const DESCR *descr);                          \
    abi_result (*stop_event)(void *handle);                                                               \
    abi_result (*record_state)(void *handle, int state, const union abi_state_args *args);                \
    abi_result (*finalize)(void *context);                                                                \
  }

ABI_PROFILER(1, struct abi_descr_v1, void **context, int *mask);
ABI_PROFILER(2, struct abi_descr_v2, void **context, int *mask);
ABI_PROFILER(3, struct abi_descr_v3, void **context, int *mask);
ABI_PROFILER(4, struct abi_descr_v4, void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
             int rank, abi_logger log);
ABI_PROFILER(5, struct abi_descr_v5, void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
             int rank, abi_logger log);
ABI_PROFILER(6, struct abi_descr_v5, void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
             int rank, abi_logger log);

#endif
