// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/*
 * Far memory for C and C++ programs: more memory than a budget of DRAM allows, over flash, the memory of other
 * machines, or compressed memory. A space is a budget of DRAM with one or more tiers; a mapping is memory of a space,
 * and is used like any other memory. docs/c.md has examples; there is a manual page for each call. The header needs at
 * least C99 or C++11.
 *
 * Every call returns 0 or a positive number if it succeeds, and a negative number of enum aquifer_error if it fails.
 * aquifer_error_message() then says the cause and the remedy. No call ends the process, and no call writes to its
 * results when it fails, except where it says so.
 *
 * Handles are numbers. One that was closed, or that was never a handle, is AQUIFER_ERR_HANDLE; one of the process that
 * forked this one is AQUIFER_ERR_FORKED. Calls may be made from any thread, with the same handles at the same time.
 *
 * A load or store of memory that a tier has lost gets SIGBUS. It never reads other bytes than were written.
 *
 * A signal handler may use the memory of mappings. It must not make any of these calls, which take locks that the
 * interrupted thread may have. Where `serves_system_calls` of aquifer_space_limits() is 0, it and every other code that
 * uses the memory must leave SIGBUS unblocked.
 *
 * `cargo xtask man3` makes the manual pages from the comments of this file: the first sentence is the page's heading,
 * and lines that begin with an error's name are its list of errors.
 */

#ifndef AQUIFER_H
#define AQUIFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a call failed. More may follow. */
enum aquifer_error {
    AQUIFER_OK = 0,
    AQUIFER_ERR_ARGUMENT = -1,        /* a null pointer, a length that overflows, a number without meaning */
    AQUIFER_ERR_HANDLE = -2,          /* closed, never opened, or a handle of another kind */
    AQUIFER_ERR_TOO_MANY_HANDLES = -3, /* 65536 are open */
    AQUIFER_ERR_UNSUPPORTED = -4,     /* this machine, or this process, cannot have spaces */
    AQUIFER_ERR_INTERNAL = -5,        /* a bug in the library */
    AQUIFER_ERR_TIMEOUT = -6,         /* not within the time that was given */
    AQUIFER_ERR_BEYOND_BUDGET = -10,  /* more was asked for than would stay in DRAM until it is used */
    AQUIFER_ERR_BUFFER_SIZE = -11,    /* the destination is longer or shorter than what is to be copied */
    AQUIFER_ERR_CLOSED = -12,         /* the mapping is gone */
    AQUIFER_ERR_EMPTY_RANGE = -13,    /* the range has no bytes */
    AQUIFER_ERR_ENDED = -14,          /* the space cannot go on: close it; what it contained is lost */
    AQUIFER_ERR_FORKED = -15,         /* the handle belongs to the process that forked this one */
    AQUIFER_ERR_LOST = -16,           /* a tier has lost bytes of the range: discard it, then write it again */
    AQUIFER_ERR_MAPPING_SIZE = -17,   /* a mapping has at least one byte, and at most 1 TiB */
    AQUIFER_ERR_NO_ROOM = -18,        /* nothing more can be written back: give the tier more room */
    AQUIFER_ERR_OUT_OF_RANGE = -19,   /* the range is not within the mapping */
    AQUIFER_ERR_PINNED = -20,         /* the range, or a part of it, is pinned; or the mapping is in use */
    AQUIFER_ERR_PINNED_TOO_MUCH = -21, /* as much is pinned as the budget allows */
    AQUIFER_ERR_SYSTEM = -22,         /* the kernel refuses: aquifer_error_errno() */
    AQUIFER_ERR_UNALIGNED = -23,      /* the range does not begin and end where a page does */
    AQUIFER_ERR_OTHER = -24,          /* an error that is newer than this header: see its message */
    AQUIFER_ERR_IN_USE = -30,         /* the space has mappings or pins; it closes with the last of them */
    AQUIFER_ERR_NO_ANSWER = -31,      /* a tier does not answer: the space's memory is not given back */
    AQUIFER_ERR_BLOCK_SIZE = -40,     /* not a valid block size */
    AQUIFER_ERR_DRAM = -41,           /* not a valid budget, or none */
    AQUIFER_ERR_POLICY = -42,         /* there is no such policy */
    AQUIFER_ERR_START = -43,          /* the space could not be started */
    AQUIFER_ERR_TIER = -44,           /* a tier could not be opened */
    AQUIFER_ERR_TIER_SPEC = -45,      /* a tier is not described as `aquifer run --tier` expects, or there is none */
    AQUIFER_ERR_ALREADY_OPEN = -50,   /* the named mapping is open already, here or in another process */
    AQUIFER_ERR_BAD_NAME = -51,       /* 1 to 128 letters, digits, '.', '_' and '-', the first of which is not '.' */
    AQUIFER_ERR_DAMAGED = -52,        /* the file of the named mapping is not as it was written */
    AQUIFER_ERR_FULL_DISK = -53,      /* the file system has no room: free some, then sync again */
    AQUIFER_ERR_NO_DIRECTORY = -54,   /* the space has no `named_in` */
    AQUIFER_ERR_NOT_FOUND = -55,      /* there is no mapping with this name */
    AQUIFER_ERR_NOT_NAMED = -56,      /* the mapping has no name, and so no file */
    AQUIFER_ERR_NOT_OURS = -57,       /* the file has another form than those of named mappings */
    AQUIFER_ERR_OTHER_SIZE = -58,     /* the named mapping exists with another size */
    AQUIFER_ERR_REFUSED = -59,        /* another user owns the file or directory, or can read or change it */
    AQUIFER_ERR_TOO_MANY_NAMED = -60, /* as many named mappings are open in the space as it can have */
    AQUIFER_ERR_TRUNCATED = -61,      /* the file is shorter than what was synced */
    AQUIFER_ERR_UNFINISHED = -62,     /* a sync has failed halfway: unmap the mapping and open it again */
    AQUIFER_ERR_VERSION = -63,        /* the file has another version of the format */
    AQUIFER_ERR_REPLACED = -64,       /* the file was removed or replaced while it was open: nothing can be synced */
    AQUIFER_ERR_UNMANAGED = -70       /* the memory is not managed by `aquifer run` */
};

