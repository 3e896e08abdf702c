// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
const crypto = require('crypto');
const keys = Number(process.argv[2]);
const map = new Map();
let wrong = 0, state = 1;
function below(limit) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 4294967296 * limit);
}
function right(key, value) {
    return value.key === key && value.list[7] === key * 7 && value.text === 'key' + key;
}
for (let turn = 0; turn < 3 * keys; turn++) {
    const key = below(keys), value = map.get(key), list = [];
    if (value && !right(key, value)) wrong++;
    for (let at = 0; at < 100 + key % 50; at++) list.push(key * at);
    map.set(key, { key, list, text: 'key' + key });
}
const buffers = [];
for (let number = 0; number < keys / 100; number++) buffers.push(Buffer.alloc(1 << 20, number & 255));
for (let turn = 0; turn < 3; turn++)
    for (let number = 0; number < buffers.length; number++)
        for (let at = 0; at < 1 << 20; at += 4096) if (buffers[number][at] !== (number & 255)) wrong++;
const hash = crypto.createHash('sha256');
for (const [key, value] of map) {
    if (!right(key, value)) wrong++;
    hash.update(value.list.join());
}
console.log(map.size, wrong, hash.digest('hex'));
process.exit(wrong ? 3 : 0);
