<?php
// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
// Arrays and strings that are replaced all the time, and extensions that are loaded with RTLD_DEEPBIND.
function value($key, $turn) { return ['key' => $key, 'turn' => $turn, 'text' => str_repeat("$key/$turn ", 10)]; }
ini_set('memory_limit', '-1');
$keys = (int)$argv[1];
mt_srand(7);
$store = [];
$wrong = 0;
for ($turn = 0; $turn < 3; $turn++) {
    for ($count = 0; $count < $keys; $count++) {
        $key = mt_rand(0, $keys - 1);
        if (isset($store[$key]) && $store[$key] !== value($key, $store[$key]['turn'])) $wrong++;
        $store[$key] = value($key, $turn);
    }
}
ksort($store);
$hash = hash_init('sha256');
foreach ($store as $key => $value) hash_update($hash, json_encode($value));
echo count($store), " $wrong ", hash_final($hash), "\n";
exit($wrong ? 3 : 0);
