// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A guest without an operating system, for machines that have no kernel to boot: it replaces the 64 KiB of the
// machine's firmware with 32-bit code without paging. It tests the memory from 1 MiB on, prints the result to the
// serial port, and ends QEMU with status 33 if nothing was wrong, 35 otherwise (isa-debug-exit: twice the value, plus
// one).

typedef unsigned int u32;
typedef unsigned char u8;

enum { SERIAL = 0x3f8, CMOS = 0x70, EXIT = 0xf4, EXIT_RIGHT = 16, EXIT_WRONG = 17, PAGE = 4096, WORDS = PAGE / 4 };

static void out(unsigned short port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static u32 cmos(u8 index) {
    u8 value;
    out(CMOS, index);
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"((unsigned short)(CMOS + 1)));
    return value;
}

static void say(const char *text) {
    for (; *text; text++) out(SERIAL, (u8)*text);
}

static void say_number(u32 number) {
    char digits[11], *at = digits + 10;
    *at = 0;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    say(at);
}

// Tests only some words of a page, spread over it; the whole page would take long where a hypervisor emulates each
// store.
enum { STEP = WORDS / 2 };

static u32 word(u32 page, u32 at, u32 round) {
    u32 mixed = (page * WORDS + at + 1) * 0x9e3779b1u;
    return round % 2 ? ~mixed : mixed;
}

static void fill(u32 page, u32 round) {
    volatile u32 *words = (volatile u32 *)(page * PAGE);
    for (u32 at = 0; at < WORDS; at += STEP) words[at] = word(page, at, round);
}

static u32 wrong(u32 page, u32 round) {
    volatile u32 *words = (volatile u32 *)(page * PAGE);
    u32 count = 0;
    for (u32 at = 0; at < WORDS; at += STEP) count += words[at] != word(page, at, round);
    return count;
}

__attribute__((used)) void test(void) {
    // Registers 0x34 and 0x35: memory above 16 MiB, in units of 64 KiB. QEMU's firmware tables are elsewhere.
    u32 first = 256, last = 4096 + (cmos(0x34) | cmos(0x35) << 8) * 16, pages = last - first, count = 0;
    for (u32 page = first; page < last; page++) fill(page, 0);
    for (u32 page = first; page < last; page++) {
        count += wrong(page, 0);
        fill(page, 1);
    }
    // 7919 is a prime, so every page is visited once, in scattered order; if it divides the number of pages, the last
    // page is left out.
    if (pages % 7919 == 0) pages--;
    for (u32 i = 0, page = 0; i < pages; i++, page = (page + 7919) % pages) {
        count += wrong(first + page, 1);
        fill(first + page, 2);
    }
    for (u32 page = first; page < first + pages; page++) count += wrong(page, 2);
    say("guest: tests ");
    say_number(pages / 256);
    say(" MiB\nguest: ");
    say_number(count);
    say(" wrong words\n");
    out(EXIT, count ? EXIT_WRONG : EXIT_RIGHT);
    for (;;) __asm__ volatile("cli; hlt");
}

// From the reset vector to 32-bit code. The segments are already marked as accessed, because the processor would
// otherwise write the mark, and the table is in read-only memory.
__asm__(".section .reset, \"ax\"\n.code16\n"
        "start: cli\n lgdtl %cs:(table - start)\n mov %cr0, %eax\n or $1, %al\n mov %eax, %cr0\n ljmpl $8, $flat\n"
        ".code32\nflat: mov $16, %ax\n mov %ax, %ds\n mov %ax, %es\n mov %ax, %ss\n mov $0x80000, %esp\n call test\n"
        ".balign 8\nsegments: .quad 0, 0x00cf9b000000ffff, 0x00cf93000000ffff\n"
        "table: .word 23\n .long segments\n"
        ".section .vector, \"ax\"\n.code16\n ljmp $0xf000, $0\n.text\n.code32\n");
