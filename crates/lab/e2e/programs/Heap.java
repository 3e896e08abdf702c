// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
import java.util.HashMap;
import java.util.Random;

public class Heap {
    static long wrong(int key, byte[] value) {
        long wrong = 0;
        for (int at = 0; at < value.length; at++) if (value[at] != (byte) (key + at)) wrong++;
        return wrong;
    }

    public static void main(String[] words) {
        int keys = Integer.parseInt(words[0]);
        HashMap<Integer, byte[]> map = new HashMap<>();
        Random random = new Random(1);
        long wrong = 0, bytes = 0;
        for (int turn = 0; turn < 3 * keys; turn++) {
            int key = random.nextInt(keys);
            byte[] value = map.get(key);
            if (value != null) wrong += wrong(key, value);
            value = new byte[500 + random.nextInt(1000)];
            for (int at = 0; at < value.length; at++) value[at] = (byte) (key + at);
            map.put(key, value);
        }
        System.gc();
        for (var entry : map.entrySet()) {
            wrong += wrong(entry.getKey(), entry.getValue());
            bytes += entry.getValue().length;
        }
        System.out.println(map.size() + " values, " + bytes + " bytes, " + wrong + " wrong");
        if (wrong > 0) System.exit(3);
    }
}
