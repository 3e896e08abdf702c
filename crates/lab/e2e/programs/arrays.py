# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
import sys

import numpy as np

count = int(sys.argv[1])
side = int(count**0.5)
random = np.random.default_rng(1)
a, b = (random.integers(0, 1000, (side, side)).astype(np.int64) for _ in range(2))
x = random.random(count)
ordered = np.sort(x)
assert (np.diff(ordered) >= 0).all()
assert (x[np.argsort(x, kind="stable")] == ordered).all()
assert np.allclose(np.fft.irfft(np.fft.rfft(x), len(x)), x)
m = random.random((400, 400))
assert np.allclose(m @ np.linalg.inv(m), np.eye(400), atol=1e-6)
np.save("x.npy", x)
assert (np.load("x.npy") == x).all()
print(int(a.sum() * b.sum() % 1000003), int((a ^ b).sum()), int((a @ b[:, :8]).sum()))
