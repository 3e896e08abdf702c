// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Processes and threads that come and go, and memory that is discarded, locked and protected while they run. A child
 * has its own model, made before the fork, because the parent's keeps changing. */

#include "torture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Bounds on simultaneous children and on nested forks: the processes of a tree share a budget. */
enum { CHILDREN_MAX = 3, DEPTH_MAX = 2 };
static int children;
/* The number of forks between the first process and this one. */
static int depth;

/* fork(2). Returns -1, and the caller skips the part, if there is not enough memory for another process. */
static pid_t make_child(void) {
    pid_t child = fork();
    if (child < 0 && errno != ENOMEM && errno != EAGAIN)
        broken("fork");
    return child;
}

static void wait_for(pid_t child, int killed) {
    int status;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            broken("waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && killed)
        return;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        wrong("a child %s %d", WIFEXITED(status) ? "exits with" : "is ended by signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* What a child does with its copy of the area. It does not check other threads' memory, which may be in the middle
 * of a write. */
_Noreturn static void live(struct area *area, struct luck *luck) {
    depth++;
    leave_models();
    check_lines(area, below(luck, area->len / LINE), 1, "in a child, at first");
    for (uint64_t turns = below(luck, 30); turns > 0; turns--)
        switch (below(luck, 8)) {
        case 0: transfers(area, luck); break;
        case 1: vectors(area, luck); break;
        case 2: messages(area, luck); break;
        case 3: kernel_structures(area, luck); break;
        case 4: allocations(luck, (size_t)2 << 20); break;
        case 5: discards(area, luck); break;
        default: loads_and_stores(area, luck);
        }
    if (depth < DEPTH_MAX && below(luck, 3) == 0)
        forks(area, luck);
    if (below(luck, 4) == 0)
        check_area(area, "in a child, at the end");
    if (below(luck, 5) == 0) {
        execl("/bin/true", "true", (char *)NULL);
        broken("execl");
    }
    _exit(0);
}

/* A copy of the current model, for the child alone. */
static struct area own_model(const struct area *area) {
    struct area own = *area;
    own.stamps = unmanaged(area->stamps_max * sizeof *own.stamps);
    memcpy(own.stamps, area->stamps, area->stamps_max * sizeof *own.stamps);
    return own;
}

/* A daemon: a child whose parent, a child itself, has ended. It reports its success through a pipe. */
static void daemons(struct area *own, struct luck *luck) {
    int ends[2];
    char told = 0;
    if (pipe(ends) != 0)
        broken("pipe");
    pid_t child = make_child();
    if (child == 0) {
        close(ends[0]);
        setsid();
        pid_t inner = make_child();
        if (inner < 0 && write(ends[1], "y", 1) != 1)
            _exit(3);
        if (inner != 0)
            _exit(0);
        depth++;
        for (int turn = 0; turn < 20; turn++)
            loads_and_stores(own, luck);
        check_area(own, "in a daemon");
        if (write(ends[1], "y", 1) != 1)
            _exit(3);
        _exit(0);
    }
    close(ends[1]);
    if (child > 0) {
        wait_for(child, 0);
        if (read(ends[0], &told, 1) != 1 || told != 'y')
            wrong("a daemon ends without a word");
    }
    close(ends[0]);
}

static void fork_once(struct area *area, struct luck *luck, uint64_t how) {
    if (__atomic_add_fetch(&children, 1, __ATOMIC_ACQ_REL) > CHILDREN_MAX) {
        __atomic_sub_fetch(&children, 1, __ATOMIC_ACQ_REL);
        return;
    }
    struct area own = own_model(area);
    struct luck its = {next(luck)};
    uint64_t kill_it = below(luck, 4) == 0;
    if (how == 0) {
        daemons(&own, &its);
    } else {
        pid_t child = how == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0) : make_child();
        if (child == 0 && how == 1) { /* The C library does not know of this child: its locks may stay locked there. */
            for (int turn = 0; turn < 10; turn++)
                loads_and_stores(&own, &its);
            _exit(0);
        }
        if (child == 0)
            live(&own, &its);
        /* The parent continues at the same time, and neither process sees the other's writes. */
        for (uint64_t turns = below(luck, 10); turns > 0; turns--)
            loads_and_stores(area, luck);
        if (kill_it && child > 0)
            kill(child, SIGKILL);
        if (child > 0)
            wait_for(child, (int)kill_it);
    }
    munmap(own.stamps, own.stamps_max * sizeof *own.stamps);
    __atomic_sub_fetch(&children, 1, __ATOMIC_ACQ_REL);
}

void forks(struct area *area, struct luck *luck) { fork_once(area, luck, below(luck, 6) ? 2 : 0); }

/* clone(2) that bypasses the C library. */
void clones(struct area *area, struct luck *luck) { fork_once(area, luck, 1); }

/* Starts programs, whose arguments are in managed memory. */
void programs(struct area *area, struct luck *luck) {
    size_t line = below(luck, area->len / LINE - 8);
    char *word = (char *)area->start + line * LINE;
    strcpy(word, "exit 7");
    char *words[] = {"sh", "-c", word, NULL};
    pid_t child = -1;
    int status = 0;
    switch (below(luck, 4)) {
    case 0:
        errno = posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ);
        if (errno)
            broken("posix_spawn");
        break;
    case 1:
        child = vfork();
        if (child == 0) {
            execve("/bin/sh", words, environ);
            _exit(99);
        }
        break;
    case 2:
        child = make_child();
        if (child < 0)
            return write_lines(area, line, 1, luck);
        if (child == 0) {
            execv("/bin/sh", words);
            _exit(99);
        }
        break;
    default: {
        char answer[8] = "";
        FILE *stream = popen("echo seven; exit 7", "r");
        if (!stream || !fgets(answer, sizeof answer, stream) || strcmp(answer, "seven\n") != 0)
            wrong("popen gives '%s': %s", answer, strerror(errno));
        status = pclose(stream);
    }
    }
    if (child > 0)
        while (waitpid(child, &status, 0) != child)
            if (errno != EINTR)
                broken("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
        wrong("a program that exits with 7 ends with status 0x%x", (unsigned)status);
    write_lines(area, line, 1, luck);
}

static void *visit(void *argument) {
    struct luck luck = {(uint64_t)(uintptr_t)argument};
    struct area area = {0};
    size_t len = (1 + below(&luck, 4)) << 18;
    area_model(&area, malloc(len), len);
    write_lines(&area, 0, len / LINE, &luck);
    for (int turn = 0; turn < 20; turn++)
        loads_and_stores(&area, &luck);
    handlers(&luck);
    check_area(&area, "in a short thread");
    free(area.start);
    munmap(area.stamps, area.stamps_max * sizeof *area.stamps);
    return NULL;
}

void visitors(struct luck *luck) {
    pthread_t threads[3];
    size_t count = 1 + below(luck, 3);
    for (size_t index = 0; index < count; index++)
        if (pthread_create(&threads[index], NULL, visit, (void *)(uintptr_t)(next(luck) | 1)) != 0)
            broken("pthread_create");
    for (size_t index = 0; index < count; index++)
        pthread_join(threads[index], NULL);
}

/* Discards parts of long-lived memory, locks them for a while, or makes them read-only. The area starts at a page
 * boundary. */
void discards(struct area *area, struct luck *luck) {
    const size_t page = 4096;
    size_t pages = area->len / page, from = below(luck, pages), count = 1 + below(luck, below(luck, 4) ? 20 : 600);
    count = count > pages - from ? pages - from : count;
    unsigned char *start = area->start + from * page;
    size_t lines = page / LINE;
    switch (below(luck, 4)) {
    case 0:
    case 1:
        if (madvise(start, count * page, MADV_DONTNEED) != 0)
            wrong("madvise fails: %s", strerror(errno));
        area_zero(area, from * page, (from + count) * page);
        check_lines(area, from * lines, count * lines, "after MADV_DONTNEED");
        break;
    case 2: /* The limit on locked memory may be low. */
        count = count > 16 ? 16 : count;
        if (mlock(start, count * page) == 0) {
            check_lines(area, from * lines, count * lines, "locked");
            if (munlock(start, count * page) != 0)
                wrong("munlock fails: %s", strerror(errno));
        }
        break;
    default:
        if (mprotect(start, count * page, PROT_READ) != 0)
            wrong("mprotect fails: %s", strerror(errno));
        check_lines(area, from * lines, count * lines, "read-only");
        for (int turn = 0; turn < 2; turn++)
            allocations(luck, (size_t)2 << 20);
        if (mprotect(start, count * page, PROT_READ | PROT_WRITE) != 0)
            wrong("mprotect back fails: %s", strerror(errno));
    }
    write_lines(area, from * lines, lines, luck);
}
