/* The process's shared memory: opened once, written to ring buffers with one writer at a time. */
#ifndef PERFD_SEGMENT_H
#define PERFD_SEGMENT_H

#include <stdbool.h>

#include "layout.h"

#define PERFD_NO_COMMUNICATOR 0xFFFF

/* Opens the segment at the first call; false when there is no shared memory. This function and those for
 * communicators run when a communicator is created or destroyed, so they may lock, allocate and make system
 * calls. `segment_write` may not: it is on NCCL's critical path. */
bool segment_open(uint32_t profiler_version);

/* The segment's header, or NULL when there is none (never opened, or in a forked child). */
struct perfd_header *segment_header(void);

/* Adds a communicator to the table and reserves ring buffers for its threads. Returns its index, or
 * PERFD_NO_COMMUNICATOR when the table is full of live ones. */
uint16_t segment_add_communicator(uint64_t id, const char *name, int nodes, int ranks, int rank);

/* Marks it finalized; its entry is kept until the table is full. */
void segment_finalize_communicator(uint16_t communicator);

/* For interfaces that report the id only with the first operation. */
void segment_identify_communicator(uint16_t communicator, uint64_t id, int rank);

/* Writes one record to a ring buffer claimed for it; `sequence` of the argument is ignored. */
void segment_write(const struct perfd_record *record);

uint64_t monotonic_ns(void);

#endif