/* What aquifer_fetch_poll() and aquifer_gather_poll() return while there is more to do. */
#define AQUIFER_PENDING 1

/* Handles. Zero is never one. */
typedef struct { uint64_t handle; } aquifer_space_t;
typedef struct { uint64_t handle; } aquifer_mapping_t;
typedef struct { uint64_t handle; } aquifer_pin_t;
typedef struct { uint64_t handle; } aquifer_fetch_t;
typedef struct { uint64_t handle; } aquifer_gather_t;

/*
 * The ordinary memory of a program under `aquifer run`, from malloc(3) or mmap(2). These calls take it in place of a
 * mapping, and an address, as a number, in place of a start: aquifer_prefetch(), aquifer_evict(), aquifer_stream(),
 * aquifer_pattern(), aquifer_priority(), aquifer_block_size(), aquifer_status(), aquifer_ready(), aquifer_pin(). In a
 * program that `aquifer run` did not start, they return AQUIFER_ERR_UNMANAGED.
 */
#ifdef __cplusplus
#define AQUIFER_MEMORY (aquifer_mapping_t{UINT64_MAX})
#else
#define AQUIFER_MEMORY ((aquifer_mapping_t){UINT64_MAX})
#endif

/*
 * The settings of a space, in the syntax of `aquifer run`. Begin with AQUIFER_OPTIONS_INIT, which sets `size`: a later
 * version may add members, and a program that was built before then goes on as it is. The first version has 48 bytes;
 * from 56 on it has `named_in`, and from 64 on `without_system_calls`, which aquifer_open() explains.
 */
struct aquifer_options {
    size_t size;              /* sizeof(struct aquifer_options) */
    const char *dram;         /* the budget, as for --dram: "4GiB"; 16 MiB to less than 1 TiB */
    const char *const *tiers; /* as for --tier, the fastest first: "flash:/nvme/cold", "dram:size=1GiB" */
    size_t tiers_count;       /* 1 to 4 */
    const char *policy;       /* as for --policy; NULL for the default */
    const char *block_size;   /* "4KiB" to "2MiB", or "auto"; NULL for "auto" */
    const char *named_in;     /* the directory of named mappings; NULL for none */
    uint32_t without_system_calls; /* 1: threads resolve their own faults; 0: system calls may use the memory */
    uint32_t reserved;        /* 0 */
};
#define AQUIFER_OPTIONS_INIT { sizeof(struct aquifer_options), NULL, NULL, 0, NULL, NULL, NULL, 0, 0 }

/* What one call can ask of a space. Begin with AQUIFER_LIMITS_INIT. */
struct aquifer_limits {
    size_t size;
    size_t prefetch_bytes_max;    /* of one aquifer_prefetch(), or one range of a fetch */
    size_t pin_bytes_max;         /* of all pins together, in whole blocks */
    uint32_t serves_system_calls; /* 1 if system calls may use memory that is not resident; 0: pin it first, or copy */
    uint32_t reserved;
};
#define AQUIFER_LIMITS_INIT { sizeof(struct aquifer_limits), 0, 0, 0, 0 }

