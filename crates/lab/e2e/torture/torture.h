// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Shared by the parts of the torture program: random numbers, the model of one block of memory, and the exits.
 *
 * Every byte of a checked block follows from its address within the block and the 32-bit stamp of its
 * 64-byte line. The stamps are the model: they are in memory that the pager does not manage (shared
 * anonymous memory), so that no error can affect both the checked memory and the model. */

#ifndef TORTURE_H
#define TORTURE_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#define LINE 64

struct luck { uint64_t state; };

struct area {
    unsigned char *start;
    size_t len;       /* in bytes; a multiple of LINE */
    uint32_t *stamps; /* one for each line; 0: the line is all zeros */
    size_t stamps_max;
};

uint64_t next(struct luck *luck);
uint64_t below(struct luck *luck, uint64_t most);

/* The thread's last operation on its memory, for the message of `wrong`. */
extern __thread char done_last[80];

/* Ends the program with status 1 and a line with the command that reproduces the error. */
_Noreturn void wrong(const char *what, ...) __attribute__((format(printf, 1, 2)));
/* Ends the program with status 3, because a call failed that must not. */
_Noreturn void broken(const char *call);

void *unmanaged(size_t len);
void area_model(struct area *area, unsigned char *start, size_t len);
void area_zero(struct area *area, size_t from, size_t to);
/* The bytes that line `line` must hold. */
void line_bytes(const struct area *area, size_t line, unsigned char out[LINE]);
void write_lines(struct area *area, size_t from, size_t count, struct luck *luck);
void check_lines(const struct area *area, size_t from, size_t count, const char *what);
void check_area(const struct area *area, const char *what);

/* The parts. Each does a few random operations on the thread's own areas. */
void loads_and_stores(struct area *area, struct luck *luck);
void transfers(struct area *area, struct luck *luck);
void kernel_structures(struct area *area, struct luck *luck);
void vectors(struct area *area, struct luck *luck);
void messages(struct area *area, struct luck *luck);
void mappings(struct luck *luck);
void allocations(struct luck *luck, size_t largest);
void leave_models(void);
void start_locks(int threads);
void locks(struct luck *luck);
void end_locks(void);
void handlers(struct luck *luck);
void forks(struct area *area, struct luck *luck);
void clones(struct area *area, struct luck *luck);
void programs(struct area *area, struct luck *luck);
void visitors(struct luck *luck);
void discards(struct area *area, struct luck *luck);

extern const char *directory;
#endif
