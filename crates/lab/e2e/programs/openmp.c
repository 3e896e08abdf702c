// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    long n = count > 1 ? atol(words[1]) : 1 << 20, *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), sum = 0;
#pragma omp parallel for num_threads(4)
    for (long i = 0; i < n; i++) a[i] = i * 7919 % 1000003, b[i] = i ^ 0x55;
    for (int turn = 0; turn < 3; turn++) {
#pragma omp parallel for num_threads(4) schedule(dynamic, 65536)
        for (long i = 0; i < n; i++) b[i] += a[(i / 4096 * 2654435761u + i % 4096) % n] & 3;
#pragma omp parallel for num_threads(4) reduction(+ : sum)
        for (long i = 0; i < n; i++) sum += b[i] ^ a[n - 1 - i];
    }
    printf("%ld\n", sum);
    return 0;
}