/* What a space has counted, and its present sizes. Begin with AQUIFER_STATISTICS_INIT. */
struct aquifer_statistics {
    size_t size;
    uint64_t faults;              /* resolved, of every kind */
    uint64_t fetched_bytes;       /* read from the tiers */
    uint64_t written_back_bytes;  /* written to the tiers */
    uint64_t evicted_blocks;      /* taken out of DRAM */
    uint64_t resident_bytes;      /* in DRAM now */
    uint64_t resident_bytes_peak; /* the maximum of resident_bytes so far */
    uint64_t stored_bytes;        /* of the tiers in use now */
    uint64_t errors;              /* of any kind */
};
#define AQUIFER_STATISTICS_INIT { sizeof(struct aquifer_statistics), 0, 0, 0, 0, 0, 0, 0, 0 }

/* The intended use of memory. */
enum aquifer_intent {
    AQUIFER_READ = 0, /* memory without contents is left alone */
    AQUIFER_WRITE = 1 /* memory without contents gets its zeros ahead of the first touch */
};

/* How a range will be used. */
enum aquifer_pattern {
    AQUIFER_NORMAL = 0,    /* the space learns from the accesses */
    AQUIFER_RANDOM = 1,    /* at scattered addresses: nothing is read ahead */
    AQUIFER_SEQUENTIAL = 2 /* in ascending order */
};

/* How long the blocks of a range stay in DRAM, compared with those of other ranges. */
enum aquifer_priority_of {
    AQUIFER_PRIORITY_LOW = -1,   /* they are not kept for being used again */
    AQUIFER_PRIORITY_NORMAL = 0, /* as the policy decides */
    AQUIFER_PRIORITY_HIGH = 1    /* they leave after all others */
};

/* Where memory is. */
enum aquifer_status_of {
    AQUIFER_EMPTY = 0,    /* never written to, or discarded: zeros */
    AQUIFER_FETCHING = 1, /* on its way from the tier */
    AQUIFER_LOST = 2,     /* lost by a tier */
    AQUIFER_MOVING = 3,   /* on its way within DRAM, or to the tier */
    AQUIFER_RESIDENT = 4, /* in DRAM, at its address */
    AQUIFER_STANDBY = 5,  /* in DRAM: a touch brings it back without a transfer */
    AQUIFER_STORED = 6,   /* in a tier only */
    AQUIFER_UNMANAGED = 7 /* ordinary memory that `aquifer run` leaves to the kernel */
};

/* Adjacent memory with one status. */
struct aquifer_status_run {
    size_t start;      /* counted from the start of the mapping */
    size_t len;        /* in bytes */
    uint32_t status;   /* of enum aquifer_status_of */
    uint32_t level;    /* stored: the level of the chain of tiers, the fastest is 0 */
    uint32_t is_clean; /* resident, standby: 1 if the tier is known to have the same bytes */
    uint32_t reserved;
};

/* Adjacent memory with one temperature: 0 is cold, 255 the hottest. Only the order has a meaning. */
struct aquifer_temperature_run {
    size_t start;
    size_t len;
    uint32_t temperature;
    uint32_t reserved;
};

/* Bytes with contents, by class of temperature: class 0 is temperature 0, class n is 2^(n-1) to 2^n - 1. */
#define AQUIFER_CLASSES 9
struct aquifer_histogram {
    uint64_t resident_bytes[AQUIFER_CLASSES]; /* in DRAM, at their addresses */
    uint64_t away_bytes[AQUIFER_CLASSES];     /* on standby, in a tier, or on their way */
};

/* One point of a miss-ratio curve: it holds for sizes above that of the point before, up to its own. */
struct aquifer_curve_point {
    uint64_t dram_bytes;
    double bytes_per_s;   /* fetched each second */
    double fetches_per_s; /* a block is one fetch */
    double miss_ratio;    /* the part of the touches that need a fetch, 0 to 1 */
};

/* A miss-ratio curve and what it says. Begin with AQUIFER_CURVE_INIT. */
struct aquifer_curve {
    size_t size;
    uint64_t samples;          /* pages that were sampled; 0 if there is no curve */
    uint64_t measured_ns;      /* how long touches were sampled */
    uint64_t content_bytes;    /* of the space's memory with contents */
    uint64_t fetch_ns;         /* how long a fetch has taken on average; 0 if there was none */
    uint64_t least_dram_bytes; /* with which fetches cost at most the loss that was asked about */
};
#define AQUIFER_CURVE_INIT { sizeof(struct aquifer_curve), 0, 0, 0, 0, 0 }
#define AQUIFER_CURVE_POINTS 64

/* Some bytes of a mapping. */
struct aquifer_range {
    size_t start;
    size_t len;
};

/* Bytes of a mapping, and where to copy them. Destinations must not overlap. */
struct aquifer_piece {
    size_t offset;
    void *into;
    size_t len;
};

/* How contexts run. Begin with AQUIFER_CONTEXT_OPTIONS_INIT. */
struct aquifer_context_options {
    size_t size;
    size_t stack_bytes; /* of each context: 16 KiB to 1 GiB */
};
#define AQUIFER_CONTEXT_OPTIONS_INIT { sizeof(struct aquifer_context_options), 65536 }

/* What aquifer_contexts_run() has done. Begin with AQUIFER_CONTEXTS_REPORT_INIT. */
struct aquifer_contexts_report {
    size_t size;
    uint64_t contexts;      /* that have ended */
    uint64_t in_flight_max; /* the most at a time */
    uint64_t runs;          /* how often a context was run */
};
#define AQUIFER_CONTEXTS_REPORT_INIT { sizeof(struct aquifer_contexts_report), 0, 0, 0 }

/* The version of the library, "0.1.0". It is never freed. */
const char *aquifer_version(void);

/*
 * Whether this process can have spaces. It needs Linux on x86-64 with userfaultfd(2); the message says what is missing.
 *
 * AQUIFER_ERR_UNSUPPORTED: it cannot.
 */
int aquifer_probe(void);

/*
 * The cause and the remedy of this thread's last error, in one line. Empty if no call of this thread has failed. Valid
 * until another call of this thread fails, and until the thread ends. A successful call leaves it as it is.
 */
const char *aquifer_error_message(void);

/*
 * The errno of this thread's last error, if that was AQUIFER_ERR_SYSTEM. Otherwise 0.
 */
int aquifer_error_errno(void);

/* The name of an error, such as "AQUIFER_ERR_LOST"; "AQUIFER_ERR_OTHER" for any other number. Never freed. */
const char *aquifer_error_name(int code);

/*
 * Opens a space with nothing mapped yet. The handle is for aquifer_map(), and is closed by aquifer_close().
 *
 * With `without_system_calls`, the thread that touches evicted memory fetches it, instead of a thread of the space,
 * which saves two wake-ups. In return, a system call that is given evicted memory fails with EFAULT, or does only a
 * part of its work; aquifer_pin() the range first, or copy it with aquifer_read(). Threads and signal handlers that
 * touch the memory must not block SIGBUS: the kernel would end the process. A program that handles SIGBUS itself must
 * set its action before it opens the first space. docs/c.md says more.
 *
 * AQUIFER_ERR_ARGUMENT: a null pointer, text that is not UTF-8, a number without meaning, or `size` of another version
 * whose further members are not zero.
 * AQUIFER_ERR_DRAM, AQUIFER_ERR_TIER_SPEC, AQUIFER_ERR_POLICY, AQUIFER_ERR_BLOCK_SIZE: the message says what is wrong.
 * AQUIFER_ERR_TIER: a tier could not be opened.
 * AQUIFER_ERR_START: the space could not be started.
 * AQUIFER_ERR_TOO_MANY_HANDLES: close something first.
 */
int aquifer_open(const struct aquifer_options *options, aquifer_space_t *space);

/*
 * Closes a space, and gives back its memory, its threads and its room in the tiers. The handle is gone in any case.
 *
 * AQUIFER_ERR_IN_USE: it has mappings, pins or gathers, or another thread is in a call on it; it closes with the last
 * of them.
 * AQUIFER_ERR_NO_ANSWER: a tier does not answer; the memory is not given back.
 */
int aquifer_close(aquifer_space_t space);

/*
 * What one call can ask of a space. `limits->size` says how much of the struct there is.
 *
 * AQUIFER_ERR_ARGUMENT: `size` has not been set.
 */
int aquifer_space_limits(aquifer_space_t space, struct aquifer_limits *limits);

/*
 * What a space has counted so far. `statistics->size` says how much of the struct there is.
 *
 * AQUIFER_ERR_ARGUMENT: `size` has not been set.
 */
int aquifer_space_statistics(aquifer_space_t space, struct aquifer_statistics *statistics);

/*
 * Everything that a space has counted, as JSON with the names of `aquifer run --stats-json`. Writes at most `capacity`
 * bytes with the final zero, and to `needed`, unless it is NULL, how many there are with it. `into` may be NULL if
 * `capacity` is 0.
 */
int aquifer_space_statistics_json(aquifer_space_t space, char *into, size_t capacity, size_t *needed);

/*
 * How much memory of a space is how hot. It costs the same for any size.
 *
 * AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: the space cannot be used any more.
 */
int aquifer_space_histogram(aquifer_space_t space, struct aquifer_histogram *histogram);

/*
 * Samples touches for the miss-ratio curve from now on, for `limit_ms` milliseconds, at most an hour. If they are being
 * sampled already, sampling continues. Some pages are moved to standby at random, to see when they are touched next,
 * at most 320 a second.
 *
 * AQUIFER_ERR_SYSTEM: the thread that samples cannot be started.
 * AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: the space cannot be used any more.
 */
int aquifer_sample_touches(aquifer_space_t space, uint64_t limit_ms);

/*
 * Stops sampling touches. The curve stays as it is until sampling begins again.
 *
 * AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: the space cannot be used any more.
 */
int aquifer_stop_sampling(aquifer_space_t space);

/*
 * How often memory would have to be fetched with more DRAM, or with less, as far as touches were sampled. Writes at
 * most `capacity` points, the smallest DRAM first, and to `count` how many there are, at most AQUIFER_CURVE_POINTS;
 * with more DRAM than that of the last one, nothing is fetched. `points` may be NULL if `capacity` is 0.
 *
 * `curve->least_dram_bytes` is the least DRAM with which fetches cost at most `loss` of the time, 0.05 for example, if
 * each takes `fetch_ns` nanoseconds, or as long as was measured if that is 0.
 *
 * AQUIFER_ERR_ARGUMENT: a null pointer, `size` has not been set, or `loss` is not between 0 and 1.
 * AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: the space cannot be used any more.
 */
int aquifer_miss_ratio_curve(aquifer_space_t space, double loss, uint64_t fetch_ns, struct aquifer_curve *curve,
                             struct aquifer_curve_point *points, size_t capacity, size_t *count);

/*
 * Maps `bytes` bytes of zeros, 1 byte to 1 TiB, whatever the budget is. They take DRAM and room in the tier only when
 * they are written to. Ended by aquifer_unmap().
 *
 * AQUIFER_ERR_MAPPING_SIZE: none, or more than 1 TiB.
 * AQUIFER_ERR_SYSTEM: no address space, for example.
 * AQUIFER_ERR_TOO_MANY_HANDLES: close something first.
 */
int aquifer_map(aquifer_space_t space, size_t bytes, aquifer_mapping_t *mapping);

/*
 * Opens the named mapping `name`, or creates it. Its contents are in a file of the directory `named_in` of the space's
 * options, and are those of the last aquifer_sync() or aquifer_snapshot(). If there is none, creates one of `bytes` bytes
 * of zeros. With 0 for `bytes`, it must exist, and keeps its size. It is used like any other mapping; what is not synced
 * is lost with the process.
 *
 * AQUIFER_ERR_NO_DIRECTORY: the space has no `named_in`.
 * AQUIFER_ERR_NOT_FOUND: `bytes` is 0, and there is no mapping with this name.
 * AQUIFER_ERR_OTHER_SIZE: it exists with another size.
 * AQUIFER_ERR_ALREADY_OPEN: it is open, in this process or in another one.
 * AQUIFER_ERR_BAD_NAME, AQUIFER_ERR_MAPPING_SIZE, AQUIFER_ERR_ARGUMENT: the name or the size is not valid.
 * AQUIFER_ERR_DAMAGED, AQUIFER_ERR_NOT_OURS, AQUIFER_ERR_TRUNCATED, AQUIFER_ERR_VERSION: its file cannot be used.
 * AQUIFER_ERR_REFUSED, AQUIFER_ERR_FULL_DISK, AQUIFER_ERR_SYSTEM, AQUIFER_ERR_TOO_MANY_NAMED,
 * AQUIFER_ERR_TOO_MANY_HANDLES: the message says what to do.
 */
int aquifer_map_named(aquifer_space_t space, const char *name, size_t bytes, aquifer_mapping_t *mapping);

/*
 * Makes a range of a named mapping durable. After a crash at any moment, its file has all of the range as it is now, or
 * as it was at the sync before. The range is extended to whole pages of 4096 bytes; what has not changed is not
 * written. No other thread writes to it at the same time.
 *
 * AQUIFER_ERR_NOT_NAMED: the mapping has no name.
 * AQUIFER_ERR_FULL_DISK: the file is as before; the sync can be repeated.
 * AQUIFER_ERR_LOST: a tier has lost a changed page of the range; nothing was synced.
 * AQUIFER_ERR_REPLACED, AQUIFER_ERR_TRUNCATED: the file was removed, replaced or cut off while it was open; nothing of
 * this sync is durable.
 * AQUIFER_ERR_UNFINISHED, AQUIFER_ERR_SYSTEM: unmap the mapping and open it again.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_sync(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Makes all of a named mapping durable, at one moment: aquifer_sync() of the whole.
 *
 * AQUIFER_ERR_NOT_NAMED, AQUIFER_ERR_FULL_DISK, AQUIFER_ERR_LOST, AQUIFER_ERR_REPLACED, AQUIFER_ERR_TRUNCATED,
 * AQUIFER_ERR_UNFINISHED, AQUIFER_ERR_SYSTEM, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for
 * aquifer_sync().
 */
int aquifer_snapshot(aquifer_mapping_t mapping);

/*
 * Unmaps the memory of a mapping. The handle is gone in any case, and its addresses may not be used any more.
 *
 * AQUIFER_ERR_PINNED: it has pins or gathers, or another thread is in a call on it; it is unmapped with the last of
 * them.
 */
int aquifer_unmap(aquifer_mapping_t mapping);

/*
 * The address of a mapping's first byte. The memory is used like any other until aquifer_unmap(), and not in a forked
 * child. It is aligned to 2 MiB.
 */
int aquifer_address(aquifer_mapping_t mapping, void **address);

/* The number of bytes of a mapping, as it was asked for. */
int aquifer_length(aquifer_mapping_t mapping, size_t *bytes);

/*
 * Copies `len` bytes of a mapping from `at` on. Unlike a load, it returns an error for lost memory. Copying no bytes
 * succeeds.
 *
 * AQUIFER_ERR_LOST: the tier has lost some of them.
 * AQUIFER_ERR_OUT_OF_RANGE: they are not within the mapping.
 * AQUIFER_ERR_ARGUMENT: `into` is NULL, or overlaps them.
 * AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: they cannot be made resident.
 */
int aquifer_read(aquifer_mapping_t mapping, size_t at, void *into, size_t len);

/*
 * Overwrites `len` bytes of a mapping from `at` on. After an error, some of them may have been written. No other thread
 * reads or writes the same bytes at the same time.
 *
 * AQUIFER_ERR_LOST: the tier has lost a page of which only a part is written.
 * AQUIFER_ERR_OUT_OF_RANGE: they are not within the mapping.
 * AQUIFER_ERR_ARGUMENT: `bytes` is NULL, or overlaps them.
 * AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: they cannot be made resident.
 */
int aquifer_write(aquifer_mapping_t mapping, size_t at, const void *bytes, size_t len);

/*
 * Copies a few bytes of a mapping without making a page resident. For few bytes of a large set, of which most are not
 * used again soon. The second read of a page within a while makes it resident.
 *
 * AQUIFER_ERR_LOST, AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_ARGUMENT, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED,
 * AQUIFER_ERR_FORKED: as for aquifer_read().
 */
int aquifer_read_in_place(aquifer_mapping_t mapping, size_t at, void *into, size_t len);

/*
 * Overwrites a few bytes of a mapping without making a page resident: an evicted page is changed in the tier. For few
 * bytes of a large set, of which most are not used again soon. The second touch of a page within a while makes it
 * resident. If the tier fails, a page has its old or its new bytes, or is lost. No other thread reads or writes the
 * same bytes at the same time.
 *
 * AQUIFER_ERR_LOST, AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_ARGUMENT, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED,
 * AQUIFER_ERR_FORKED: as for aquifer_write().
 */
int aquifer_write_in_place(aquifer_mapping_t mapping, size_t at, const void *bytes, size_t len);

/*
 * Empties a range: it reads as zeros, even where bytes were lost, and takes neither DRAM nor room in the tier. It
 * consists of whole pages of 4096 bytes; it may also end with the mapping. No other thread uses it at the same time.
 *
 * AQUIFER_ERR_UNALIGNED: it does not begin and end at pages.
 * AQUIFER_ERR_PINNED: a block of it is pinned.
 * AQUIFER_ERR_LOST: in a space with blocks of one size (`block_size`), only a part of a lost block is in the range.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as
 * usual.
 */
int aquifer_discard(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Says that a range will be used soon: what is evicted is fetched in the background. Returns at once. `intent` is of
 * enum aquifer_intent. A hint: when more than 32 requests wait, the oldest is dropped.
 *
 * AQUIFER_ERR_BEYOND_BUDGET: more than `prefetch_bytes_max` of aquifer_space_limits().
 * AQUIFER_ERR_ARGUMENT: `intent` has no meaning.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_prefetch(aquifer_mapping_t mapping, size_t start, size_t len, int intent);

/*
 * Says that a range will not be used for a long time: it is moved to the tier in the background. Returns at once.
 * Blocks that lie only partly in the range stay. A hint, as aquifer_prefetch() is.
 *
 * AQUIFER_ERR_PINNED: a page of it has an aquifer_pin(). Copies by other threads are no reason to refuse it.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_evict(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Says that a range will not be used again: it is the first to leave when room is needed. Returns at once, and
 * transfers nothing by itself. For data that is read once, in passing.
 *
 * AQUIFER_ERR_PINNED, AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for
 * aquifer_evict().
 */
int aquifer_stream(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Says how a range will be used. `pattern` is of enum aquifer_pattern. It holds for each 2 MiB of which the range has
 * more than half.
 *
 * AQUIFER_ERR_ARGUMENT: `pattern` has no meaning.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_pattern(aquifer_mapping_t mapping, size_t start, size_t len, int pattern);

/*
 * Says how long a range is to stay in DRAM, compared with others. `priority` is of enum aquifer_priority_of. It holds
 * for each 2 MiB of which the range has more than half. A hint: memory of high priority leaves when there is little
 * else; aquifer_pin() keeps it.
 *
 * AQUIFER_ERR_ARGUMENT: `priority` has no meaning.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_priority(aquifer_mapping_t mapping, size_t start, size_t len, int priority);

/*
 * Says how many bytes of a range move as one: a power of two from 4096 to 2 MiB, or 0 to learn it. It holds for each
 * 2 MiB of which the range has more than half, and for a block from its next fetch on. A hint: where the budget has no
 * room for 256 blocks of a size, they are smaller, and a space that was opened with a `block_size` keeps that.
 *
 * AQUIFER_ERR_BLOCK_SIZE: not a power of two from 4096 to 2 MiB.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_block_size(aquifer_mapping_t mapping, size_t start, size_t len, size_t bytes);

/*
 * Where a range is. Writes at most `capacity` runs, in ascending order, and to `count` how many there are: if that is
 * more, ask again with more room, or from the end of the last one on. `runs` may be NULL if `capacity` is 0. Blocks
 * change while this looks.
 *
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_status(aquifer_mapping_t mapping, size_t start, size_t len, struct aquifer_status_run *runs,
                   size_t capacity, size_t *count);

/*
 * How hot a range is, by how soon after its eviction memory comes back. `capacity` and `count` are as for
 * aquifer_status(). Memory without contents is left out.
 *
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_temperature(aquifer_mapping_t mapping, size_t start, size_t len, struct aquifer_temperature_run *runs,
                        size_t capacity, size_t *count);

/*
 * How much of a range is how hot. aquifer_space_histogram() is cheaper, for all of a space.
 *
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_histogram(aquifer_mapping_t mapping, size_t start, size_t len, struct aquifer_histogram *histogram);

/* The temperatures of a class, "8-15" for example. NULL for a class that does not exist. Never freed. */
const char *aquifer_class_name(size_t class_index);

/*
 * Whether a touch of a range would not wait: 1 if all of it was resident a moment ago, otherwise 0. Never waits for the
 * tier. A hint. 0 also for a range that is not within the mapping. For a mapping it makes no system call. For
 * AQUIFER_MEMORY it makes some, to block signals, waits for a lock, and allocates memory.
 *
 * AQUIFER_ERR_OUT_OF_RANGE: of AQUIFER_MEMORY, addresses that no program has.
 */
int aquifer_ready(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Makes a range resident and writable, and keeps it so until aquifer_unpin(). Waits for the tier. Pins of overlapping
 * ranges are independent of each other.
 *
 * AQUIFER_ERR_PINNED_TOO_MUCH: more than `pin_bytes_max` of aquifer_space_limits(), or 1,024 pins.
 * AQUIFER_ERR_LOST: the tier has lost some of it.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as
 * usual.
 */
int aquifer_pin(aquifer_mapping_t mapping, size_t start, size_t len, aquifer_pin_t *pin);

/* Ends a pin. */
int aquifer_unpin(aquifer_pin_t pin);

/*
 * Makes a range resident, and waits for it. In a context of aquifer_contexts_run(), other contexts run meanwhile. The
 * memory may leave again at any time; aquifer_pin() keeps it.
 *
 * AQUIFER_ERR_LOST: the tier has lost some of it.
 * AQUIFER_ERR_BEYOND_BUDGET: more than `prefetch_bytes_max` of aquifer_space_limits().
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED,
 * AQUIFER_ERR_CLOSED: as usual.
 */
int aquifer_fetch(aquifer_mapping_t mapping, size_t start, size_t len);

/*
 * Starts to make ranges resident, up to 65536 of them. The handle is polled or waited for, and is closed by
 * aquifer_fetch_close(). It does not keep the mapping open.
 *
 * AQUIFER_ERR_ARGUMENT: `ranges` is NULL, or there are too many.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_EMPTY_RANGE, AQUIFER_ERR_BEYOND_BUDGET, AQUIFER_ERR_LOST: of any range, here or
 * when it is polled.
 */
int aquifer_fetch_start(aquifer_mapping_t mapping, const struct aquifer_range *ranges, size_t count,
                        aquifer_fetch_t *fetch);

/*
 * Whether all ranges of a fetch are resident: 0 if they are, AQUIFER_PENDING if not yet. Makes resident what has
 * arrived. It waits for the tier only where that has been evicted again, or where the space has too many requests.
 * Once it has ended, it returns the same each time.
 *
 * AQUIFER_ERR_LOST, AQUIFER_ERR_CLOSED, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: of the first range
 * that failed.
 */
int aquifer_fetch_poll(aquifer_fetch_t fetch);

/*
 * Waits until a fetch has ended. A `timeout_ms` below 0 has no limit. In a context, other contexts run meanwhile.
 *
 * AQUIFER_ERR_TIMEOUT: it has not ended within `timeout_ms` milliseconds.
 * AQUIFER_ERR_LOST, AQUIFER_ERR_CLOSED, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for
 * aquifer_fetch_poll().
 */
int aquifer_fetch_wait(aquifer_fetch_t fetch, int64_t timeout_ms);

/* Closes a fetch. What is on its way arrives in the space's own memory. */
int aquifer_fetch_close(aquifer_fetch_t fetch);

/*
 * Copies items of a mapping, one after the other: item n is the `size` bytes from n * size on. The tier's reads of
 * them overlap, up to a bound, and make nothing resident. `into_len` is `size` times `count`.
 *
 * AQUIFER_ERR_BUFFER_SIZE: `into_len` is another number.
 * AQUIFER_ERR_OUT_OF_RANGE: an item is not within the mapping; nothing has been copied.
 * AQUIFER_ERR_ARGUMENT: a pointer is NULL or not aligned, or `into` is in the mapping or overlaps `indices`.
 * AQUIFER_ERR_LOST: the tier has lost one of them; some of the others have been copied.
 * AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as usual.
 */
int aquifer_gather(aquifer_mapping_t mapping, size_t size, const size_t *indices, size_t count, void *into,
                   size_t into_len);

/*
 * Copies pieces of any lengths, as aquifer_gather() copies items of one length. In ascending order of their
 * destinations, pieces need not be sorted to see whether two of these overlap.
 *
 * AQUIFER_ERR_ARGUMENT: a pointer is NULL or not aligned, or a destination is in the mapping, overlaps that of another
 * piece, or overlaps `pieces`; nothing has been copied.
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_LOST, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for
 * aquifer_gather().
 */
int aquifer_gather_pieces(aquifer_mapping_t mapping, const struct aquifer_piece *pieces, size_t count);

/*
 * Starts a gather of pieces, for a thread that does something else meanwhile. It makes progress when it is polled. The
 * destinations belong to the gather until it has ended or has been closed; the pieces themselves do not. It keeps the
 * mapping. Of the gathers of a space that are under way at the same time, 64 overlap their reads; others read one page
 * after the other.
 *
 * AQUIFER_ERR_OUT_OF_RANGE, AQUIFER_ERR_ARGUMENT, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for
 * aquifer_gather_pieces().
 */
int aquifer_gather_start(aquifer_mapping_t mapping, const struct aquifer_piece *pieces, size_t count,
                         aquifer_gather_t *gather);

/*
 * Copies what has arrived, and asks for more: 0 if all has been copied, AQUIFER_PENDING if not yet. Once it has ended,
 * it returns the same each time.
 *
 * AQUIFER_ERR_LOST, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for aquifer_gather().
 */
int aquifer_gather_poll(aquifer_gather_t gather);

/*
 * Waits until a gather has ended. In a context, other contexts run meanwhile, and the reads of all gathers of the
 * thread's contexts overlap, however many they are.
 *
 * AQUIFER_ERR_CLOSED: it was closed meanwhile.
 * AQUIFER_ERR_LOST, AQUIFER_ERR_NO_ROOM, AQUIFER_ERR_ENDED, AQUIFER_ERR_FORKED: as for aquifer_gather().
 */
int aquifer_gather_wait(aquifer_gather_t gather);

/* Closes a gather. Nothing is written to its destinations any more. */
int aquifer_gather_close(aquifer_gather_t gather);

/*
 * Runs `count` contexts on this thread until all have ended. A context is a call of `context` with `argument` and its
 * number, on a stack to itself. When one waits in aquifer_fetch(), aquifer_fetch_wait() or aquifer_gather_wait(), or
 * calls aquifer_context_yield(), another one runs. How many are in flight follows the latency and the parallelism of
 * the tier. `options` and `report` may be NULL.
 *
 * A context must not leave its function by longjmp(3), by an exception, or by ending its thread.
 *
 * AQUIFER_ERR_ARGUMENT: `context` is NULL, or an option has no meaning.
 * AQUIFER_ERR_SYSTEM: there is no memory for one more stack; contexts that had begun have ended, the others have not
 * run, and `report` says how many.
 */
int aquifer_contexts_run(aquifer_space_t space, size_t count, void (*context)(void *argument, size_t index),
                         void *argument, const struct aquifer_context_options *options,
                         struct aquifer_contexts_report *report);

/* Lets other contexts of this thread run: 1 if it is in a context, otherwise 0. */
int aquifer_context_yield(void);

#ifdef __cplusplus
}
#endif

#endif
